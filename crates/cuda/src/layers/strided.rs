//! Copies and sums of maps, or of some of their channels: what concatenation and addition consist of, both ways.

use std::sync::Arc;

use super::map::Placed;
use super::{Libraries, Map, Work, beta, tables};
use crate::CudaError;
use crate::call::layers as call;

/// y = x, or x added to y; both have the same elements.
///
/// # Errors
/// [`CudaError::OutOfBounds`]; [`CudaError::Unfit`] for maps of different lengths; [`CudaError::Cudnn`].
pub fn copy(libraries: &Arc<Libraries>, x: &Map, y: &Map, added: bool) -> Result<Work, CudaError> {
    copy_channels(libraries, (x, 0), (y, 0), x.shape.channels(), added)
}

/// y = x + y: the second summand of an addition.
///
/// # Errors
/// As [`copy`].
pub fn add(libraries: &Arc<Libraries>, x: &Map, y: &Map) -> Result<Work, CudaError> {
    copy(libraries, x, y, true)
}

/// Some channels of y = as many of x, or those of x added to them; each side says its first channel.
///
/// # Errors
/// As [`copy`].
pub fn copy_channels(
    libraries: &Arc<Libraries>,
    (x, x_first): (&Map, usize),
    (y, y_first): (&Map, usize),
    channels: usize,
    added: bool,
) -> Result<Work, CudaError> {
    let missing = x_first + channels > x.shape.channels() || y_first + channels > y.shape.channels();
    if x.samples != y.samples || x.area() != y.area() || x.storage != y.storage || missing {
        let what = format!(
            "{channels} channels from {x_first} on of {} samples of {} cannot be those from {y_first} on of {} of {}",
            x.samples, x.shape, y.samples, y.shape
        );
        return Err(CudaError::Unfit { layer: "copy", what });
    }
    x.check()?;
    y.check()?;
    let place =
        |map: &Map, first| -> Result<Placed, CudaError> { map.channels(libraries, first, channels, map.shape.len()) };
    let (x, y, libraries) = (place(x, x_first)?, place(y, y_first)?, libraries.clone());
    Ok(Box::new(move || {
        let (calling, layers) = libraries.enter()?;
        // SAFETY: all objects are alive, and the memory is as long as the descriptors say.
        unsafe { call::transform_tensor(tables(&calling, layers), calling.handle, x.part(), beta(added), y.part()) }
    }))
}
