//! Batch normalization: each channel's statistics over the mini-batch and the area. Parameters and statistics are f32.

use std::ffi::c_void;
use std::sync::Arc;

use tightfit_core::problem::Storage;

use super::map::TensorView;
use super::{Libraries, Map, Work, Write, beta, tables};
use crate::CudaError;
use crate::call::layers::{self as call, Channels};
use crate::safe::Region;

/// Two numbers per channel: a mean, and a variance or an inverse deviation.
#[derive(Clone)]
pub struct Statistics {
    /// Means.
    pub mean: Region,
    /// Variances of running statistics; for a mini-batch, 1 / √(variance + epsilon).
    pub deviation: Region,
}

/// Scales and shifts of a layer's channels.
pub struct BatchNorm {
    pub(super) libraries: Arc<Libraries>,
    pub(super) channels: usize,
    pub(super) epsilon: f64,
    pub(super) scale: Region,
    pub(super) shift: Region,
}

/// Weight of a mini-batch's statistics in the running ones, per step.
pub(super) const SHARE: f64 = 0.1;
const NOWHERE: *mut c_void = std::ptr::null_mut();

impl BatchNorm {
    /// A layer on these parameters.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`] if one is shorter than the channels.
    pub fn new(
        libraries: &Arc<Libraries>,
        channels: usize,
        epsilon: f32,
        [scale, shift]: [&Region; 2],
    ) -> Result<Arc<BatchNorm>, CudaError> {
        scale.must_hold(channels * 4)?;
        shift.must_hold(channels * 4)?;
        let (scale, shift) = (scale.clone(), shift.clone());
        Ok(Arc::new(BatchNorm { libraries: libraries.clone(), channels, epsilon: epsilon.into(), scale, shift }))
    }

    /// The layout of the numbers per channel, for maps of `dimensions` spatial dimensions.
    fn channels(&self, map: &Map) -> Result<TensorView, CudaError> {
        let ones = if map.shape.extents().len() == 3 { 3 } else { 2 };
        let extents = [vec![1, self.channels], vec![1; ones]].concat();
        TensorView::packed(&self.libraries, Storage::F32, &extents, &self.scale)
    }

    fn check(&self, statistics: &Statistics) -> Result<(), CudaError> {
        statistics.mean.must_hold(self.channels * 4)?;
        statistics.deviation.must_hold(self.channels * 4)
    }

    /// y = x normalized by the mini-batch's statistics. Writes them to `saved` and updates the running ones (with the
    /// unbiased variance, as in PyTorch).
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`]; [`CudaError::Cudnn`]; [`CudaError::OutOfMemory`] for sums.
    pub fn training(
        self: &Arc<BatchNorm>,
        x: &Map,
        y: &Map,
        saved: &Statistics,
        running: &Statistics,
    ) -> Result<Work, CudaError> {
        self.check(saved)?;
        self.check(running)?;
        match x.is_channels_last() {
            true => self.training_last(x, y, saved, running),
            false => self.by_cudnn(x, y, Some((saved, running))),
        }
    }

    /// y as [`BatchNorm::training`] has written it, from the statistics that it saved, with the same bits. With the channels
    /// first, cuDNN computes the statistics again: another of its functions would round otherwise.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`]; [`CudaError::Cudnn`].
    pub fn again(self: &Arc<BatchNorm>, x: &Map, y: &Map, saved: &Statistics) -> Result<Work, CudaError> {
        self.check(saved)?;
        match x.is_channels_last() {
            true => self.again_last(x, y, saved),
            false => self.by_cudnn(x, y, None),
        }
    }

    /// Normalizes by the mini-batch's statistics, and keeps them and updates the running ones if told where.
    fn by_cudnn(
        self: &Arc<BatchNorm>,
        x: &Map,
        y: &Map,
        kept: Option<(&Statistics, &Statistics)>,
    ) -> Result<Work, CudaError> {
        let (channels, norm) = (self.channels(x)?, self.clone());
        let (x, y) = (x.placed(&self.libraries)?, y.placed(&self.libraries)?);
        let kept = kept.map(|(saved, running)| (saved.clone(), running.clone()));
        Ok(Box::new(move || {
            let (calling, layers) = norm.libraries.enter()?;
            let (mut saved, mut running) = ([NOWHERE; 2], [NOWHERE; 2]);
            if let Some(kept) = &kept {
                saved = [kept.0.mean.raw().as_void(), kept.0.deviation.raw().as_void()];
                running = [kept.1.mean.raw().as_void(), kept.1.deviation.raw().as_void()];
            }
            let channels = norm.parameters(&channels, running);
            let (handle, maps) = (calling.handle, (x.part(), y.part()));
            // SAFETY: all objects are alive, and the memory is as long as the descriptors say.
            unsafe {
                call::batch_norm_training(
                    tables(&calling, layers),
                    handle,
                    maps,
                    channels,
                    (SHARE, norm.epsilon),
                    saved,
                )
            }
        }))
    }

    /// y = x normalized by running statistics.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`]; [`CudaError::Cudnn`].
    pub fn inference(self: &Arc<BatchNorm>, x: &Map, y: &Map, running: &Statistics) -> Result<Work, CudaError> {
        self.check(running)?;
        if x.is_channels_last() {
            return self.inference_last(x, y, running);
        }
        let (channels, norm, running) = (self.channels(x)?, self.clone(), running.clone());
        let (x, y) = (x.placed(&self.libraries)?, y.placed(&self.libraries)?);
        Ok(Box::new(move || {
            let (calling, layers) = norm.libraries.enter()?;
            let running = [running.mean.raw().as_void(), running.deviation.raw().as_void()];
            let (channels, maps) = (norm.parameters(&channels, running), (x.part(), y.part()));
            // SAFETY: all objects are alive, and the memory is as long as the descriptors say.
            unsafe {
                call::batch_norm_inference(tables(&calling, layers), calling.handle, maps, channels, norm.epsilon)
            }
        }))
    }

    /// Computes dx, and overwrites the gradients of scales and shifts.
    ///
    /// # Errors
    /// [`CudaError::OutOfBounds`]; [`CudaError::Cudnn`]; [`CudaError::OutOfMemory`] for sums.
    pub fn backward(
        self: &Arc<BatchNorm>,
        [x, dy, dx]: [&Map; 3],
        write: Write,
        saved: &Statistics,
        gradients: [&Region; 2],
    ) -> Result<Work, CudaError> {
        self.check(saved)?;
        for gradient in gradients {
            gradient.must_hold(self.channels * 4)?;
        }
        if x.is_channels_last() {
            return self.backward_last([x, dy, dx], write, saved, gradients);
        }
        let (channels, norm, saved) = (self.channels(x)?, self.clone(), saved.clone());
        let [scale_gradient, shift_gradient] = gradients.map(Region::clone);
        let libraries = &self.libraries;
        let (x, dy, dx) = (x.placed(libraries)?, dy.placed(libraries)?, dx.placed(libraries)?);
        Ok(Box::new(move || {
            let (calling, layers) = norm.libraries.enter()?;
            let statistics = [saved.mean.raw().as_void(), saved.deviation.raw().as_void()];
            let channels = Channels {
                second: scale_gradient.raw().as_void(),
                third: shift_gradient.raw().as_void(),
                ..norm.parameters(&channels, statistics)
            };
            let maps = [x.part(), dy.part(), dx.part()];
            let factors = (beta(write), norm.epsilon);
            // SAFETY: all objects are alive, and the memory is as long as the descriptors say.
            unsafe { call::batch_norm_backward(tables(&calling, layers), calling.handle, maps, channels, factors) }
        }))
    }

    fn parameters(&self, channels: &TensorView, [mean, variance]: [*mut c_void; 2]) -> Channels {
        let (scale, second) = (self.scale.raw().as_void(), self.shift.raw().as_void());
        Channels { tensor: channels.part().tensor, scale, second, third: NOWHERE, mean, variance }
    }
}
