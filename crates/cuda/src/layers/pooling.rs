//! Largest or mean element of windows.
//!
//! cuDNN takes the number of windows from the output's extents, so that a last window that the edge cuts needs no word of
//! its own, nor does padding that differs before and after.

use std::ffi::c_int;
use std::sync::Arc;

use tightfit_core::Axis;
use tightfit_core::network::{Pooling, PoolingMethod};

use super::{Libraries, Map, Work, beta, tables};
use crate::CudaError;
use crate::call::layers as call;
use crate::sys::layers::{PoolingDescriptor, PoolingMode};

/// A pooling's windows. Where several elements of a window are the largest, cuDNN gives the gradient to one of them, the
/// same at every call.
pub struct Pool {
    libraries: Arc<Libraries>,
    raw: PoolingDescriptor,
}

// SAFETY: every call that takes the descriptor holds the handle's lock.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// The windows of a layer; `dimensions` of its axes, the last ones, are in use.
    ///
    /// # Errors
    /// [`CudaError::TooLarge`]; [`CudaError::Unfit`] for dilated windows; [`CudaError::Cudnn`].
    pub fn new(libraries: &Arc<Libraries>, pooling: &Pooling, dimensions: usize) -> Result<Arc<Pool>, CudaError> {
        let axes = &pooling.axes[3 - dimensions.clamp(2, 3)..];
        if let Some(axis) = axes.iter().find(|axis| axis.dilation != 1) {
            let what = format!("windows of dilation {}; cuDNN has none, use windows without", axis.dilation);
            return Err(CudaError::Unfit { layer: "pooling", what });
        }
        let each = |what: &'static str, field: fn(&Axis) -> usize| -> Result<Vec<c_int>, CudaError> {
            let narrow = |value: usize| c_int::try_from(value).map_err(|_| CudaError::TooLarge { what, value });
            axes.iter().map(|axis| narrow(field(axis))).collect()
        };
        let windows = each("window", |axis| axis.filter)?;
        let (padding, strides) = (each("padding", |axis| axis.pad_before)?, each("stride", |axis| axis.stride)?);
        let mode = match pooling.method {
            PoolingMethod::Maximum => PoolingMode::MAX_DETERMINISTIC,
            PoolingMethod::Average => PoolingMode::AVERAGE_COUNT_EXCLUDE_PADDING,
        };
        let (calling, layers) = libraries.enter()?;
        let tables = tables(&calling, layers);
        // SAFETY: the context is current; destroyed in `drop`.
        let raw = unsafe { call::create_pooling(tables) }?;
        let pool = Pool { libraries: libraries.clone(), raw };
        // SAFETY: the descriptor is alive.
        let set = unsafe { call::set_pooling(tables, raw, mode, [&windows, &padding, &strides]) };
        drop(calling);
        set.map(|()| Arc::new(pool))
    }

    /// y = the windows of x.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`]; [`CudaError::Cudnn`].
    pub fn forward(self: &Arc<Pool>, x: &Map, y: &Map) -> Result<Work, CudaError> {
        let (pool, x, y) = (self.clone(), x.placed(&self.libraries)?, y.placed(&self.libraries)?);
        Ok(Box::new(move || {
            let (calling, layers) = pool.libraries.enter()?;
            // SAFETY: all objects are alive, and the memory is as long as the descriptors say.
            unsafe {
                call::pooling_forward(tables(&calling, layers), calling.handle, pool.raw, x.part(), 0.0, y.part())
            }
        }))
    }

    /// dx = the windows' shares of dy. An average reads neither x nor y: any memory of their size serves.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`]; [`CudaError::Cudnn`].
    pub fn backward(self: &Arc<Pool>, [y, dy, x]: [&Map; 3], dx: &Map, added: bool) -> Result<Work, CudaError> {
        let libraries = &self.libraries;
        let (pool, dx) = (self.clone(), dx.placed(libraries)?);
        let (y, dy, x) = (y.placed(libraries)?, dy.placed(libraries)?, x.placed(libraries)?);
        Ok(Box::new(move || {
            let (calling, layers) = pool.libraries.enter()?;
            let read = [y.part(), dy.part(), x.part()];
            // SAFETY: all objects are alive, and the memory is as long as the descriptors say.
            unsafe {
                call::pooling_backward(tables(&calling, layers), calling.handle, pool.raw, read, beta(added), dx.part())
            }
        }))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let layers = &self.libraries.layers;
        // SAFETY: made in `new` and destroyed only here.
        self.libraries.handle.destroy(|calling| unsafe { call::destroy_pooling(tables(calling, layers), self.raw) });
    }
}
