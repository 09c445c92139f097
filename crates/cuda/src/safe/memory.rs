//! Device memory, and pinned host memory for copies at full speed.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;

use tightfit_units::Bytes;

use super::{Context, Handle, Stream};
use crate::CudaError;
use crate::call::driver as call;
use crate::sys::DevicePtr;
use crate::sys::driver::{DriverStatus, MEMHOSTALLOC_PORTABLE};

/// Bytes on the device. Not initialized.
pub struct DeviceBuffer {
    context: Arc<Context>,
    raw: DevicePtr,
    len: usize,
    /// In whose stream's order it is given back; without one, after all work on the device.
    order: Option<Arc<Handle>>,
}

impl DeviceBuffer {
    /// Allocates `len` bytes, aligned to 256. Allocates nothing for 0.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`] with the free size; [`CudaError::Driver`].
    pub fn new(context: &Arc<Context>, len: usize) -> Result<DeviceBuffer, CudaError> {
        let driver = context.enter()?;
        if len == 0 {
            return Ok(DeviceBuffer { context: context.clone(), raw: DevicePtr::default(), len, order: None });
        }
        // SAFETY: the context is current and `len` is not 0.
        let raw = unsafe { call::mem_alloc(driver, len) }.map_err(|error| out_of_memory(context, len, error))?;
        Ok(DeviceBuffer { context: context.clone(), raw, len, order: None })
    }

    /// The same in the order of a handle's stream: neither taking it nor giving it back waits for other streams, which would
    /// break a capture on them.
    /// # Safety
    /// Only work on the handle's stream uses it.
    pub(crate) unsafe fn in_order(handle: &Arc<Handle>, len: usize) -> Result<DeviceBuffer, CudaError> {
        let context = handle.context();
        if len == 0 {
            return DeviceBuffer::new(context, 0);
        }
        let driver = context.enter()?;
        // SAFETY: the context is current, `len` is not 0, and the stream is alive as long as the handle.
        let raw = unsafe { call::mem_alloc_async(driver, len, context.pool()?, handle.stream().raw()) }
            .map_err(|error| out_of_memory(context, len, error))?;
        Ok(DeviceBuffer { context: context.clone(), raw, len, order: Some(handle.clone()) })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A readable part of it.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`].
    pub fn slice(&self, range: Range<usize>) -> Result<Slice<'_>, CudaError> {
        let raw = self.at(&range)?;
        Ok(Slice { context: &self.context, raw, len: range.len(), buffer: PhantomData })
    }

    /// A writable part of it.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`].
    pub fn slice_mut(&mut self, range: Range<usize>) -> Result<SliceMut<'_>, CudaError> {
        let raw = self.at(&range)?;
        Ok(SliceMut { part: Slice { context: &self.context, raw, len: range.len(), buffer: PhantomData } })
    }

    fn at(&self, range: &Range<usize>) -> Result<DevicePtr, CudaError> {
        if range.start > range.end || range.end > self.len {
            return Err(CudaError::OutOfBounds { start: range.start, end: range.end, len: self.len });
        }
        Ok(self.raw.offset(range.start))
    }

    /// Copies host memory to a part of it, after all work enqueued on the device so far, and waits.
    pub(super) fn write(&self, at: usize, from: &[u8]) -> Result<(), CudaError> {
        write(&self.context, self.at(&(at..at + from.len()))?, from)
    }

    /// Enqueues filling all of it with one byte value.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn fill(&self, byte: u8, stream: &Stream) -> Result<(), CudaError> {
        if self.len == 0 {
            return Ok(());
        }
        let driver = self.context.enter()?;
        // SAFETY: the bytes are the buffer's, which waits for queued work before it is freed.
        unsafe { call::memset_d8_async(driver, self.raw, byte, self.len, stream.raw()) }
    }

    pub(super) fn raw(&self) -> DevicePtr {
        self.raw
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.len == 0 {
            return;
        }
        if let Some(handle) = &self.order {
            // SAFETY: taken in `in_order`, given back only here, behind all work that uses it; the stream is the handle's.
            self.context.destroy(|driver| unsafe { call::mem_free_async(driver, self.raw, handle.stream().raw()) });
            return;
        }
        // Work that uses the bytes may still be queued, and nothing else holds it back.
        self.context.destroy(|driver| {
            // SAFETY: the context is current.
            let waited = unsafe { call::ctx_synchronize(driver) };
            // SAFETY: taken in `new`, freed only here, and no work is left that uses it.
            waited.and(unsafe { call::mem_free(driver, self.raw) })
        });
    }
}

/// Copies host memory to the device, after all work enqueued so far, and waits. The bytes at `to` are a live buffer's.
fn write(context: &Context, to: DevicePtr, from: &[u8]) -> Result<(), CudaError> {
    if from.is_empty() {
        return Ok(());
    }
    context.synchronize()?;
    let driver = context.enter()?;
    // SAFETY: `from` is as long as said, and the callers have checked that as much belongs to a live buffer at `to`.
    unsafe { call::memcpy_htod(driver, to, from.as_ptr().cast(), from.len()) }?;
    // The call returns once pageable memory is staged; our streams do not wait for the default stream, which brings the
    // rest of the way, and would overtake it.
    context.synchronize()
}

/// Turns the driver's status into an error with the size requested and the size free.
fn out_of_memory(context: &Context, wanted: usize, error: CudaError) -> CudaError {
    match error {
        CudaError::Driver { status: DriverStatus::OUT_OF_MEMORY, .. } => {
            let free = context.memory().map_or(Bytes::ZERO, |(free, _)| free);
            CudaError::OutOfMemory { wanted: Bytes(wanted as u64), free }
        }
        error => error,
    }
}

/// A readable part of device memory.
#[derive(Clone, Copy)]
pub struct Slice<'a> {
    context: &'a Arc<Context>,
    raw: DevicePtr,
    len: usize,
    buffer: PhantomData<&'a DeviceBuffer>,
}

/// A writable part of device memory.
pub struct SliceMut<'a> {
    part: Slice<'a>,
}

impl Slice<'_> {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies it to the host, after all work enqueued on the device so far, and waits.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`] if the lengths differ; [`CudaError::Driver`].
    pub fn download(&self, to: &mut [u8]) -> Result<(), CudaError> {
        self.must_be(to.len())?;
        if to.is_empty() {
            return Ok(());
        }
        self.context.synchronize()?;
        let driver = self.context.enter()?;
        // SAFETY: `to` is as long as this part, which is alive for as long as its buffer is borrowed.
        unsafe { call::memcpy_dtoh(driver, to.as_mut_ptr().cast(), self.raw, self.len) }
    }

    /// Copies it to the host behind the stream's work, and waits for that alone: not for other streams of the program.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`] if the lengths differ; [`CudaError::Driver`].
    pub fn read(&self, to: &mut [u8], stream: &Stream) -> Result<(), CudaError> {
        self.must_be(to.len())?;
        if to.is_empty() {
            return Ok(());
        }
        let driver = self.context.enter()?;
        // SAFETY: `to` is as long as this part, which is alive for as long as its buffer is borrowed. It is pageable: the copy
        // is done when the call returns or, where devices write such memory, below.
        unsafe { call::memcpy_dtoh_async(driver, to.as_mut_ptr().cast(), self.raw, self.len, stream.raw()) }?;
        stream.synchronize()
    }

    /// Memory of the host program.
    ///
    /// # Safety `len` bytes of the context's device begin at `raw`, and stay alive until all work enqueued with the
    /// result is done; no other code uses written bytes before that.
    pub(crate) unsafe fn of_program(context: &Arc<Context>, raw: DevicePtr, len: usize) -> Slice<'_> {
        Slice { context, raw, len, buffer: PhantomData }
    }

    /// A part of this part.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`].
    pub fn part(&self, range: Range<usize>) -> Result<Self, CudaError> {
        if range.start > range.end || range.end > self.len {
            return Err(CudaError::OutOfBounds { start: range.start, end: range.end, len: self.len });
        }
        Ok(Slice { raw: self.raw.offset(range.start), len: range.len(), ..*self })
    }

    /// Its address, for calls of this crate.
    pub(crate) fn raw(&self) -> DevicePtr {
        self.raw
    }

    fn must_be(&self, len: usize) -> Result<(), CudaError> {
        if self.len == len { Ok(()) } else { Err(CudaError::OutOfBounds { start: 0, end: len, len: self.len }) }
    }
}

impl<'a> SliceMut<'a> {
    /// This part as readable, for in-place operations and for reading written data.
    pub fn as_slice(&self) -> Slice<'_> {
        self.part
    }

    /// Copies host memory to it, after all work enqueued on the device so far, and waits.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`] if the lengths differ; [`CudaError::Driver`].
    pub fn upload(&mut self, from: &[u8]) -> Result<(), CudaError> {
        self.must_be(from.len())?;
        write(self.context, self.raw, from)
    }

    /// Copies host memory to it behind the stream's work, and waits for that alone: not for other streams of the program.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`] if the lengths differ; [`CudaError::Driver`].
    pub fn write(&mut self, from: &[u8], stream: &Stream) -> Result<(), CudaError> {
        self.must_be(from.len())?;
        if from.is_empty() {
            return Ok(());
        }
        let driver = self.context.enter()?;
        // SAFETY: `from` is as long as this part, whose buffer waits for queued work before it is freed. It is pageable: the
        // driver stages it during the call or, where devices read such memory, is done with it below.
        unsafe { call::memcpy_htod_async(driver, self.raw, from.as_ptr().cast(), from.len(), stream.raw()) }?;
        stream.synchronize()
    }

    /// Enqueues filling it with one byte value.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn fill(&mut self, byte: u8, stream: &Stream) -> Result<(), CudaError> {
        if self.len == 0 {
            return Ok(());
        }
        let driver = self.context.enter()?;
        // SAFETY: the bytes are a buffer's, which waits for queued work before it is freed.
        unsafe { call::memset_d8_async(driver, self.raw, byte, self.len, stream.raw()) }
    }

    /// Enqueues repeating its first `filled` bytes to its end, in doubling copies.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn repeat(&mut self, filled: usize, stream: &Stream) -> Result<(), CudaError> {
        let driver = self.context.enter()?;
        let mut done = filled.min(self.len);
        while 0 < done && done < self.len {
            let bytes = done.min(self.len - done);
            // SAFETY: from [0, bytes) to [done, done + bytes), both within the part, and bytes is at most done.
            unsafe { call::memcpy_dtod_async(driver, self.raw.offset(done), self.raw, bytes, stream.raw()) }?;
            done += bytes;
        }
        Ok(())
    }
}

impl<'a> Deref for SliceMut<'a> {
    type Target = Slice<'a>;
    fn deref(&self) -> &Slice<'a> {
        &self.part
    }
}

/// Pinned host memory, for asynchronous copies from and to the device.
///
/// Allocating it is slow (about half a second per GiB), so keep and reuse it.
pub struct PinnedBuffer {
    context: Arc<Context>,
    raw: *mut c_void,
    len: usize,
}

// SAFETY: the memory is owned, and reached through `&` and `&mut` like a `Vec`'s.
unsafe impl Send for PinnedBuffer {}
// SAFETY: as above.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// `len` bytes, all 0.
    ///
    /// # Errors
    /// [`CudaError::Driver`] if the host is out of memory.
    pub fn new(context: &Arc<Context>, len: usize) -> Result<PinnedBuffer, CudaError> {
        let driver = context.enter()?;
        if len == 0 {
            return Ok(PinnedBuffer { context: context.clone(), raw: std::ptr::null_mut(), len });
        }
        // SAFETY: the context is current and `len` is not 0.
        let raw = unsafe { call::mem_host_alloc(driver, len, MEMHOSTALLOC_PORTABLE) }?;
        // SAFETY: `len` bytes were taken at `raw`.
        unsafe { std::ptr::write_bytes(raw.cast::<u8>(), 0, len) };
        Ok(PinnedBuffer { context: context.clone(), raw, len })
    }

    pub(super) fn raw(&self) -> *mut c_void {
        self.raw
    }
}

impl Deref for PinnedBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: `len` bytes were taken at `raw` and initialized; they are freed only in `drop`. An asynchronous copy
        // owns the buffer, so nothing writes to it meanwhile.
        unsafe { std::slice::from_raw_parts(self.raw.cast(), self.len) }
    }
}

impl DerefMut for PinnedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: as for reading, and `self` is borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.raw.cast(), self.len) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        if self.len == 0 {
            return;
        }
        // A copy may still be queued if its owner did not wait for it.
        self.context.destroy(|driver| {
            // SAFETY: the context is current.
            let waited = unsafe { call::ctx_synchronize(driver) };
            // SAFETY: taken in `new`, freed only here, and no copy is left that uses it.
            waited.and(unsafe { call::mem_free_host(driver, self.raw) })
        });
    }
}
