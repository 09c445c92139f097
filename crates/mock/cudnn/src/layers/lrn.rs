//! Local response normalization across channels: y = x · (k + alpha / size · sum of squares)^-beta.

use std::ffi::c_int;
use std::ops::Range;

use super::descriptor::{Lrn, lrn};
use super::{PlacedTensor, enqueue, factor};
use crate::Handle;
use crate::control::call;
use crate::status::Status;

/// Channels in the sum of one.
fn neighbors(lrn: &Lrn, channel: usize, channels: usize) -> Range<usize> {
    let behind = (lrn.size - 1) / 2;
    let ahead = lrn.size - 1 - behind;
    channel.saturating_sub(behind)..(channel + ahead + 1).min(channels)
}

/// The base of each element.
fn bases(lrn: &Lrn, x: &[f32], [samples, channels, area]: [usize; 3]) -> Vec<f32> {
    let mut bases = Vec::with_capacity(x.len());
    for sample in 0..samples {
        for channel in 0..channels {
            for at in 0..area {
                let squares = neighbors(lrn, channel, channels).map(|c| x[(sample * channels + c) * area + at].powi(2));
                bases.push(lrn.k + lrn.alpha / lrn.size as f32 * squares.sum::<f32>());
            }
        }
    }
    bases
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnLRNCrossChannelForward(
    handle: Handle,
    descriptor: Handle,
    mode: c_int,
    alpha: Option<&f32>,
    x_descriptor: Handle,
    x: usize,
    beta: Option<&f32>,
    y_descriptor: Handle,
    y: usize,
) -> c_int {
    call("cudnnLRNCrossChannelForward", || {
        let (lrn, alpha, beta) = (lrn(descriptor)?, factor(alpha)?, factor(beta)?);
        let (x, y) = (PlacedTensor::new(x_descriptor, x)?, PlacedTensor::new(y_descriptor, y)?);
        x.same(&y)?;
        if mode != 0 {
            return Err(Status::BAD_PARAM);
        }
        enqueue(handle, x.tensor.len(), move || {
            let values = x.load()?;
            let bases = bases(&lrn, &values, x.sizes());
            let normalized = values.iter().zip(&bases).map(|(x, base)| alpha * x * base.powf(-lrn.beta));
            y.store(&normalized.collect::<Vec<f32>>(), beta)
        })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnLRNCrossChannelBackward(
    handle: Handle,
    descriptor: Handle,
    mode: c_int,
    alpha: Option<&f32>,
    y_descriptor: Handle,
    y: usize,
    dy_descriptor: Handle,
    dy: usize,
    x_descriptor: Handle,
    x: usize,
    beta: Option<&f32>,
    dx_descriptor: Handle,
    dx: usize,
) -> c_int {
    call("cudnnLRNCrossChannelBackward", || {
        let (lrn, alpha, beta) = (lrn(descriptor)?, factor(alpha)?, factor(beta)?);
        let (y, dy) = (PlacedTensor::new(y_descriptor, y)?, PlacedTensor::new(dy_descriptor, dy)?);
        let (x, dx) = (PlacedTensor::new(x_descriptor, x)?, PlacedTensor::new(dx_descriptor, dx)?);
        [&y, &dy, &dx].into_iter().try_for_each(|place| x.same(place))?;
        if mode != 0 {
            return Err(Status::BAD_PARAM);
        }
        enqueue(handle, x.tensor.len(), move || {
            let (values, normalized, gradients) = (x.load()?, y.load()?, dy.load()?);
            let sizes @ [samples, channels, area] = x.sizes();
            let bases = bases(&lrn, &values, sizes);
            let mut result = Vec::with_capacity(values.len());
            for sample in 0..samples {
                for channel in 0..channels {
                    for at in 0..area {
                        let place = |c: usize| (sample * channels + c) * area + at;
                        let own = place(channel);
                        let readers =
                            (0..channels).filter(|&other| neighbors(&lrn, other, channels).contains(&channel));
                        let shared: f32 = readers.map(place).map(|i| gradients[i] * normalized[i] / bases[i]).sum();
                        let slope = 2.0 * lrn.alpha * lrn.beta / lrn.size as f32;
                        let direct = gradients[own] * bases[own].powf(-lrn.beta);
                        result.push(alpha * (direct - slope * values[own] * shared));
                    }
                }
            }
            dx.store(&result, beta)
        })
    })
}
