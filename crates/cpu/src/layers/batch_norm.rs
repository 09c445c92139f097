//! Batch normalization: each channel brought to mean 0 and deviation 1 over the mini-batch, then scaled and shifted.
//!
//! ```text
//! y = scale · (x - mean) · inverse + shift          inverse = 1 / sqrt(variance + epsilon)
//! dshift = sum of dy        dscale = sum of dy · (x - mean) · inverse
//! dx = scale · inverse · (dy - dshift / m - (x - mean) · inverse · dscale / m)        m samples times positions
//! ```
//!
//! A mini-batch may come in parts. Each adds to the statistics of those before it by their counts n and n' (Chan, Golub and
//! LeVeque 1979), and to both sums of the gradients; only then is anything normalized:
//!
//! ```text
//! mean = (n · mean + n' · mean') / (n + n')
//! variance = (n · variance + n' · variance') / (n + n') + (mean - mean')² · n · n' / (n + n')²
//! ```
//!
//! Sums run in 64 bits. Running statistics move by a tenth of the way to those of the mini-batch, the variance by its
//! unbiased estimate, as cuDNN and PyTorch do. **Source:** Ioffe and Szegedy 2015, algorithms 1 and 2.

use super::Store;
use crate::team::Team;

/// How far the running statistics move to those of a mini-batch.
pub const MOVE: f32 = 0.1;

/// Two numbers for each channel.
#[derive(Debug)]
pub struct PerChannel<'a>(
    /// Means, or scales.
    pub &'a [f32],
    /// Variances, inverse deviations, or shifts.
    pub &'a [f32],
);

/// Two numbers for each channel, to write.
#[derive(Debug)]
pub struct PerChannelMut<'a>(
    /// Means, or scales.
    pub &'a mut [f32],
    /// Variances, inverse deviations, or shifts.
    pub &'a mut [f32],
);

/// Sums of one channel over all samples.
fn sum(values: &[f32], channel: usize, channels: usize, positions: usize, each: impl Fn(usize, f64) -> f64) -> f64 {
    let planes = values.chunks(positions).enumerate().skip(channel).step_by(channels);
    planes
        .map(|(plane, values)| {
            let places = values.iter().enumerate();
            places.map(|(i, &value)| each(plane * positions + i, f64::from(value))).sum::<f64>()
        })
        .sum()
}

/// Means and inverse deviations of the mini-batch, and how they move the running ones (means and variances).
pub fn statistics(
    team: &Team,
    epsilon: f32,
    positions: usize,
    x: &[f32],
    saved: PerChannelMut,
    running: Option<PerChannelMut>,
) {
    let channels = saved.0.len();
    let count = (x.len() / channels) as f64;
    let mut variances = vec![0.0; channels];
    let items = saved.0.iter_mut().zip(saved.1.iter_mut()).zip(&mut variances).enumerate().collect();
    team.share(items, &mut [], |(channel, ((mean, inverse), variance)): (usize, ((&mut f32, &mut f32), _)), _, _| {
        let (center, spread) = moments(x, channel, channels, positions);
        *mean = center as f32;
        *inverse = (1.0 / (spread + f64::from(epsilon)).sqrt()) as f32;
        *variance = unbiased(spread, count);
    });
    if let Some(running) = running {
        move_to(running, saved.0, &variances);
    }
}

/// The mean and the variance of a channel.
fn moments(x: &[f32], channel: usize, channels: usize, positions: usize) -> (f64, f64) {
    let count = (x.len() / channels) as f64;
    let center = sum(x, channel, channels, positions, |_, x| x) / count;
    let spread: f64 = sum(x, channel, channels, positions, |_, x| (x - center).powi(2)) / count;
    (center, spread)
}

/// The estimate of the variance of what `count` elements are samples of.
fn unbiased(variance: f64, count: f64) -> f32 {
    (variance * count / (count - 1.0).max(1.0)) as f32
}

/// Moves the running statistics to those of a mini-batch.
fn move_to(running: PerChannelMut, means: &[f32], variances: &[f32]) {
    running.0.iter_mut().zip(means).for_each(|(to, mean)| *to += MOVE * (mean - *to));
    running.1.iter_mut().zip(variances).for_each(|(to, variance)| *to += MOVE * (variance - *to));
}

/// The variance that an inverse deviation is of.
fn variance(epsilon: f32, inverse: f32) -> f64 {
    (f64::from(inverse).powi(-2) - f64::from(epsilon)).max(0.0)
}

/// Adds another part of the mini-batch to means and inverse deviations of `before` elements of each channel.
pub fn add_statistics(team: &Team, epsilon: f32, positions: usize, x: &[f32], saved: PerChannelMut, before: usize) {
    let channels = saved.0.len();
    let (before, count) = (before as f64, (x.len() / channels) as f64);
    let items = saved.0.iter_mut().zip(saved.1.iter_mut()).enumerate().collect();
    team.share(items, &mut [], |(channel, (mean, inverse)): (usize, (&mut f32, &mut f32)), _, _| {
        let (center, spread) = moments(x, channel, channels, positions);
        let share = count / (before + count);
        let apart = center - f64::from(*mean);
        let within = variance(epsilon, *inverse) * (1.0 - share) + spread * share;
        let spread = within + apart.powi(2) * share * (1.0 - share);
        *mean = (f64::from(*mean) + apart * share) as f32;
        *inverse = (1.0 / (spread + f64::from(epsilon)).sqrt()) as f32;
    });
}

/// Moves the running statistics to those of all parts of a mini-batch, of `count` elements of each channel.
pub fn move_running(epsilon: f32, count: usize, saved: PerChannel, running: PerChannelMut) {
    let variances = saved.1.iter().map(|inverse| unbiased(variance(epsilon, *inverse), count as f64));
    move_to(running, saved.0, &variances.collect::<Vec<f32>>());
}

/// Inverse deviations of variances: what inference normalizes by.
pub fn inverse(epsilon: f32, variances: &[f32]) -> Vec<f32> {
    variances.iter().map(|variance| 1.0 / (variance + epsilon).sqrt()).collect()
}

/// y from x, by means and inverse deviations.
pub fn forward(
    team: &Team,
    by: PerChannel,
    (scales, shifts): (&[f32], &[f32]),
    positions: usize,
    x: &[f32],
    y: &mut [f32],
) {
    let planes = x.chunks(positions).zip(y.chunks_mut(positions)).enumerate().collect();
    team.share(planes, &mut [], |(plane, (x, y)): (usize, (&[f32], &mut [f32])), _, _| {
        let channel = plane % scales.len();
        let (mean, inverse) = (by.0[channel], by.1[channel]);
        let (scale, shift) = (scales[channel], shifts[channel]);
        y.iter_mut().zip(x).for_each(|(y, x)| *y = scale * ((x - mean) * inverse) + shift);
    });
}

/// The gradients of scales and shifts; added to those of other parts of the mini-batch, where there are any.
pub fn backward_parameters(
    team: &Team,
    saved: PerChannel,
    positions: usize,
    (x, dy): (&[f32], &[f32]),
    out: PerChannelMut,
    store: Store,
) {
    let channels = saved.0.len();
    let items = out.0.iter_mut().zip(out.1).enumerate().collect();
    team.share(items, &mut [], |(channel, (scale, shift)): (usize, (&mut f32, &mut f32)), _, _| {
        let (mean, inverse) = (f64::from(saved.0[channel]), f64::from(saved.1[channel]));
        store.put(shift, sum(dy, channel, channels, positions, |_, dy| dy) as f32);
        let products = sum(dy, channel, channels, positions, |i, dy| dy * (f64::from(x[i]) - mean));
        store.put(scale, (products * inverse) as f32);
    });
}

/// dx, given the gradients of the mini-batch's scales and shifts, of `count` elements of each channel.
#[allow(clippy::too_many_arguments)]
pub fn backward_data(
    team: &Team,
    saved: PerChannel,
    scales: &[f32],
    gradients: PerChannel,
    (positions, count): (usize, usize),
    (x, dy): (&[f32], &[f32]),
    dx: &mut [f32],
    store: Store,
) {
    let channels = scales.len();
    let count = count as f32;
    let planes = dx.chunks_mut(positions).enumerate().collect();
    team.share(planes, &mut [], |(plane, dx): (usize, &mut [f32]), _, _| {
        let channel = plane % channels;
        let (mean, inverse) = (saved.0[channel], saved.1[channel]);
        let (by_scale, by_shift) = (gradients.0[channel] / count, gradients.1[channel] / count);
        let factor = scales[channel] * inverse;
        let part = plane * positions..(plane + 1) * positions;
        for (dx, (x, dy)) in dx.iter_mut().zip(x[part.clone()].iter().zip(&dy[part])) {
            store.put(dx, factor * (dy - by_shift - (x - mean) * inverse * by_scale));
        }
    });
}
