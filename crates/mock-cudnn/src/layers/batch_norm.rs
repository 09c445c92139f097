//! Batch normalization with statistics of each channel (`CUDNN_BATCHNORM_SPATIAL`).

use std::ffi::c_int;

use super::{Channels, Place, enqueue, factor};
use crate::Handle;
use crate::control::call;
use crate::legacy::tensor;
use crate::status::Status;

/// `CUDNN_BATCHNORM_SPATIAL`
const SPATIAL: c_int = 1;

/// How many channels there are, if the descriptor of their numbers agrees with x.
fn channels(mode: c_int, x: &Place, descriptor: Handle) -> Result<usize, Status> {
    let (described, [_, channels, _]) = (tensor(descriptor)?, x.sizes());
    if mode != SPATIAL || described.len() != channels || described.dims.len() != x.tensor.dims.len() {
        return Err(Status::BAD_PARAM);
    }
    Ok(channels)
}

/// The elements of a channel.
fn of_channel(values: &[f32], [_, channels, area]: [usize; 3], channel: usize) -> impl Iterator<Item = f32> {
    values.chunks(area).skip(channel).step_by(channels).flatten().copied()
}

fn mean(values: impl Iterator<Item = f32>, count: usize) -> f32 {
    (values.map(f64::from).sum::<f64>() / count as f64) as f32
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnBatchNormalizationForwardTraining(
    handle: Handle,
    mode: c_int,
    alpha: Option<&f32>,
    beta: Option<&f32>,
    x_descriptor: Handle,
    x: usize,
    y_descriptor: Handle,
    y: usize,
    descriptor: Handle,
    scale: usize,
    shift: usize,
    share: f64,
    running_mean: usize,
    running_variance: usize,
    epsilon: f64,
    saved_mean: usize,
    saved_deviation: usize,
) -> c_int {
    call("cudnnBatchNormalizationForwardTraining", || {
        let (alpha, beta) = (factor(alpha)?, factor(beta)?);
        let (x, y) = (Place::new(x_descriptor, x)?, Place::new(y_descriptor, y)?);
        x.same(&y)?;
        let count = channels(mode, &x, descriptor)?;
        if (running_mean == 0) != (running_variance == 0) || (saved_mean == 0) != (saved_deviation == 0) {
            return Err(Status::BAD_PARAM);
        }
        let channels = move |address| Channels { address, count };
        enqueue(handle, x.tensor.len(), move || {
            let (values, sizes) = (x.load()?, x.sizes());
            let (scales, shifts) = (channels(scale).load()?, channels(shift).load()?);
            let each = sizes[0] * sizes[2];
            let means: Vec<f32> = (0..count).map(|c| mean(of_channel(&values, sizes, c), each)).collect();
            let variances: Vec<f32> =
                (0..count).map(|c| mean(of_channel(&values, sizes, c).map(|x| (x - means[c]).powi(2)), each)).collect();
            let deviations: Vec<f32> = variances.iter().map(|v| 1.0 / (v + epsilon as f32).sqrt()).collect();
            let normalized = values.iter().enumerate().map(|(i, x)| {
                let c = i / sizes[2] % count;
                alpha * (scales[c] * (x - means[c]) * deviations[c] + shifts[c])
            });
            y.store(&normalized.collect::<Vec<f32>>(), beta)?;
            if saved_mean != 0 {
                channels(saved_mean).store(&means)?;
                channels(saved_deviation).store(&deviations)?;
            }
            if running_mean != 0 {
                let unbiased = each as f32 / (each.max(2) - 1) as f32;
                let variances: Vec<f32> = variances.iter().map(|v| v * unbiased).collect();
                for (address, new) in [(running_mean, &means), (running_variance, &variances)] {
                    let moved = channels(address).load()?;
                    let moved = moved.iter().zip(new).map(|(old, new)| old * (1.0 - share as f32) + new * share as f32);
                    channels(address).store(&moved.collect::<Vec<f32>>())?;
                }
            }
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnBatchNormalizationForwardInference(
    handle: Handle,
    mode: c_int,
    alpha: Option<&f32>,
    beta: Option<&f32>,
    x_descriptor: Handle,
    x: usize,
    y_descriptor: Handle,
    y: usize,
    descriptor: Handle,
    scale: usize,
    shift: usize,
    mean: usize,
    variance: usize,
    epsilon: f64,
) -> c_int {
    call("cudnnBatchNormalizationForwardInference", || {
        let (alpha, beta) = (factor(alpha)?, factor(beta)?);
        let (x, y) = (Place::new(x_descriptor, x)?, Place::new(y_descriptor, y)?);
        x.same(&y)?;
        let count = channels(mode, &x, descriptor)?;
        let channels = move |address| Channels { address, count };
        enqueue(handle, x.tensor.len(), move || {
            let (means, variances) = (channels(mean).load()?, channels(variance).load()?);
            let (scales, shifts, area) = (channels(scale).load()?, channels(shift).load()?, x.sizes()[2]);
            let normalized = x.load()?.into_iter().enumerate().map(|(i, x)| {
                let c = i / area % count;
                alpha * (scales[c] * (x - means[c]) / (variances[c] + epsilon as f32).sqrt() + shifts[c])
            });
            y.store(&normalized.collect::<Vec<f32>>(), beta)
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnBatchNormalizationBackward(
    handle: Handle,
    mode: c_int,
    alpha: Option<&f32>,
    beta: Option<&f32>,
    parameter_alpha: Option<&f32>,
    parameter_beta: Option<&f32>,
    x_descriptor: Handle,
    x: usize,
    dy_descriptor: Handle,
    dy: usize,
    dx_descriptor: Handle,
    dx: usize,
    descriptor: Handle,
    scale: usize,
    scale_gradient: usize,
    shift_gradient: usize,
    _epsilon: f64,
    saved_mean: usize,
    saved_deviation: usize,
) -> c_int {
    call("cudnnBatchNormalizationBackward", || {
        let (alpha, beta, own) = (factor(alpha)?, factor(beta)?, factor(parameter_alpha)?);
        let (x, dy, dx) =
            (Place::new(x_descriptor, x)?, Place::new(dy_descriptor, dy)?, Place::new(dx_descriptor, dx)?);
        x.same(&dy)?;
        x.same(&dx)?;
        let count = channels(mode, &x, descriptor)?;
        if saved_mean == 0 || saved_deviation == 0 || factor(parameter_beta)? != 0.0 {
            return Err(Status::BAD_PARAM);
        }
        let channels = move |address| Channels { address, count };
        enqueue(handle, x.tensor.len(), move || {
            let (values, gradients, sizes) = (x.load()?, dy.load()?, x.sizes());
            let (means, deviations) = (channels(saved_mean).load()?, channels(saved_deviation).load()?);
            let (scales, each) = (channels(scale).load()?, (sizes[0] * sizes[2]) as f64);
            let mut sums = vec![[0.0_f64; 2]; count];
            for (i, (x, dy)) in values.iter().zip(&gradients).enumerate() {
                let c = i / sizes[2] % count;
                sums[c][0] += f64::from(dy * (x - means[c]) * deviations[c]);
                sums[c][1] += f64::from(*dy);
            }
            let result = values.iter().zip(&gradients).enumerate().map(|(i, (x, dy))| {
                let c = i / sizes[2] % count;
                let normalized = f64::from((x - means[c]) * deviations[c]);
                let centered = f64::from(*dy) - (sums[c][1] + normalized * sums[c][0]) / each;
                alpha * scales[c] * deviations[c] * centered as f32
            });
            dx.store(&result.collect::<Vec<f32>>(), beta)?;
            channels(scale_gradient).store(&sums.iter().map(|sum| own * sum[0] as f32).collect::<Vec<f32>>())?;
            channels(shift_gradient).store(&sums.iter().map(|sum| own * sum[1] as f32).collect::<Vec<f32>>())
        })
    })
}
