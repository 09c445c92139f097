//! Batch normalization: each channel's statistics over the mini-batch and the area. Parameters and statistics are f32. By kernels
//! of this crate: cuDNN's take two to three times their memory traffic.
//!
//! ```text
//! forward    sums of each part of a channel -> statistics of each channel -> y
//! rerun                                                                   -> y
//! backward   sums of each part of a channel -> gradients of scales and shifts -> dx
//! ```
//!
//! Where a mini-batch comes in parts, each adds to the statistics, and to the gradients of scales and shifts; then each part of y,
//! or of dx, follows.

use std::sync::Arc;

use super::planes::Planes;
use super::rows::Rows;
use super::{Libraries, Map, Work, Write};
use crate::CudaError;
use crate::safe::{Argument, Kernel, Region, THREADS};

/// Two numbers per channel: a mean, and a variance or an inverse deviation.
#[derive(Clone)]
pub struct Statistics {
    /// Means.
    pub mean: Region,
    /// Variances of running statistics; for a mini-batch, 1 / √(variance + epsilon).
    pub deviation: Region,
}

impl Statistics {
    fn arguments(&self) -> [Argument; 2] {
        [(&self.mean).into(), (&self.deviation).into()]
    }
}

/// Scales and shifts of a layer's channels.
pub struct BatchNorm {
    libraries: Arc<Libraries>,
    channels: usize,
    epsilon: f32,
    scale: Region,
    shift: Region,
    relu: bool,
}

/// Weight of a mini-batch's statistics in the running ones, per step.
const STATISTICS_WEIGHT: f32 = 0.1;
/// In place of an epsilon: the statistics have inverse deviations, not variances.
const EPSILON_OF_INVERSE: f32 = -1.0;

impl BatchNorm {
    /// A layer on these parameters. With `relu`, y is the output of a ReLU over the layer, and dy its gradient: what
    /// the ReLU cut follows from x, so that y is not read.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`] if one is shorter than the channels.
    pub fn new(
        libraries: &Arc<Libraries>,
        channels: usize,
        epsilon: f32,
        [scale, shift]: [&Region; 2],
        relu: bool,
    ) -> Result<Arc<BatchNorm>, CudaError> {
        scale.must_hold(channels * 4)?;
        shift.must_hold(channels * 4)?;
        let (scale, shift) = (scale.clone(), shift.clone());
        Ok(Arc::new(BatchNorm { libraries: libraries.clone(), channels, epsilon, scale, shift, relu }))
    }

    /// Fails unless the maps have the layer's channels and are all of one form, and the statistics are as long.
    fn check(&self, maps: &[&Map], statistics: &[&Statistics]) -> Result<(), CudaError> {
        let one = maps[0];
        for map in maps {
            let alike =
                (map.samples, map.shape, map.storage, map.layout) == (one.samples, one.shape, one.storage, one.layout);
            if !alike || map.shape.channels() != self.channels {
                let (samples, channels) = (map.samples, self.channels);
                let what = format!(
                    "{samples} samples of {} together with {} of {}, for {channels} channels",
                    map.shape, one.samples, one.shape
                );
                return Err(CudaError::Unfit { layer: "batch-normalization", what });
            }
            map.check()?;
        }
        for statistics in statistics {
            statistics.mean.must_hold(self.channels * 4)?;
            statistics.deviation.must_hold(self.channels * 4)?;
        }
        Ok(())
    }

    /// y = x normalized by the mini-batch's statistics. Writes them to `saved` and updates the running ones (with the
    /// unbiased variance, as in PyTorch).
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`]; [`CudaError::Unfit`]; [`CudaError::TooLarge`]; [`CudaError::OutOfMemory`] for sums.
    pub fn training(
        self: &Arc<BatchNorm>,
        x: &Map,
        y: &Map,
        saved: &Statistics,
        running: &Statistics,
    ) -> Result<Work, CudaError> {
        let statistics = self.statistics(x, saved, Some(running), 0)?;
        let apply = self.apply(x, y, saved, EPSILON_OF_INVERSE)?;
        Ok(Box::new(move || {
            statistics()?;
            apply()
        }))
    }

    /// Writes the statistics of a part of the mini-batch to `saved`, or adds them to the statistics of `before` samples.
    ///
    /// # Errors
    /// As [`BatchNorm::training`].
    pub fn statistics_of_part(
        self: &Arc<BatchNorm>,
        x: &Map,
        saved: &Statistics,
        before: usize,
    ) -> Result<Work, CudaError> {
        self.statistics(x, saved, None, before)
    }

    fn statistics(
        self: &Arc<BatchNorm>,
        x: &Map,
        saved: &Statistics,
        running: Option<&Statistics>,
        before: usize,
    ) -> Result<Work, CudaError> {
        self.check(&[x], &[&[saved], running.as_slice()].concat())?;
        let summed = Form::summing(x, &[&x.region])?;
        let partial = self.partial(&summed)?;
        let sums = summed.kernel(&self.libraries, "norm_sums", x)?;
        let statistics = self.libraries.kernel_norm("norm_statistics", x.storage)?;
        // From a channel's first element to the next channel's.
        let plane = if x.is_channels_last() { 1 } else { x.area() };
        let (count, before) = (count(x, x.samples), count(x, before));
        let (totals, channels) = (self.totals()?, self.channels as u32);
        let (x, saved, running) = (x.region.clone(), saved.clone(), running.cloned());
        let epsilon = self.epsilon;
        Ok(Box::new(move || {
            let data = [(&x).into(), (&partial).into()];
            // SAFETY: the kernel's parameters in its order; all memory is alive and was checked to be long enough.
            unsafe { sums.launch(summed.grid(), &[&data[..], &summed.arguments(), &[summed.width()]].concat()) }?;
            let running = running.as_ref().map_or([Argument::from(0_u64), 0_u64.into()], Statistics::arguments);
            let numbers = [count.into(), before.into(), (plane as u64).into(), channels.into(), summed.parts().into()];
            let factors = [STATISTICS_WEIGHT.into(), epsilon.into()];
            let arguments = [&data[..], &saved.arguments(), &running, &numbers, &factors].concat();
            // SAFETY: as above.
            unsafe { statistics.launch(totals, &arguments) }
        }))
    }

    /// Updates the running statistics as [`BatchNorm::training`] does. The statistics come from all parts of a mini-batch
    /// of this number of samples, each shaped like `x`.
    ///
    /// # Errors
    /// As [`BatchNorm::again`].
    pub fn update_running(
        self: &Arc<BatchNorm>,
        x: &Map,
        samples: usize,
        saved: &Statistics,
        running: &Statistics,
    ) -> Result<Work, CudaError> {
        self.check(&[x], &[saved, running])?;
        let kernel = self.libraries.kernels_norm()?.get("norm_running")?;
        let grid = [crate::error::narrow("channel count", self.channels.div_ceil(THREADS))?, 1];
        let (count, channels) = (count(x, samples), self.channels as u32);
        let (saved, running, epsilon) = (saved.clone(), running.clone(), self.epsilon);
        Ok(Box::new(move || {
            let numbers = [count.into(), channels.into(), STATISTICS_WEIGHT.into(), epsilon.into()];
            let arguments = [&saved.arguments()[..], &running.arguments(), &numbers].concat();
            // SAFETY: the kernel's parameters in its order; all memory is alive and was checked to be long enough.
            unsafe { kernel.launch(grid, &arguments) }
        }))
    }

    /// y as [`BatchNorm::training`] has written it, from the statistics that it saved: by the last of its kernels, so y has
    /// the same bits.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`]; [`CudaError::Unfit`]; [`CudaError::TooLarge`].
    pub fn again(self: &Arc<BatchNorm>, x: &Map, y: &Map, saved: &Statistics) -> Result<Work, CudaError> {
        self.apply(x, y, saved, EPSILON_OF_INVERSE)
    }

    /// y = x normalized by running statistics.
    ///
    /// # Errors
    /// As [`BatchNorm::again`].
    pub fn inference(self: &Arc<BatchNorm>, x: &Map, y: &Map, running: &Statistics) -> Result<Work, CudaError> {
        self.apply(x, y, running, self.epsilon)
    }

    /// y = x normalized by these statistics, which have variances unless `epsilon` is [`EPSILON_OF_INVERSE`].
    fn apply(
        self: &Arc<BatchNorm>,
        x: &Map,
        y: &Map,
        statistics: &Statistics,
        epsilon: f32,
    ) -> Result<Work, CudaError> {
        self.check(&[x, y], &[statistics])?;
        let form = Form::copying(x, &[&x.region, &y.region])?;
        let kernel = form.kernel(&self.libraries, "norm_apply", x)?;
        let (norm, x, y, statistics) = (self.clone(), x.region.clone(), y.region.clone(), statistics.clone());
        Ok(Box::new(move || {
            let maps = [(&x).into(), (&y).into()];
            let numbers = [epsilon.into(), u32::from(norm.relu).into(), form.width()];
            let arguments =
                [&maps[..], &statistics.arguments(), &norm.parameters(), &form.arguments(), &numbers].concat();
            // SAFETY: the kernel's parameters in its order; all memory is alive and was checked to be long enough.
            unsafe { kernel.launch(form.grid(), &arguments) }
        }))
    }

    /// Computes dx, and overwrites the gradients of scales and shifts.
    ///
    /// # Errors
    /// As [`BatchNorm::training`].
    pub fn backward(
        self: &Arc<BatchNorm>,
        [x, dy, dx]: [&Map; 3],
        write: Write,
        saved: &Statistics,
        gradients: [&Region; 2],
    ) -> Result<Work, CudaError> {
        let sums = self.backward_parameters([x, dy], saved, gradients, Write::Overwrite)?;
        let apply = self.backward_data([x, dy, dx], write, saved, gradients, x.samples)?;
        Ok(Box::new(move || {
            sums()?;
            apply()
        }))
    }

    /// Computes the gradients of scales and shifts, or adds the gradients of a part of the mini-batch.
    ///
    /// # Errors
    /// As [`BatchNorm::training`].
    pub fn backward_parameters(
        self: &Arc<BatchNorm>,
        [x, dy]: [&Map; 2],
        saved: &Statistics,
        gradients: [&Region; 2],
        write: Write,
    ) -> Result<Work, CudaError> {
        self.check(&[x, dy], &[saved])?;
        for gradient in gradients {
            gradient.must_hold(self.channels * 4)?;
        }
        let summed = Form::summing(x, &[&x.region, &dy.region])?;
        let partial = self.partial(&summed)?;
        let sums = summed.kernel(&self.libraries, "norm_gradient_sums", x)?;
        let totaled = self.libraries.kernels_norm()?.get("norm_gradients")?;
        let (totals, channels, norm) = (self.totals()?, self.channels as u32, self.clone());
        let ([x, dy], saved, gradients) =
            ([x, dy].map(|map| map.region.clone()), saved.clone(), gradients.map(Region::clone));
        Ok(Box::new(move || {
            let [mean, deviation] = saved.arguments();
            let [to_scale, to_shift] = gradients.each_ref().map(Argument::from);
            let [scale, shift] = norm.parameters();
            let data = [(&x).into(), (&dy).into(), mean, deviation, scale, shift, (&partial).into()];
            let flags = [u32::from(norm.relu).into(), summed.width()];
            // SAFETY: the kernel's parameters in its order; all memory is alive and was checked to be long enough.
            unsafe { sums.launch(summed.grid(), &[&data[..], &summed.arguments(), &flags].concat()) }?;
            let numbers = [channels.into(), summed.parts().into(), u32::from(write == Write::Add).into()];
            let arguments = [&[(&partial).into(), deviation, to_scale, to_shift], &numbers[..]].concat();
            // SAFETY: as above.
            unsafe { totaled.launch(totals, &arguments) }
        }))
    }

    /// Computes dx by the gradients of scales and shifts of a mini-batch of this number of samples.
    ///
    /// # Errors
    /// As [`BatchNorm::again`].
    pub fn backward_data(
        self: &Arc<BatchNorm>,
        [x, dy, dx]: [&Map; 3],
        write: Write,
        saved: &Statistics,
        gradients: [&Region; 2],
        samples: usize,
    ) -> Result<Work, CudaError> {
        self.check(&[x, dy, dx], &[saved])?;
        for gradient in gradients {
            gradient.must_hold(self.channels * 4)?;
        }
        let written = Form::copying(x, &[&x.region, &dy.region, &dx.region])?;
        let apply = written.kernel(&self.libraries, "norm_gradient", x)?;
        let (norm, count) = (self.clone(), count(x, samples));
        let ([x, dy, dx], saved) = ([x, dy, dx].map(|map| map.region.clone()), saved.clone());
        let gradients = gradients.map(Region::clone);
        Ok(Box::new(move || {
            let [mean, deviation] = saved.arguments();
            let [to_scale, to_shift] = gradients.each_ref().map(Argument::from);
            let data = [(&x).into(), (&dy).into(), (&dx).into(), mean, deviation];
            let [scale, shift] = norm.parameters();
            let parameters = [scale, shift, to_scale, to_shift, count.into()];
            let flags = [u32::from(write == Write::Add).into(), u32::from(norm.relu).into(), written.width()];
            // SAFETY: the kernel's parameters in its order; all memory is alive and was checked to be long enough.
            unsafe { apply.launch(written.grid(), &[&data[..], &parameters, &written.arguments(), &flags].concat()) }
        }))
    }

    fn parameters(&self) -> [Argument; 2] {
        [(&self.scale).into(), (&self.shift).into()]
    }

    /// Memory for two sums of each channel and part.
    fn partial(&self, form: &Form) -> Result<Region, CudaError> {
        self.libraries.scratch(form.parts() as usize * 2 * self.channels * 4)
    }

    /// Blocks of a kernel that adds the parts of eight channels up.
    fn totals(&self) -> Result<[u32; 2], CudaError> {
        Ok([crate::error::narrow("channel count", self.channels.div_ceil(8))?, 1])
    }
}

/// Elements of a channel in this number of samples of a map.
fn count(map: &Map, samples: usize) -> u64 {
    (samples * map.area()) as u64
}

/// How kernels go over a map, by its layout.
#[derive(Clone, Copy)]
enum Form {
    First(Planes),
    Last(Rows),
}

impl Form {
    fn summing(map: &Map, regions: &[&Region]) -> Result<Form, CudaError> {
        match map.is_channels_last() {
            true => Rows::summing(map, regions).map(Form::Last),
            false => Planes::summing(map, regions).map(Form::First),
        }
    }

    fn copying(map: &Map, regions: &[&Region]) -> Result<Form, CudaError> {
        match map.is_channels_last() {
            true => Rows::copying(map, map.shape.channels(), regions, &[]).map(Form::Last),
            false => Planes::copying(map, regions).map(Form::First),
        }
    }

    fn kernel(&self, libraries: &Libraries, name: &str, map: &Map) -> Result<Kernel, CudaError> {
        match self {
            Form::First(_) => libraries.kernel_norm(name, map.storage),
            Form::Last(_) => libraries.kernel_last(&format!("{name}_last"), map.storage),
        }
    }

    fn grid(&self) -> [u32; 2] {
        match self {
            Form::First(planes) => planes.grid(),
            Form::Last(rows) => rows.grid(),
        }
    }

    fn parts(&self) -> u32 {
        match self {
            Form::First(planes) => planes.parts,
            Form::Last(rows) => rows.parts,
        }
    }

    fn arguments(&self) -> Vec<Argument> {
        match self {
            Form::First(planes) => planes.arguments().to_vec(),
            Form::Last(rows) => rows.arguments().to_vec(),
        }
    }

    fn width(&self) -> Argument {
        match self {
            Form::First(planes) => planes.width(),
            Form::Last(rows) => rows.width(),
        }
    }
}
