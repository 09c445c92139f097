//! Biases: a number added to every channel, and its gradient, which sums each channel over samples and area in two
//! stages of fixed order, always in f32.

use std::sync::Arc;

use tightfit_conv::problem::Storage;

use super::convolution::Widen;
use super::map::TensorView;
use super::rows::Rows;
use super::{Libraries, Map, Work, Write, tables};
use crate::CudaError;
use crate::call::layers as call;
use crate::error::narrow;
use crate::safe::{Region, blocks};

/// Maximum number of blocks per channel.
const MAX_BLOCKS_PER_CHANNEL: usize = 32;

/// y = y + the bias of each channel, which has the map's type.
///
/// # Errors
/// [`CudaError::OutOfBounds`]; [`CudaError::Cudnn`].
pub fn add_bias(libraries: &Arc<Libraries>, bias: &Region, y: &Map) -> Result<Work, CudaError> {
    if y.is_channels_last() && y.area() > 1 {
        return add_bias_last(libraries, bias, y);
    }
    let ones = if y.shape.extents().len() == 3 { 3 } else { 2 };
    let extents = [vec![1, y.shape.channels()], vec![1; ones]].concat();
    let bias = TensorView::packed(libraries, y.storage, &extents, bias)?;
    let (y, libraries) = (y.placed(libraries)?, libraries.clone());
    Ok(Box::new(move || {
        let (calling, layers) = libraries.enter()?;
        // SAFETY: all objects are alive, and the memory is as long as the descriptors say.
        unsafe { call::add_tensor(tables(&calling, layers), calling.handle, bias.part(), 1.0, y.part()) }
    }))
}

/// db = dy summed over samples and area, or db + that, in f32.
///
/// # Errors
/// [`CudaError::OutOfBounds`]; [`CudaError::TooLarge`]; [`CudaError::OutOfMemory`] for the partial sums.
pub fn bias_gradient(libraries: &Arc<Libraries>, dy: &Map, db: &Region, write: Write) -> Result<Work, CudaError> {
    dy.check()?;
    if dy.is_channels_last() {
        return bias_gradient_last(libraries, dy, db, write);
    }
    let (channels, area, parts) = (dy.shape.channels(), dy.area(), dy.samples.min(MAX_BLOCKS_PER_CHANNEL));
    db.must_hold(channels * Storage::F32.size())?;
    let largest = dy.samples.div_ceil(parts.max(1)) * area;
    if largest >= 1 << 31 {
        return Err(CudaError::TooLarge { what: "share of a channel", value: largest });
    }
    let (samples, count): (u32, u32) = (narrow("sample count", dy.samples)?, narrow("channel count", channels)?);
    // Under 2^31 and at most 32.
    let (area, parts) = (area as u32, parts as u32);
    let (each, all) = (channels * Storage::F32.size(), channels * parts as usize * Storage::F32.size());
    let scratch = libraries.scratch(all + each)?;
    let partial = scratch.part(0..all)?;
    let (sums, added) = match write {
        Write::Overwrite => (db.clone(), None),
        Write::Add => {
            let sums = scratch.part(all..all + each)?;
            let added = Widen::new(libraries, Storage::F32, (&sums, db), channels, write)?;
            (sums, Some(added))
        }
    };
    let (first, second) = (libraries.kernel("channel_sums", dy.storage)?, libraries.kernels.get("sum_parts")?);
    let dy = dy.region.clone();
    Ok(Box::new(move || {
        let arguments = [(&dy).into(), (&partial).into(), samples.into(), count.into(), area.into()];
        // SAFETY: the kernel's parameters in its order; all memory is alive and was checked to be long enough.
        unsafe { first.launch([count, parts], &arguments) }?;
        let arguments = [(&partial).into(), (&sums).into(), count.into(), parts.into()];
        // SAFETY: as above.
        unsafe { second.launch(blocks(channels), &arguments) }?;
        added.as_ref().map_or(Ok(()), Widen::enqueue)
    }))
}

/// The sum with the channels last.
fn add_bias_last(libraries: &Arc<Libraries>, bias: &Region, y: &Map) -> Result<Work, CudaError> {
    y.check()?;
    let channels = y.shape.channels();
    bias.must_hold(channels * y.storage.size())?;
    let rows = Rows::copying(y, channels, &[&y.region], &[])?;
    let kernel = libraries.kernel_last("add_bias_last", y.storage)?;
    let (bias, y) = (bias.clone(), y.region.clone());
    Ok(Box::new(move || {
        let [count, channels, lanes] = rows.arguments();
        let arguments = [(&bias).into(), (&y).into(), count, channels, lanes, rows.width()];
        // SAFETY: the kernel's parameters in its order; all memory is alive and was checked to be long enough.
        unsafe { kernel.launch(rows.grid(), &arguments) }
    }))
}

/// The gradient with the channels last.
fn bias_gradient_last(libraries: &Arc<Libraries>, dy: &Map, db: &Region, write: Write) -> Result<Work, CudaError> {
    let channels = dy.shape.channels();
    db.must_hold(channels * Storage::F32.size())?;
    let rows = Rows::summing(dy, &[&dy.region])?;
    let partial = libraries.scratch(rows.parts as usize * channels * Storage::F32.size())?;
    let sums = libraries.kernel_last("bias_sums_last", dy.storage)?;
    let total = libraries.kernels_last()?.get("bias_gradient_last")?;
    let (dy, db) = (dy.region.clone(), db.clone());
    Ok(Box::new(move || {
        let [count, channels, lanes] = rows.arguments();
        let arguments = [(&dy).into(), (&partial).into(), count, channels, lanes, rows.width()];
        // SAFETY: the kernel's parameters in its order; all memory is alive and was checked to be long enough.
        unsafe { sums.launch(rows.grid(), &arguments) }?;
        let add = u32::from(write == Write::Add).into();
        let arguments = [(&partial).into(), (&db).into(), channels, rows.parts.into(), add];
        // SAFETY: as above.
        unsafe { total.launch(rows.totals(), &arguments) }
    }))
}
