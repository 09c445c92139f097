//! Local response normalization across channels. cuDNN divides alpha by the number of channels itself, as Caffe does;
//! it does not support bf16.

use std::sync::Arc;

use tightfit_conv::problem::Storage;

use super::{Libraries, Map, Work, Write, beta, tables};
use crate::CudaError;
use crate::call::layers as call;
use crate::error::narrow;
use crate::sys::layers::{LrnDescriptor, LrnMode};

/// The constants of a layer.
pub struct Lrn {
    libraries: Arc<Libraries>,
    raw: LrnDescriptor,
}

// SAFETY: every call that takes the descriptor holds the handle's lock.
unsafe impl Send for Lrn {}
// SAFETY: as above.
unsafe impl Sync for Lrn {}

impl Lrn {
    /// y = x / (k + alpha / size · sum of squares)^beta over `size` channels.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`], for example for a size over 16, beta under 0.01 or k under 0.00001, which cuDNN does not
    /// support.
    pub fn new(libraries: &Arc<Libraries>, size: usize, [alpha, beta, k]: [f32; 3]) -> Result<Arc<Lrn>, CudaError> {
        let window = narrow("window", size)?;
        let (calling, layers) = libraries.enter()?;
        let tables = tables(&calling, layers);
        // SAFETY: the context is current; destroyed in `drop`.
        let raw = unsafe { call::create_lrn(tables) }?;
        let lrn = Lrn { libraries: libraries.clone(), raw };
        // SAFETY: the descriptor is alive.
        let set = unsafe { call::set_lrn(tables, raw, window, [alpha, beta, k].map(f64::from)) };
        drop(calling);
        set.map(|()| Arc::new(lrn))
    }

    /// y = normalized x.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`]; [`CudaError::Unfit`] for bf16; [`CudaError::Cudnn`].
    pub fn forward(self: &Arc<Lrn>, x: &Map, y: &Map) -> Result<Work, CudaError> {
        check(x)?;
        let (lrn, x, y) = (self.clone(), x.placed(&self.libraries)?, y.placed(&self.libraries)?);
        Ok(Box::new(move || {
            let (calling, layers) = lrn.libraries.enter()?;
            let (tables, mode) = (tables(&calling, layers), LrnMode::CROSS_CHANNEL_DIM1);
            // SAFETY: all objects are alive, and the memory is as long as the descriptors say.
            unsafe { call::lrn_forward(tables, calling.handle, lrn.raw, mode, x.part(), 0.0, y.part()) }
        }))
    }

    /// dx = the gradient of the normalization.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`]; [`CudaError::Unfit`] for bf16; [`CudaError::Cudnn`].
    pub fn backward(self: &Arc<Lrn>, [y, dy, x]: [&Map; 3], dx: &Map, write: Write) -> Result<Work, CudaError> {
        check(x)?;
        let libraries = &self.libraries;
        let (lrn, dx) = (self.clone(), dx.placed(libraries)?);
        let (y, dy, x) = (y.placed(libraries)?, dy.placed(libraries)?, x.placed(libraries)?);
        Ok(Box::new(move || {
            let (calling, layers) = lrn.libraries.enter()?;
            let (tables, mode) = (tables(&calling, layers), LrnMode::CROSS_CHANNEL_DIM1);
            let read = [y.part(), dy.part(), x.part()];
            // SAFETY: all objects are alive, and the memory is as long as the descriptors say.
            unsafe { call::lrn_backward(tables, calling.handle, lrn.raw, mode, read, beta(write), dx.part()) }
        }))
    }
}

/// Rejects the type that cuDNN would reject only when enqueuing the work.
fn check(map: &Map) -> Result<(), CudaError> {
    if map.storage == Storage::Bf16 {
        let what = "cuDNN does not support it in bf16; use f16-f32, tf32 or f32".to_owned();
        return Err(CudaError::Unfit { layer: "lrn", what });
    }
    Ok(())
}

impl Drop for Lrn {
    fn drop(&mut self) {
        let layers = &self.libraries.layers;
        // SAFETY: made in `new` and destroyed only here.
        self.libraries.handle.destroy(|calling| unsafe { call::destroy_lrn(tables(calling, layers), self.raw) });
    }
}
