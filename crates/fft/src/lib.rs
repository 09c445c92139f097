//! Plans of Fourier transforms in single precision, for `tightfit-cpu`.
//!
//! Planning a transform takes every algorithm that RustFFT has, as generic code, and compiling that for `f32` takes longer
//! than all other code of the CPU backend. So it is a separate crate, which is compiled once, and not again with the
//! backend's tests or after each of its changes.

use std::sync::Arc;

use realfft::RealFftPlanner;
pub use realfft::{ComplexToReal, RealToComplex};
pub use rustfft::Fft;
use rustfft::FftPlanner;

/// Transforms of one length in both directions. None of them divides by the length.
pub struct Plans<F: ?Sized, B: ?Sized> {
    /// From values to their spectrum.
    pub forward: Arc<F>,
    /// From a spectrum to the values.
    pub back: Arc<B>,
}

/// Transforms of `length` real numbers: their spectrum has `length / 2 + 1` complex ones.
pub fn real(length: usize) -> Plans<dyn RealToComplex<f32>, dyn ComplexToReal<f32>> {
    let mut planner = RealFftPlanner::new();
    Plans { forward: planner.plan_fft_forward(length), back: planner.plan_fft_inverse(length) }
}

/// Transforms of `length` complex numbers.
pub fn complex(length: usize) -> Plans<dyn Fft<f32>, dyn Fft<f32>> {
    let mut planner = FftPlanner::new();
    Plans { forward: planner.plan_fft_forward(length), back: planner.plan_fft_inverse(length) }
}
