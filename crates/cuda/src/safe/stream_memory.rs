//! Device memory that belongs to a stretch of a program's stream: taken, used and given back in the stream's order.

use std::sync::Arc;

use super::{Context, PinnedBuffer};
use crate::CudaError;
use crate::call::driver as call;
use crate::sys::DevicePtr;
use crate::sys::driver::Stream;

/// Memory for the work enqueued on one stream until it is dropped, which waits for nothing.
pub struct StreamMemory {
    context: Arc<Context>,
    stream: Stream,
    raw: DevicePtr,
    len: usize,
}

impl StreamMemory {
    /// Takes `len` bytes, aligned to 256. Takes nothing for 0.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Safety
    /// The stream is of the context, alive until it has done all work on the memory, and not capturing; only work on this
    /// stream uses the memory.
    pub unsafe fn take(context: &Arc<Context>, stream: Stream, len: usize) -> Result<StreamMemory, CudaError> {
        let driver = context.enter()?;
        let mut memory = StreamMemory { context: context.clone(), stream, raw: DevicePtr::default(), len: 0 };
        if len > 0 {
            // SAFETY: the context is current, `len` is not 0, and the stream is alive by the caller's word.
            memory.raw = unsafe { call::mem_alloc_async(driver, len, context.pool()?, stream) }?;
            memory.len = len;
        }
        Ok(memory)
    }

    /// Where it begins.
    pub fn address(&self) -> DevicePtr {
        self.raw
    }

    /// Enqueues filling `len` bytes at an offset with these bytes, over and over.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`]; [`CudaError::Driver`].
    ///
    /// # Safety
    /// The bytes are pinned, and stay alive and unchanged until the stream has done the work.
    pub unsafe fn fill(&self, at: usize, len: usize, with: &[u8]) -> Result<(), CudaError> {
        let to = self.part(at, len)?;
        let driver = self.context.enter()?;
        let mut done = with.len().min(len);
        if done > 0 {
            // SAFETY: `done` bytes are readable, and belong to this memory at `to`; their life by the caller's word.
            unsafe { call::memcpy_htod_async(driver, to, with.as_ptr().cast(), done, self.stream) }?;
        }
        while 0 < done && done < len {
            let bytes = done.min(len - done);
            // SAFETY: from [0, bytes) to [done, done + bytes), both within the part, and bytes is at most done.
            unsafe { call::memcpy_dtod_async(driver, to.offset(done), to, bytes, self.stream) }?;
            done += bytes;
        }
        Ok(())
    }

    /// Enqueues copying `len` bytes at an offset to pinned memory.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`]; [`CudaError::Driver`].
    ///
    /// # Safety
    /// The pinned memory stays alive and untouched until the stream has done the work.
    pub unsafe fn bring(&self, at: usize, len: usize, to: &mut PinnedBuffer, to_at: usize) -> Result<(), CudaError> {
        let from = self.part(at, len)?;
        let Some(place) = to.get_mut(to_at..to_at.saturating_add(len)) else {
            return Err(CudaError::OutOfBounds { start: to_at, end: to_at.saturating_add(len), len: to.len() });
        };
        let driver = self.context.enter()?;
        // SAFETY: `len` bytes are writable at the place, and belong to this memory at `from`; their life by the caller's
        // word.
        unsafe { call::memcpy_dtoh_async(driver, place.as_mut_ptr().cast(), from, len, self.stream) }
    }

    fn part(&self, at: usize, len: usize) -> Result<DevicePtr, CudaError> {
        match at.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.raw.offset(at)),
            _ => Err(CudaError::OutOfBounds { start: at, end: at.saturating_add(len), len: self.len }),
        }
    }
}

impl Drop for StreamMemory {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: taken in `take`, freed only here, and used on this stream only.
            self.context.destroy(|driver| unsafe { call::mem_free_async(driver, self.raw, self.stream) });
        }
    }
}
