//! A part of device memory that keeps its buffer alive, for prepared work that is enqueued any number of times.
//!
//! A region guarantees that the bytes exist. When they are read and written is up to the schedule and its checker.

use std::ops::Range;
use std::sync::Arc;

use super::{DeviceBuffer, Slice, Stream};
use crate::CudaError;
use crate::call::driver as call;
use crate::sys::DevicePtr;

/// Bytes of a buffer that several owners share.
#[derive(Clone)]
pub struct Region {
    buffer: Arc<DeviceBuffer>,
    range: Range<usize>,
}

impl Region {
    /// Bytes of a buffer.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`].
    pub fn new(buffer: &Arc<DeviceBuffer>, range: Range<usize>) -> Result<Region, CudaError> {
        buffer.slice(range.clone())?;
        Ok(Region { buffer: buffer.clone(), range })
    }

    /// A part of this part.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`].
    pub fn part(&self, range: Range<usize>) -> Result<Region, CudaError> {
        self.slice()?.part(range.clone())?;
        let start = self.range.start;
        Ok(Region { buffer: self.buffer.clone(), range: start + range.start..start + range.end })
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The bytes in the form that calls accept.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`], which `new` has excluded.
    pub fn slice(&self) -> Result<Slice<'_>, CudaError> {
        self.buffer.slice(self.range.clone())
    }

    /// Enqueues filling it with one byte.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn fill(&self, byte: u8, stream: &Stream) -> Result<(), CudaError> {
        if self.is_empty() {
            return Ok(());
        }
        let driver = stream.context().enter()?;
        // SAFETY: the bytes are the buffer's, which waits for queued work before it is freed.
        unsafe { call::memset_d8_async(driver, self.raw(), byte, self.len(), stream.raw()) }
    }

    /// Copies host memory to it, after all work enqueued on the device so far, and waits.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`] if the lengths differ; [`CudaError::Driver`].
    pub fn upload(&self, from: &[u8]) -> Result<(), CudaError> {
        if from.len() != self.len() {
            return Err(CudaError::OutOfBounds { start: 0, end: from.len(), len: self.len() });
        }
        self.buffer.write(self.range.start, from)
    }

    /// Fails if it has fewer than `bytes` bytes.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`].
    pub fn must_hold(&self, bytes: usize) -> Result<(), CudaError> {
        if bytes <= self.len() { Ok(()) } else { Err(CudaError::OutOfBounds { start: 0, end: bytes, len: self.len() }) }
    }

    pub(crate) fn raw(&self) -> DevicePtr {
        self.buffer.raw().offset(self.range.start)
    }
}
