//! Pinned host memory for asynchronous copies: the arena of offloaded maps, and the staging buffer of the next
//! mini-batch.

use std::ops::Range;
use std::sync::Arc;

use super::{Context, Event, PinnedBuffer, Region, Stream};
use crate::CudaError;
use crate::call::driver as call;

/// Host memory that the host never accesses while copies are pending.
pub struct PinnedArena {
    context: Arc<Context>,
    buffer: PinnedBuffer,
}

impl PinnedArena {
    /// `len` pinned bytes.
    ///
    /// # Errors
    /// [`CudaError::Driver`] if the host is out of memory.
    pub fn new(context: &Arc<Context>, len: usize) -> Result<PinnedArena, CudaError> {
        Ok(PinnedArena { context: context.clone(), buffer: PinnedBuffer::new(context, len)? })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Enqueues a copy of device memory to `to`.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`] if the lengths differ or the range is out of bounds; [`CudaError::Driver`].
    pub fn offload(&self, from: &Region, to: Range<usize>, stream: &Stream) -> Result<(), CudaError> {
        let bytes = self.same_length(from, &to)?;
        let driver = stream.context().enter()?;
        // SAFETY: `to` is inside the pinned memory, which nobody else reads or writes, and waits for queued work before it
        // is freed, as does the region's buffer; both have `bytes` bytes.
        unsafe {
            let host = self.buffer.raw().cast::<u8>().add(to.start).cast();
            call::memcpy_dtoh_async(driver, host, from.raw(), bytes, stream.raw())
        }
    }

    /// Enqueues a copy of `from` to device memory.
    ///
    /// # Errors
    /// As [`PinnedArena::offload`].
    pub fn prefetch(&self, from: Range<usize>, to: &Region, stream: &Stream) -> Result<(), CudaError> {
        let bytes = self.same_length(to, &from)?;
        let driver = stream.context().enter()?;
        // SAFETY: as for `offload`.
        unsafe {
            let host = self.buffer.raw().cast::<u8>().add(from.start).cast();
            call::memcpy_htod_async(driver, to.raw(), host, bytes, stream.raw())
        }
    }

    /// A range of its bytes, after all work that was enqueued on the device so far.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`]; [`CudaError::Driver`] with any error of the work.
    pub fn read(&mut self, from: Range<usize>) -> Result<Vec<u8>, CudaError> {
        // Borrowed for writing, so that no copy is enqueued while it is borrowed.
        self.context.synchronize()?;
        let (start, end, len) = (from.start, from.end, self.buffer.len());
        self.buffer.get(from).map(<[u8]>::to_vec).ok_or(CudaError::OutOfBounds { start, end, len })
    }

    fn same_length(&self, region: &Region, host: &Range<usize>) -> Result<usize, CudaError> {
        let (start, end, len) = (host.start, host.end, self.buffer.len());
        if start > end || end > len {
            return Err(CudaError::OutOfBounds { start, end, len });
        }
        if host.len() != region.len() {
            return Err(CudaError::OutOfBounds { start: 0, end: host.len(), len: region.len() });
        }
        Ok(region.len())
    }
}

/// Pinned memory that the host fills and a stream uploads, repeatedly.
///
/// ```text
/// host     fill 1 | enqueue | fill 2 (waits for upload 1, which is long over) | enqueue | fill 3 ..
/// stream            |upload 1|----------- step 1 -----------|                   |upload 2|--- step 2 ..
/// ```
/// One buffer is enough: a step begins with its upload, so the host can fill the buffer during the rest of the step.
pub struct Staging {
    buffer: PinnedBuffer,
    taken: Event,
    on_the_way: bool,
}

impl Staging {
    /// `len` pinned bytes.
    ///
    /// # Errors
    /// [`CudaError::Driver`] if the host is out of memory.
    pub fn new(context: &Arc<Context>, len: usize) -> Result<Staging, CudaError> {
        Ok(Staging { buffer: PinnedBuffer::new(context, len)?, taken: Event::new(context)?, on_the_way: false })
    }

    /// The bytes, after waiting for the last upload.
    ///
    /// # Errors
    /// [`CudaError::Driver`] with any error of the stream.
    pub fn fill(&mut self) -> Result<&mut [u8], CudaError> {
        if self.on_the_way {
            self.taken.synchronize()?;
            self.on_the_way = false;
        }
        Ok(&mut self.buffer)
    }

    /// Enqueues a copy of parts of it to as many regions.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`] if a range is out of bounds or a length differs; [`CudaError::Driver`].
    pub fn upload(&mut self, parts: &[(Range<usize>, &Region)], stream: &Stream) -> Result<(), CudaError> {
        let driver = stream.context().enter()?;
        for (from, to) in parts {
            let (start, end, len) = (from.start, from.end, self.buffer.len());
            if start > end || end > len || from.len() != to.len() {
                return Err(CudaError::OutOfBounds { start, end, len: len.min(start + to.len()) });
            }
            self.on_the_way = true;
            // SAFETY: both sides have the same number of bytes; the buffers wait for queued work before they are freed, and
            // `fill` waits for the event below before anything writes here.
            unsafe {
                let host = self.buffer.raw().cast::<u8>().add(start).cast();
                call::memcpy_htod_async(driver, to.raw(), host, to.len(), stream.raw())
            }?;
        }
        self.taken.record(stream)
    }
}
