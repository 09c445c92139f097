//! Copies and sums of maps or of some of their channels, the building blocks of concatenation and addition in both
//! directions.

use std::sync::Arc;

use super::rows::Rows;
use super::{Libraries, Map, Work, Write};
use crate::CudaError;
use crate::safe::{THREADS, row_blocks};

/// y = x, or x added to y; both have the same elements.
///
/// # Errors
/// [`CudaError::OutOfBounds`]; [`CudaError::Unfit`] for maps of different lengths; [`CudaError::Driver`].
pub fn copy(libraries: &Arc<Libraries>, x: &Map, y: &Map, write: Write) -> Result<Work, CudaError> {
    copy_channels(libraries, (x, 0), (y, 0), x.shape.channels(), write)
}

/// y = x + y, with `relu` 0 where that is negative: the last summand of an addition.
///
/// # Errors
/// As [`copy`]; also for maps of different shapes.
pub fn add(libraries: &Arc<Libraries>, x: &Map, y: &Map, relu: bool) -> Result<Work, CudaError> {
    if x.shape != y.shape {
        return Err(CudaError::Unfit { layer: "add", what: format!("{} and {}", x.shape, y.shape) });
    }
    copy_maps(libraries, (x, 0), (y, 0), x.shape.channels(), (Write::Add, relu))
}

/// Copies or adds some channels of x to the same number of channels of y. Each side has its first channel.
///
/// # Errors
/// As [`copy`].
pub fn copy_channels(
    libraries: &Arc<Libraries>,
    (x, x_first): (&Map, usize),
    (y, y_first): (&Map, usize),
    channels: usize,
    write: Write,
) -> Result<Work, CudaError> {
    copy_maps(libraries, (x, x_first), (y, y_first), channels, (write, false))
}

/// The same, followed by a ReLU, which only whole maps can have.
fn copy_maps(
    libraries: &Arc<Libraries>,
    (x, x_first): (&Map, usize),
    (y, y_first): (&Map, usize),
    channels: usize,
    (write, relu): (Write, bool),
) -> Result<Work, CudaError> {
    let missing = x_first + channels > x.shape.channels() || y_first + channels > y.shape.channels();
    if x.samples != y.samples || x.area() != y.area() || x.storage != y.storage || x.layout != y.layout || missing {
        let what = format!(
            "{channels} channels from {x_first} on of {} samples of {} cannot be those from {y_first} on of {} of {}",
            x.samples, x.shape, y.samples, y.shape
        );
        return Err(CudaError::Unfit { layer: "copy", what });
    }
    x.check()?;
    y.check()?;
    let is_whole = x.shape.channels() == channels && y.shape.channels() == channels;
    if x.is_channels_last() && !is_whole {
        return copy_channels_last(libraries, (x, x_first), (y, y_first), channels, write);
    }
    let kernel = libraries.kernel("copy_rows", x.storage)?;
    let (area, size, x_row, y_row) = (x.area(), x.storage.size(), x.shape.len(), y.shape.len());
    // Whole maps are one row.
    let whole = x_row == y_row && channels * area == x_row;
    let (rows, width) = if whole { (1, x.len()) } else { (x.samples, channels * area) };
    let from = |map: &Map, first: usize| map.region.part(first * area * size..map.region.len());
    let (x, y) = (from(x, x_first)?, from(y, y_first)?);
    // Sixteen bytes per thread.
    let blocks = row_blocks(width.div_ceil(16 / size * THREADS), rows);
    Ok(Box::new(move || {
        let [rows, width, x_row, y_row] = [rows, width, x_row, y_row].map(|count| (count as u64).into());
        let flags = [u32::from(write == Write::Add).into(), u32::from(relu).into()];
        let arguments = [&[(&x).into(), (&y).into(), rows, width, x_row, y_row], &flags[..]].concat();
        // SAFETY: the kernel's parameters in its order; all memory is alive, and each map, of which a row begins with these
        // channels, was checked to be long enough.
        unsafe { kernel.launch(blocks, &arguments) }
    }))
}

/// The same with the channels last: each row is one place of a sample.
fn copy_channels_last(
    libraries: &Arc<Libraries>,
    (x, x_first): (&Map, usize),
    (y, y_first): (&Map, usize),
    channels: usize,
    write: Write,
) -> Result<Work, CudaError> {
    let kernel = libraries.kernel_last("copy_channels_last", x.storage)?;
    let size = x.storage.size();
    let from = |map: &Map, first: usize| map.region.part(first * size..map.region.len());
    let (x_row, y_row) = (x.shape.channels(), y.shape.channels());
    let (x_from, y_from) = (from(x, x_first)?, from(y, y_first)?);
    let rows = Rows::copying(x, channels, &[&x_from, &y_from], &[x_row, y_row])?;
    Ok(Box::new(move || {
        let [count, channels, lanes] = rows.arguments();
        let [x_row, y_row] = [x_row, y_row].map(|row| (row as u64).into());
        let add = u32::from(write == Write::Add).into();
        let arguments = [(&x_from).into(), (&y_from).into(), count, channels, x_row, y_row, lanes, add, rows.width()];
        // SAFETY: the kernel's parameters in its order; all memory is alive, and each map, of which a row begins with these
        // channels, was checked to be long enough.
        unsafe { kernel.launch(rows.grid(), &arguments) }
    }))
}
