//! Batch normalization with the channels last, by kernels of this crate: cuDNN's take two to three times their memory traffic.
//!
//! ```text
//! forward    sums of each part of the rows -> statistics of each channel -> y
//! backward   sums of each part of the rows -> gradients of scales and shifts -> dx
//! ```

use std::sync::Arc;

use super::batch_norm::SHARE;
use super::rows::Rows;
use super::{BatchNorm, Libraries, Map, Statistics, Work, Write};
use crate::CudaError;
use crate::safe::{Argument, Region};

/// In place of an epsilon: the statistics have inverse deviations, not variances.
const INVERSE: f32 = -1.0;

/// Memory for two sums of each channel and part.
fn partial(libraries: &Libraries, rows: &Rows) -> Result<Region, CudaError> {
    libraries.scratch(rows.parts as usize * 2 * rows.channels as usize * 4)
}

impl BatchNorm {
    /// Whether the maps have the layer's channels, and are all of one form.
    fn fit(&self, maps: &[&Map]) -> Result<(), CudaError> {
        let one = maps[0];
        for map in maps {
            let alike =
                (map.samples, map.shape, map.storage, map.layout) == (one.samples, one.shape, one.storage, one.layout);
            if !alike || map.shape.channels() != self.channels {
                let (samples, channels) = (map.samples, self.channels);
                let what = format!(
                    "{samples} samples of {} beside {} of {}, for {channels} channels",
                    map.shape, one.samples, one.shape
                );
                return Err(CudaError::Unfit { layer: "batch-normalization", what });
            }
            map.check()?;
        }
        Ok(())
    }

    /// As [`BatchNorm::training`].
    pub(super) fn training_last(
        self: &Arc<BatchNorm>,
        x: &Map,
        y: &Map,
        saved: &Statistics,
        running: &Statistics,
    ) -> Result<Work, CudaError> {
        self.fit(&[x, y])?;
        let libraries = &self.libraries;
        let (summed, written) = (Rows::summing(x, &[&x.region])?, apply_rows(x, y)?);
        let partial = partial(libraries, &summed)?;
        let (saved, running) = (saved.clone(), running.clone());
        let sums = libraries.kernel_last("norm_sums_last", x.storage)?;
        let statistics = libraries.kernel_last("norm_statistics_last", x.storage)?;
        let apply = libraries.kernel_last("norm_apply_last", x.storage)?;
        let (norm, x, y) = (self.clone(), x.region.clone(), y.region.clone());
        Ok(Box::new(move || {
            let [rows, channels, lanes] = summed.arguments();
            // SAFETY: the kernel's parameters in its order; all memory is alive and was checked to be long enough.
            unsafe {
                sums.launch(summed.grid(), &[(&x).into(), (&partial).into(), rows, channels, lanes, summed.width()])
            }?;
            let arguments = [
                (&x).into(),
                (&partial).into(),
                (&saved.mean).into(),
                (&saved.deviation).into(),
                (&running.mean).into(),
                (&running.deviation).into(),
                rows,
                channels,
                summed.parts.into(),
                (SHARE as f32).into(),
                (norm.epsilon as f32).into(),
            ];
            // SAFETY: as above.
            unsafe { statistics.launch(summed.totals(), &arguments) }?;
            // SAFETY: as above.
            unsafe { apply.launch(written.grid(), &norm.applied([&x, &y], &saved, &written, INVERSE)) }
        }))
    }

    /// As [`BatchNorm::again`]: the last of the kernels of [`BatchNorm::training`], so y has the same bits.
    pub(super) fn again_last(self: &Arc<BatchNorm>, x: &Map, y: &Map, saved: &Statistics) -> Result<Work, CudaError> {
        self.normalized_last([x, y], saved, INVERSE)
    }

    /// As [`BatchNorm::inference`].
    pub(super) fn inference_last(
        self: &Arc<BatchNorm>,
        x: &Map,
        y: &Map,
        running: &Statistics,
    ) -> Result<Work, CudaError> {
        self.normalized_last([x, y], running, self.epsilon as f32)
    }

    fn normalized_last(
        self: &Arc<BatchNorm>,
        [x, y]: [&Map; 2],
        statistics: &Statistics,
        epsilon: f32,
    ) -> Result<Work, CudaError> {
        self.fit(&[x, y])?;
        let written = apply_rows(x, y)?;
        let apply = self.libraries.kernel_last("norm_apply_last", x.storage)?;
        let (norm, x, y, statistics) = (self.clone(), x.region.clone(), y.region.clone(), statistics.clone());
        Ok(Box::new(move || {
            let arguments = norm.applied([&x, &y], &statistics, &written, epsilon);
            // SAFETY: the kernel's parameters in its order; all memory is alive and was checked to be long enough.
            unsafe { apply.launch(written.grid(), &arguments) }
        }))
    }

    /// The arguments of the kernel that normalizes.
    fn applied(&self, [x, y]: [&Region; 2], statistics: &Statistics, rows: &Rows, epsilon: f32) -> [Argument; 11] {
        let [count, channels, lanes] = rows.arguments();
        let (scale, shift) = ((&self.scale).into(), (&self.shift).into());
        let (mean, second) = ((&statistics.mean).into(), (&statistics.deviation).into());
        [x.into(), y.into(), mean, second, scale, shift, count, channels, lanes, epsilon.into(), rows.width()]
    }

    /// As [`BatchNorm::backward`].
    pub(super) fn backward_last(
        self: &Arc<BatchNorm>,
        [x, dy, dx]: [&Map; 3],
        write: Write,
        saved: &Statistics,
        [scale_gradient, shift_gradient]: [&Region; 2],
    ) -> Result<Work, CudaError> {
        self.fit(&[x, dy, dx])?;
        let libraries = &self.libraries;
        let summed = Rows::summing(x, &[&x.region, &dy.region])?;
        let written = Rows::copying(x, self.channels, &[&x.region, &dy.region, &dx.region], &[])?;
        let partial = partial(libraries, &summed)?;
        let sums = libraries.kernel_last("norm_gradient_sums_last", x.storage)?;
        let gradients = libraries.kernels_last()?.get("norm_gradients_last")?;
        let apply = libraries.kernel_last("norm_gradient_last", x.storage)?;
        let norm = self.clone();
        let [x, dy, dx] = [x, dy, dx].map(|map| map.region.clone());
        let (saved, scale_gradient, shift_gradient) = (saved.clone(), scale_gradient.clone(), shift_gradient.clone());
        Ok(Box::new(move || {
            let [rows, channels, lanes] = summed.arguments();
            let (mean, deviation): (Argument, Argument) = ((&saved.mean).into(), (&saved.deviation).into());
            let arguments = [(&x).into(), (&dy).into(), mean, (&partial).into(), rows, channels, lanes, summed.width()];
            // SAFETY: the kernel's parameters in its order; all memory is alive and was checked to be long enough.
            unsafe { sums.launch(summed.grid(), &arguments) }?;
            let (to_scale, to_shift): (Argument, Argument) = ((&scale_gradient).into(), (&shift_gradient).into());
            let arguments = [(&partial).into(), deviation, to_scale, to_shift, channels, summed.parts.into()];
            // SAFETY: as above.
            unsafe { gradients.launch(summed.totals(), &arguments) }?;
            let [rows, channels, lanes] = written.arguments();
            let arguments = [
                (&x).into(),
                (&dy).into(),
                (&dx).into(),
                mean,
                deviation,
                (&norm.scale).into(),
                to_scale,
                to_shift,
                rows,
                channels,
                lanes,
                u32::from(write == Write::Add).into(),
                written.width(),
            ];
            // SAFETY: as above.
            unsafe { apply.launch(written.grid(), &arguments) }
        }))
    }
}

fn apply_rows(x: &Map, y: &Map) -> Result<Rows, CudaError> {
    Rows::copying(x, x.shape.channels(), &[&x.region, &y.region], &[])
}
