//! Copies of rows within the device: a view of a larger tensor to memory without gaps, and back.
//!
//! ```text
//! view     | row |     gap     | row |     gap     | row |        a pitch of row + gap
//! packed   | row | row | row |                                    a pitch of row
//! ```

use super::{Handle, Slice};
use crate::CudaError;
use crate::call::driver as call;
use crate::sys::driver::{MEMORY_DEVICE, Memcpy2d};

/// Rows of equal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    /// How many.
    pub count: usize,
    /// Bytes of each.
    pub bytes: usize,
    /// Bytes from the beginning of one to the beginning of the next.
    pub pitch: usize,
}

impl Rows {
    /// The same rows without gaps.
    pub fn packed(self) -> Rows {
        Rows { pitch: self.bytes, ..self }
    }

    /// Bytes of the rows themselves.
    pub fn len(self) -> usize {
        self.count * self.bytes
    }

    /// Bytes from the beginning of the first to the end of the last.
    fn span(self) -> usize {
        self.count.saturating_sub(1) * self.pitch + self.bytes
    }
}

/// A copy of rows, bound to memory.
pub(crate) struct RowCopy<'a> {
    from: Slice<'a>,
    to: Slice<'a>,
    rows: [Rows; 2],
}

impl<'a> RowCopy<'a> {
    /// A copy between memory that does not overlap.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`] if rows lie beyond either side.
    pub fn new(from: (Slice<'a>, Rows), to: (Slice<'a>, Rows)) -> Result<RowCopy<'a>, CudaError> {
        for (memory, rows) in [&from, &to] {
            if rows.span() > memory.len() {
                return Err(CudaError::OutOfBounds { start: 0, end: rows.span(), len: memory.len() });
            }
        }
        Ok(RowCopy { from: from.0, to: to.0, rows: [from.1, to.1] })
    }

    /// Enqueues the copy where the handle's work goes.
    ///
    /// # Errors
    /// [`CudaError::Unfit`] if the driver refuses the distance of the rows; [`CudaError::Driver`]; [`CudaError::Cudnn`].
    pub fn enqueue(&self, handle: &Handle) -> Result<(), CudaError> {
        let [from, to] = self.rows;
        let copy = Memcpy2d {
            from_x: 0,
            from_y: 0,
            from_type: MEMORY_DEVICE,
            from_host: std::ptr::null(),
            from: self.from.raw(),
            from_array: std::ptr::null(),
            from_pitch: from.pitch,
            to_x: 0,
            to_y: 0,
            to_type: MEMORY_DEVICE,
            to_host: std::ptr::null_mut(),
            to: self.to.raw(),
            to_array: std::ptr::null(),
            to_pitch: to.pitch,
            width: from.bytes,
            height: from.count,
        };
        let stream = handle.current_stream()?;
        let driver = handle.context().enter()?;
        // SAFETY: `new` checked that all rows lie within both sides, whose buffers wait for queued work before they are
        // freed; callers copy between tensors and a workspace. A handle's stream is alive.
        unsafe { call::memcpy_2d_async(driver, &raw const copy, stream) }.map_err(|error| match error {
            CudaError::Driver { status, .. } if status == crate::sys::driver::DriverStatus::INVALID_VALUE => {
                let what = format!("the driver does not copy rows {} bytes apart", from.pitch.max(to.pitch));
                CudaError::Unfit { layer: "packing a slice", what }
            }
            error => error,
        })
    }
}
