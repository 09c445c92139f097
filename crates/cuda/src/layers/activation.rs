//! ReLU, in place or not.

use std::sync::Arc;

use super::map::must_be_alike;
use super::rows::PACK;
use super::{Libraries, Map, Work, Write};
use crate::CudaError;
use crate::safe::blocks;

/// y = max(x, 0), or NaN where x is. The maps may be the same.
///
/// # Errors
/// [`CudaError::OutOfBounds`]; [`CudaError::Unfit`] for maps of different lengths or types; [`CudaError::Driver`].
pub fn relu(libraries: &Arc<Libraries>, x: &Map, y: &Map) -> Result<Work, CudaError> {
    must_be_alike("relu", &[x, y])?;
    let kernel = libraries.kernel("relu", x.storage)?;
    let (len, packs) = (x.len(), packs(x));
    let (x, y) = (x.region.clone(), y.region.clone());
    Ok(Box::new(move || {
        let arguments = [(&x).into(), (&y).into(), (len as u64).into()];
        // SAFETY: the kernel's parameters in its order; all memory is alive and was checked to be long enough. A thread reads its
        // elements before it writes them, so maps may be the same.
        unsafe { kernel.launch(blocks(packs), &arguments) }
    }))
}

/// dx = dy where y is positive, 0 elsewhere, or that added to dx. The gradients may be the same map.
///
/// # Errors
/// As [`relu`].
pub fn relu_gradient(libraries: &Arc<Libraries>, y: &Map, dy: &Map, dx: &Map, write: Write) -> Result<Work, CudaError> {
    must_be_alike("relu", &[y, dy, dx])?;
    let kernel = libraries.kernel("relu_gradient", y.storage)?;
    let (len, packs) = (y.len(), packs(y));
    // y has the sign of x, which was overwritten if ReLU worked in place.
    let (y, dy, dx) = (y.region.clone(), dy.region.clone(), dx.region.clone());
    Ok(Box::new(move || {
        let add = u32::from(write == Write::Add);
        let arguments = [(&y).into(), (&dy).into(), (&dx).into(), (len as u64).into(), add.into()];
        // SAFETY: the kernel's parameters in its order; all memory is alive and was checked to be long enough. A thread reads its
        // elements before it writes them, so maps may be the same.
        unsafe { kernel.launch(blocks(packs), &arguments) }
    }))
}

/// Accesses of a map, for which there is a thread each.
fn packs(map: &Map) -> usize {
    (map.len() * map.storage.size()).div_ceil(PACK)
}
