//! Dropout. Random numbers depend on the position (SplitMix64's finalizer of seed, layer, step and element), so the
//! mask is the same in any order and on any device, including the CPU.

use std::sync::Arc;

use tightfit_plan::Order;

use super::map::must_be_alike;
use super::{Libraries, Map, Work, Write};
use crate::CudaError;
use crate::error::narrow;
use crate::safe::{Region, blocks};

/// The threshold of a 32-bit random number, below which an element is dropped.
fn threshold(rate: f32) -> u64 {
    (f64::from(rate) * 2_f64.powi(32)) as u64
}

/// Factor of the kept elements.
fn scale(rate: f32) -> f32 {
    1.0 / (1.0 - rate)
}

fn check(x: &Map, y: &Map, mask: &Region) -> Result<(), CudaError> {
    must_be_alike("dropout", &[x, y])?;
    mask.must_hold(x.len())
}

/// y = x with a fraction of `rate` zeroed and the rest scaled up; `mask` gets a byte per element, 1 for kept ones. The maps
/// may be the same; `layer` distinguishes dropout layers, and `first` is the index of the first element in the mini-batch.
/// The draw is for the element's place in the order of files, not in the `order` of a sample here.
///
/// # Errors
/// [`CudaError::OutOfBounds`]; [`CudaError::Driver`]; [`CudaError::TooLarge`].
pub fn dropout(
    libraries: &Arc<Libraries>,
    x: &Map,
    y: &Map,
    mask: &Region,
    rate: f32,
    ((layer, first), order): ((usize, usize), Order),
) -> Result<Work, CudaError> {
    check(x, y, mask)?;
    let kernel = libraries.kernel("dropout", x.storage)?;
    // A map that is not turned has one place of many channels.
    let (channels, area) = if order.is_turned() { (order.channels, order.area) } else { (x.shape.len(), 1) };
    let (channels, area): (u32, u32) = (narrow("channel count", channels)?, narrow("area", area)?);
    let (len, x, y, mask) = (x.len(), x.region.clone(), y.region.clone(), mask.clone());
    let now = libraries.now.clone();
    Ok(Box::new(move || {
        let arguments = [
            (&x).into(),
            (&y).into(),
            (&mask).into(),
            (len as u64).into(),
            channels.into(),
            area.into(),
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

/// y = x scaled up where the mask is 1, 0 elsewhere: the gradient of dropout, and its rerun.
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
