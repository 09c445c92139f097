//! Probabilities of the classes, and the gradient of their mean cross-entropy with the labels.

use std::sync::Arc;

use super::{Libraries, Map, Work, Write, tables};
use crate::CudaError;
use crate::call::layers as call;
use crate::error::narrow;
use crate::safe::{Region, blocks};
use crate::sys::layers::{SoftmaxAlgorithm, SoftmaxMode};

/// y = the softmax of each sample of x. The maps may be the same.
///
/// # Errors
/// [`CudaError::OutOfBounds`]; [`CudaError::Cudnn`].
pub fn softmax(libraries: &Arc<Libraries>, x: &Map, y: &Map) -> Result<Work, CudaError> {
    let (x, y, libraries) = (x.placed(libraries)?, y.placed(libraries)?, libraries.clone());
    Ok(Box::new(move || {
        let (calling, layers) = libraries.enter()?;
        let kind = (SoftmaxAlgorithm::ACCURATE, SoftmaxMode::INSTANCE);
        // SAFETY: all objects are alive, and the memory is as long as the descriptors say.
        unsafe {
            call::softmax_forward(tables(&calling, layers), calling.handle, kind.0, kind.1, x.part(), 0.0, y.part())
        }
    }))
}

/// dx = (y - 1 at the label) · loss scale / batch. The maps may be the same; `labels` has one class (u32) per sample.
///
/// # Errors
/// [`CudaError::OutOfBounds`]; [`CudaError::TooLarge`]; [`CudaError::Driver`].
pub fn loss_gradient(
    libraries: &Arc<Libraries>,
    y: &Map,
    labels: &Region,
    dx: &Map,
    batch: usize,
    write: Write,
) -> Result<Work, CudaError> {
    y.check()?;
    dx.check()?;
    labels.must_hold(y.samples * 4)?;
    if dx.len() != y.len() || dx.storage != y.storage {
        let what = format!("{} gradients of {} probabilities", dx.len(), y.len());
        return Err(CudaError::Unfit { layer: "softmax-loss", what });
    }
    let classes = y.shape.len();
    let classes: u32 = narrow("class count", classes)?;
    let kernel = libraries.kernel("loss_gradient", y.storage)?;
    let (y, labels, dx, now) = (y.clone(), labels.clone(), dx.region.clone(), libraries.now.clone());
    Ok(Box::new(move || {
        let len = y.len();
        let arguments = [
            (&y.region).into(),
            (&labels).into(),
            (&dx).into(),
            (len as u64).into(),
            classes.into(),
            (batch as f32).into(),
            u32::from(write == Write::Add).into(),
            (&now).into(),
        ];
        // SAFETY: the kernel's parameters in its order; all memory is alive and was checked to be long enough.
        unsafe { kernel.launch(blocks(len), &arguments) }
    }))
}
