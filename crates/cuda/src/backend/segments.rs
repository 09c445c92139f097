//! Divides one workspace into segments, one per configuration that may run at the same time, with margins that no
//! configuration may write to.
//!
//! ```text
//! | margin | segment of a | margin | segment of b | margin |
//! ```

use std::ops::Range;
use std::sync::Arc;

use crate::CudaError;
use crate::safe::{Context, DeviceBuffer, Slice, Stream};

/// Bytes of a margin and alignment of segments: the alignment of the driver's allocations.
const MARGIN_BYTES: usize = 256;
/// The fill pattern of margins.
const MARGIN_FILL: u8 = 0xA5;

/// A workspace and where its segments are.
pub(super) struct Segments {
    buffer: DeviceBuffer,
    segments: Vec<Range<usize>>,
}

impl Segments {
    /// A workspace of one segment of each of these lengths.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`]; [`CudaError::Driver`].
    pub fn new(context: &Arc<Context>, lengths: &[usize], stream: &Stream) -> Result<Segments, CudaError> {
        let mut segments = Vec::with_capacity(lengths.len());
        let mut end: usize = 0;
        for &length in lengths {
            // A size beyond the address space also exceeds the device, which reports it.
            let start = end.saturating_add(MARGIN_BYTES).div_ceil(MARGIN_BYTES).saturating_mul(MARGIN_BYTES);
            end = start.saturating_add(length);
            segments.push(start..end);
        }
        let mut buffer = DeviceBuffer::new(context, end.saturating_add(MARGIN_BYTES))?;
        for margin in margins(&segments) {
            buffer.slice_mut(margin)?.fill(MARGIN_FILL, stream)?;
        }
        Ok(Segments { buffer, segments })
    }

    /// The segment of one configuration, by its index among the lengths.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`] without one.
    pub fn segment(&self, place: usize) -> Result<Slice<'_>, CudaError> {
        let none = CudaError::OutOfBounds { start: place, end: place + 1, len: self.segments.len() };
        self.buffer.slice(self.segments.get(place).cloned().ok_or(none)?)
    }

    /// Whether all margins are intact, once all work is done.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn are_intact(&self) -> Result<bool, CudaError> {
        for margin in margins(&self.segments) {
            let mut bytes = [0; MARGIN_BYTES];
            self.buffer.slice(margin)?.download(&mut bytes)?;
            if bytes != [MARGIN_FILL; MARGIN_BYTES] {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The bytes right before the first segment and right after each.
fn margins(segments: &[Range<usize>]) -> Vec<Range<usize>> {
    std::iter::once(0)
        .chain(segments.iter().map(|segment| segment.end))
        .map(|start| start..start + MARGIN_BYTES)
        .collect()
}
