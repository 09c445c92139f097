//! ReLU, in place or not.

use std::sync::Arc;

use super::{Libraries, Map, Work, Write, beta, tables};
use crate::CudaError;
use crate::call::layers as call;
use crate::sys::layers::ActivationDescriptor;

/// cuDNN's descriptor of ReLU.
struct Relu {
    libraries: Arc<Libraries>,
    raw: ActivationDescriptor,
}

// SAFETY: every call that takes the descriptor holds the handle's lock.
unsafe impl Send for Relu {}
// SAFETY: as above.
unsafe impl Sync for Relu {}

impl Relu {
    fn new(libraries: &Arc<Libraries>) -> Result<Relu, CudaError> {
        let (calling, layers) = libraries.enter()?;
        let tables = tables(&calling, layers);
        // SAFETY: the context is current; destroyed in `drop`.
        let raw = unsafe { call::create_activation(tables) }?;
        let relu = Relu { libraries: libraries.clone(), raw };
        // SAFETY: the descriptor is alive.
        let set = unsafe { call::set_relu(tables, raw) };
        drop(calling);
        set.map(|()| relu)
    }
}

impl Drop for Relu {
    fn drop(&mut self) {
        let layers = &self.libraries.layers;
        // SAFETY: made in `new` and destroyed only here.
        self.libraries.handle.destroy(|calling| unsafe { call::destroy_activation(tables(calling, layers), self.raw) });
    }
}

/// y = max(x, 0). The maps may be the same.
///
/// # Errors
/// [`CudaError::OutOfBounds`]; [`CudaError::Cudnn`].
pub fn relu(libraries: &Arc<Libraries>, x: &Map, y: &Map) -> Result<Work, CudaError> {
    let relu = Relu::new(libraries)?;
    let (x, y) = (x.elements(libraries)?, y.elements(libraries)?);
    Ok(Box::new(move || {
        let (calling, layers) = relu.libraries.enter()?;
        // SAFETY: all objects are alive, and the memory is as long as the descriptors say.
        unsafe { call::activation_forward(tables(&calling, layers), calling.handle, relu.raw, x.part(), 0.0, y.part()) }
    }))
}

/// dx = dy where y is positive, 0 elsewhere. The gradients may be the same map.
///
/// # Errors
/// [`CudaError::OutOfBounds`]; [`CudaError::Cudnn`].
pub fn relu_gradient(libraries: &Arc<Libraries>, y: &Map, dy: &Map, dx: &Map, write: Write) -> Result<Work, CudaError> {
    let relu = Relu::new(libraries)?;
    let (y, dy, dx) = (y.elements(libraries)?, dy.elements(libraries)?, dx.elements(libraries)?);
    Ok(Box::new(move || {
        let (calling, layers) = relu.libraries.enter()?;
        // y stands in for x, which was overwritten if ReLU worked in place: both have the same sign.
        let read = [y.part(), dy.part(), y.part()];
        // SAFETY: all objects are alive, and the memory is as long as the descriptors say.
        unsafe {
            call::activation_backward(tables(&calling, layers), calling.handle, relu.raw, read, beta(write), dx.part())
        }
    }))
}
