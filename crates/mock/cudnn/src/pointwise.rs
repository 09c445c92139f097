//! Pointwise operations: y = alpha1 * x, alpha1 * x + alpha2 * b, or (alpha1 * x) * (alpha2 * b), computed in f32 and
//! rounded once, each tensor to its type. A dimension of size 1 is repeated.

use std::ffi::c_int;

use crate::control;
use crate::status::Status;
use crate::tensor::Tensor;
use tightfit_mock_support::driver::{self, HeldRange, Work};

/// The operation on each pair of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `CUDNN_POINTWISE_ADD`
    Add,
    /// `CUDNN_POINTWISE_MUL`
    Mul,
    /// `CUDNN_POINTWISE_IDENTITY`
    Identity,
}

impl Mode {
    /// The mode of cuDNN's number.
    ///
    /// # Errors
    /// [`Status::NOT_SUPPORTED`] for the many not known here.
    pub fn from_raw(raw: i32) -> Result<Mode, Status> {
        match raw {
            0 => Ok(Mode::Add),
            1 => Ok(Mode::Mul),
            21 => Ok(Mode::Identity),
            _ => Err(Status::NOT_SUPPORTED),
        }
    }
}

/// One pointwise operation.
#[derive(Clone, Debug)]
pub struct Pointwise {
    /// The operation.
    pub mode: Mode,
    /// First input.
    pub x: Tensor,
    /// Second input, or `None` for identity.
    pub b: Option<Tensor>,
    /// Output.
    pub y: Tensor,
    /// Factor of x.
    pub alpha1: f32,
    /// Factor of b.
    pub alpha2: f32,
}

impl Pointwise {
    /// Checks that the mode has its inputs and the sizes fit.
    ///
    /// # Errors
    /// [`Status::BAD_PARAM`], [`Status::SHAPE_MISMATCH`].
    pub fn check(&self) -> Result<(), Status> {
        if self.b.is_some() != (self.mode != Mode::Identity) {
            return Err(Status::BAD_PARAM);
        }
        let fits = |t: &Tensor| {
            t.dims.len() == self.y.dims.len() && t.dims.iter().zip(&self.y.dims).all(|(&own, &y)| own == y || own == 1)
        };
        if fits(&self.x) && self.b.iter().all(fits) { Ok(()) } else { Err(Status::SHAPE_MISMATCH) }
    }

    /// Virtual time in nanoseconds.
    pub fn nanos(&self) -> u64 {
        2_000 + self.y.len() as u64 / 100
    }

    /// Enqueues the operation on a stream, or into a graph. The addresses are x, b (0 without) and y, and y may be one of
    /// the inputs.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn launch(&self, stream: usize, [x, b, y]: [usize; 3]) -> Result<(), Status> {
        // As an H200 under cuDNN 9.19 does it: a grid of more than 65535 blocks of 32 channels.
        if self.y.dims.get(1).is_some_and(|&channels| channels > 65_535 * 32) {
            return Err(Status::EXECUTION_FAILED_DRIVER);
        }
        control::on_execution(None, false);
        let mut operation = self.clone();
        if self.b.as_ref().is_some_and(|b| b.is_by_value) {
            // SAFETY: the caller gives the address of a number of the host's, alive during this call.
            operation.alpha2 *= unsafe { (b as *const f32).read_unaligned() };
            operation.b = None;
        }
        let work: Work = Box::new(move || operation.run(x, b, y).err().unwrap_or(0));
        Ok(driver::enqueue(stream, self.nanos(), work)?)
    }

    fn run(&self, x: usize, b: usize, y: usize) -> Result<(), c_int> {
        let load = |tensor: &Tensor, address: usize| -> Result<Vec<f32>, c_int> {
            let _held = HeldRange::range(address, tensor.extent())?;
            let offsets = tensor.offsets(&self.y.dims);
            // SAFETY: every offset is within the extent, which is held.
            Ok(offsets.iter().map(|&o| unsafe { tensor.data_type.read(address as *const u8, o) }).collect())
        };
        let x = load(&self.x, x)?;
        let b = self.b.as_ref().map(|tensor| load(tensor, b)).transpose()?;
        let _held = HeldRange::range(y, self.y.extent())?;
        for (i, offset) in self.y.offsets(&self.y.dims).into_iter().enumerate() {
            let (left, right) = (self.alpha1 * x[i], self.alpha2 * b.as_ref().map_or(1.0, |b| b[i]));
            let value = match self.mode {
                Mode::Add => left + right,
                Mode::Mul => left * right,
                Mode::Identity => left,
            };
            // SAFETY: every offset is within the extent, which is held.
            unsafe { self.y.data_type.write(y as *mut u8, offset, value) };
        }
        Ok(())
    }
}
