//! A part of device memory that holds its buffer alive: what prepared work keeps, to be enqueued any number of times.
//!
//! Nothing here says when the bytes are read or written; that is a schedule's business, and its checker's. What a region
//! does say is that the bytes are there.

use std::ops::Range;
use std::sync::Arc;

use super::{DeviceBuffer, Slice};
use crate::CudaError;
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

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The bytes, as calls take them.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`], which `new` has excluded.
    pub fn slice(&self) -> Result<Slice<'_>, CudaError> {
        self.buffer.slice(self.range.clone())
    }

    /// Refuses fewer bytes than `bytes`.
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
