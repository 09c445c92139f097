//! The layers other than convolutions, computed in f32 and rounded once, every sum in the order of the index.
//!
//! `descriptor` the descriptors of layers · `elementwise` sums, copies · `pooling`, `lrn`, `softmax`

mod descriptor;
mod elementwise;
mod lrn;
mod pooling;
mod softmax;

use std::ffi::c_int;

pub use descriptor::{ActivationFunction, activation, count, reset};

use crate::legacy::tensor;
use crate::status::Status;
use crate::tensor::Tensor;
use crate::{Handle, control, handle};
use tightfit_mock_support::driver::{self, HeldRange, Work};

/// A tensor in memory, to be held once the stream gets there.
#[derive(Clone)]
pub struct PlacedTensor {
    /// Its shape and type.
    pub tensor: Tensor,
    address: usize,
}

impl PlacedTensor {
    /// The tensor of a descriptor at an address.
    pub fn new(descriptor: Handle, address: usize) -> Result<PlacedTensor, Status> {
        if address == 0 {
            return Err(Status::NULL_POINTER);
        }
        Ok(PlacedTensor { tensor: tensor(descriptor)?, address })
    }

    /// All elements by index, the last dimension fastest.
    pub fn load(&self) -> Result<Vec<f32>, c_int> {
        let _held = HeldRange::range(self.address, self.tensor.extent())?;
        let offsets = self.tensor.offsets(&self.tensor.dims);
        let read = |offset| {
            // SAFETY: every offset is within the extent, which is held.
            unsafe { self.tensor.data_type.read(self.address as *const u8, offset) }
        };
        Ok(offsets.into_iter().map(read).collect())
    }

    /// Stores values plus beta times the old ones; a beta of 0 does not read these.
    pub fn store(&self, values: &[f32], beta: f32) -> Result<(), c_int> {
        let _held = HeldRange::range(self.address, self.tensor.extent())?;
        for (offset, value) in self.tensor.offsets(&self.tensor.dims).into_iter().zip(values) {
            let base = self.address as *mut u8;
            // SAFETY: every offset is within the extent, which is held.
            let before = if beta == 0.0 { 0.0 } else { beta * unsafe { self.tensor.data_type.read(base, offset) } };
            // SAFETY: as above.
            unsafe { self.tensor.data_type.write(base, offset, value + before) };
        }
        Ok(())
    }

    /// Whether both are the same memory.
    pub fn is_at(&self, other: &PlacedTensor) -> bool {
        self.address == other.address
    }

    /// Samples, channels and elements of a channel.
    pub fn sizes(&self) -> [usize; 3] {
        let dims: Vec<usize> = self.tensor.dims.iter().map(|&dim| dim as usize).collect();
        [dims[0], dims[1], dims[2..].iter().product()]
    }

    /// Refuses another shape.
    pub fn same(&self, other: &PlacedTensor) -> Result<(), Status> {
        if self.tensor.dims == other.tensor.dims { Ok(()) } else { Err(Status::BAD_PARAM) }
    }
}

/// A factor, which may not be null.
pub fn factor(value: Option<&f32>) -> Result<f32, Status> {
    value.copied().ok_or(Status::NULL_POINTER)
}

/// Puts a layer on the handle's stream; `elements` give its virtual time.
pub fn enqueue(
    handle: Handle,
    elements: usize,
    run: impl Fn() -> Result<(), c_int> + Send + Sync + 'static,
) -> Result<(), Status> {
    let stream = handle::stream_of(handle)?;
    control::on_execution(None, false);
    let work: Work = Box::new(move || run().err().unwrap_or(0));
    Ok(driver::enqueue(stream, 2_000 + elements as u64 / 100, work)?)
}
