//! Dropout. Which elements stay is drawn from their place (SplitMix64's finalizer of seed, layer, step and element), so that
//! the draw is the same in any order and on any device: that of the CPU's layer.

use std::sync::Arc;

use super::{Libraries, Map, Work, Write};
use crate::CudaError;
use crate::safe::{Region, blocks};

/// What a draw of 32 bits is compared with: elements whose draw is less are dropped.
fn threshold(rate: f32) -> u64 {
    (f64::from(rate) * 2_f64.powi(32)) as u64
}

/// Factor of the elements that stay.
fn scale(rate: f32) -> f32 {
    1.0 / (1.0 - rate)
}

fn check(x: &Map, y: &Map, mask: &Region) -> Result<(), CudaError> {
    x.check()?;
    y.check()?;
    mask.must_hold(x.len())?;
    if x.len() != y.len() || x.storage != y.storage {
        let what = format!("{} elements from {}", y.len(), x.len());
        return Err(CudaError::Unfit { layer: "dropout", what });
    }
    Ok(())
}

/// y = x with a share of `rate` zeroed and the rest scaled up; `mask` gets a byte for each element, 1 for one that stays.
/// The maps may be the same; `layer` tells dropouts apart, and `first` is the place of the first element in the mini-batch.
///
/// # Errors
/// [`CudaError::OutOfBounds`]; [`CudaError::Driver`].
pub fn dropout(
    libraries: &Arc<Libraries>,
    x: &Map,
    y: &Map,
    mask: &Region,
    rate: f32,
    (layer, first): (usize, usize),
) -> Result<Work, CudaError> {
    check(x, y, mask)?;
    let kernel = libraries.kernel("dropout", x.storage)?;
    let (len, x, y, mask) = (x.len(), x.region.clone(), y.region.clone(), mask.clone());
    let now = libraries.now.clone();
    Ok(Box::new(move || {
        let arguments = [
            (&x).into(),
            (&y).into(),
            (&mask).into(),
            (len as u64).into(),
            (first as u64).into(),
            (layer as u64).into(),
            threshold(rate).into(),
            scale(rate).into(),
            (&now).into(),
        ];
        // SAFETY: the kernel's parameters in its order; all memory is alive and was checked to be long enough.
        unsafe { kernel.launch(blocks(len), &arguments) }
    }))
}

/// y = x scaled up where the mask is 1, 0 elsewhere: the gradient of a dropout, and the dropout run again.
///
/// # Errors
/// [`CudaError::OutOfBounds`]; [`CudaError::Driver`].
pub fn masked(
    libraries: &Arc<Libraries>,
    x: &Map,
    y: &Map,
    mask: &Region,
    rate: f32,
    write: Write,
) -> Result<Work, CudaError> {
    check(x, y, mask)?;
    let kernel = libraries.kernel("masked", x.storage)?;
    let (len, x, y, mask) = (x.len(), x.region.clone(), y.region.clone(), mask.clone());
    Ok(Box::new(move || {
        let arguments = [
            (&x).into(),
            (&y).into(),
            (&mask).into(),
            (len as u64).into(),
            scale(rate).into(),
            u32::from(write == Write::Add).into(),
        ];
        // SAFETY: the kernel's parameters in its order; all memory is alive and was checked to be long enough.
        unsafe { kernel.launch(blocks(len), &arguments) }
    }))
}
