//! Fully connected layers as matrix products. cuBLAS is column-major, so it sees each row-major matrix as its
//! transpose:
//!
//! ```text
//! y (n, k)  = x (n, i) · w (k, i)ᵀ        y' (k, n)  = w'ᵀ · x'        w' (i, k), x' (i, n)
//! dx (n, i) = dy (n, k) · w (k, i)        dx' (i, n) = w' · dy'
//! dw (k, i) = dy (n, k)ᵀ · x (n, i)       dw' (i, k) = x' · dy'ᵀ       always in f32
//! ```

use std::sync::Arc;

use tightfit_conv::Types;
use tightfit_conv::problem::Storage;

use super::{Libraries, Work, Write, beta};
use crate::CudaError;
use crate::error::narrow;
use crate::safe::{Region, matrix};
use crate::sys::cublas::{ComputeType, DataType};

/// The sizes of a layer.
#[derive(Clone)]
pub struct FullyConnected {
    libraries: Arc<Libraries>,
    samples: i32,
    inputs: i32,
    outputs: i32,
    types: Types,
}

impl FullyConnected {
    /// A layer of `outputs` numbers from `inputs`, for `samples` at once.
    ///
    /// # Errors
    /// [`CudaError::TooLarge`] for sizes over 31 bits; the errors of [`Libraries::blas`].
    pub fn new(
        libraries: &Arc<Libraries>,
        [samples, inputs, outputs]: [usize; 3],
        types: Types,
    ) -> Result<FullyConnected, CudaError> {
        let (samples, inputs) = (narrow("sample count", samples)?, narrow("input count", inputs)?);
        let outputs = narrow("output count", outputs)?;
        libraries.blas()?;
        Ok(FullyConnected { libraries: libraries.clone(), samples, inputs, outputs, types })
    }

    fn data(&self) -> DataType {
        match self.types.storage() {
            Storage::F32 => DataType::R_32F,
            Storage::F16 => DataType::R_16F,
            Storage::Bf16 => DataType::R_16BF,
        }
    }

    /// All types sum in 32 bits; f32 excludes tensor cores, as its convolutions do.
    fn compute(&self) -> ComputeType {
        match self.types {
            Types::F32 => ComputeType::F32_PEDANTIC,
            Types::Tf32 => ComputeType::F32_FAST_TF32,
            Types::F16 | Types::F16F32 | Types::Bf16 => ComputeType::F32,
        }
    }

    /// Fails if regions are shorter than x, y and w.
    fn check(&self, x: &Region, y: &Region, w: (&Region, usize)) -> Result<(), CudaError> {
        let (samples, inputs, outputs) = (self.samples as usize, self.inputs as usize, self.outputs as usize);
        let size = self.types.storage().size();
        x.must_hold(samples * inputs * size)?;
        y.must_hold(samples * outputs * size)?;
        w.0.must_hold(outputs * inputs * w.1)
    }

    /// y = x · wᵀ.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`]; enqueuing [`CudaError::Cublas`].
    pub fn forward(&self, x: &Region, w: &Region, y: &Region) -> Result<Work, CudaError> {
        self.check(x, y, (w, self.types.storage().size()))?;
        let (layer, x, w, y, data) = (self.clone(), x.clone(), w.clone(), y.clone(), self.data());
        let FullyConnected { samples, inputs, outputs, .. } = *self;
        Ok(Box::new(move || {
            let matrices =
                [matrix(&w, data, inputs, true), matrix(&x, data, inputs, false), matrix(&y, data, outputs, false)];
            // SAFETY: the regions are alive and were checked to hold the matrices.
            unsafe { layer.libraries.blas()?.multiply([outputs, samples, inputs], matrices, 0.0, layer.compute()) }
        }))
    }

    /// dx = dy · w.
    ///
    /// # Errors
    /// As [`FullyConnected::forward`].
    pub fn backward_data(&self, dy: &Region, w: &Region, dx: &Region, write: Write) -> Result<Work, CudaError> {
        self.check(dx, dy, (w, self.types.storage().size()))?;
        let (layer, dy, w, dx, data) = (self.clone(), dy.clone(), w.clone(), dx.clone(), self.data());
        let FullyConnected { samples, inputs, outputs, .. } = *self;
        Ok(Box::new(move || {
            let matrices =
                [matrix(&w, data, inputs, false), matrix(&dy, data, outputs, false), matrix(&dx, data, inputs, false)];
            let sizes = [inputs, samples, outputs];
            // SAFETY: the regions are alive and were checked to hold the matrices.
            unsafe { layer.libraries.blas()?.multiply(sizes, matrices, beta(write), layer.compute()) }
        }))
    }

    /// dw (f32) = dyᵀ · x.
    ///
    /// # Errors
    /// As [`FullyConnected::forward`].
    pub fn backward_filter(&self, x: &Region, dy: &Region, dw: &Region, write: Write) -> Result<Work, CudaError> {
        self.check(x, dy, (dw, Storage::F32.size()))?;
        let (layer, x, dy, dw, data) = (self.clone(), x.clone(), dy.clone(), dw.clone(), self.data());
        let FullyConnected { samples, inputs, outputs, .. } = *self;
        Ok(Box::new(move || {
            let result = matrix(&dw, DataType::R_32F, inputs, false);
            let matrices = [matrix(&x, data, inputs, false), matrix(&dy, data, outputs, true), result];
            let sizes = [inputs, outputs, samples];
            // SAFETY: the regions are alive and were checked to hold the matrices.
            unsafe { layer.libraries.blas()?.multiply(sizes, matrices, beta(write), layer.compute()) }
        }))
    }
}
