//! Batch normalization: each channel brought to mean 0 and deviation 1 over the mini-batch, then scaled and shifted.
//!
//! ```text
//! y = scale · (x - mean) · inverse + shift          inverse = 1 / sqrt(variance + epsilon)
//!
//! dshift = sum of dy        dscale = sum of dy · (x - mean) · inverse
//!
//! dx = scale · inverse · (dy - dshift / m - (x - mean) · inverse · dscale / m)        m samples times positions
//! ```
//!
//! A mini-batch may come in parts. Each adds to the statistics of those before it by their counts n and n' (Chan, Golub and
//! LeVeque 1979), and to both sums of the gradients; only then is anything normalized:
//!
//! ```text
//! mean = (n · mean + n' · mean') / (n + n')
//!
//! variance = (n · variance + n' · variance') / (n + n') + (mean - mean')² · n · n' / (n + n')²
//! ```
//!
//! Where a ReLU follows, dy is the gradient of the ReLU's output, and counts as 0 where y is 0 or less.
//!
//! Sums run in 64 bits. Running statistics move by a tenth of the way to the mini-batch's, the variance by its
//! unbiased estimate, as cuDNN and PyTorch do. **Source:** Ioffe and Szegedy 2015, algorithms 1 and 2.

use super::Store;
use super::activation::{relu, relu_gradient};
use crate::team::Team;

/// How far the running statistics move to a mini-batch's.
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

/// Moves the running statistics to a mini-batch's.
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

/// Moves the running statistics to the statistics of all parts of a mini-batch, of `count` elements of each channel.
pub fn move_running(epsilon: f32, count: usize, saved: PerChannel, running: PerChannelMut) {
    let variances = saved.1.iter().map(|inverse| unbiased(variance(epsilon, *inverse), count as f64));
    move_to(running, saved.0, &variances.collect::<Vec<f32>>());
}

/// Inverse deviations of variances: what inference normalizes by.
pub fn inverse(epsilon: f32, variances: &[f32]) -> Vec<f32> {
    variances.iter().map(|variance| 1.0 / (variance + epsilon).sqrt()).collect()
}

/// How each channel is normalized.
#[derive(Clone, Copy, Debug)]
pub struct Affine<'a> {
    /// Means.
    pub means: &'a [f32],
    /// Inverse deviations.
    pub inverses: &'a [f32],
    /// Scales.
    pub scales: &'a [f32],
    /// Shifts.
    pub shifts: &'a [f32],
    /// Whether a ReLU follows.
    pub relu: bool,
}

impl Affine<'_> {
    fn of(&self, channel: usize) -> Normal {
        Normal {
            mean: self.means[channel],
            inverse: self.inverses[channel],
            scale: self.scales[channel],
            shift: self.shifts[channel],
            relu: self.relu,
        }
    }
}

/// How one channel is normalized.
struct Normal {
    mean: f32,
    inverse: f32,
    scale: f32,
    shift: f32,
    relu: bool,
}

impl Normal {
    /// y of an element, before a ReLU.
    fn of(&self, x: f32) -> f32 {
        self.scale * ((x - self.mean) * self.inverse) + self.shift
    }

    /// The gradient of that y, given the gradient behind the ReLU, if there is one.
    fn gradient(&self, x: f32, dy: f32) -> f32 {
        if self.relu { relu_gradient(self.of(x), dy) } else { dy }
    }
}

/// y from x.
pub fn forward(team: &Team, by: Affine, positions: usize, x: &[f32], y: &mut [f32]) {
    let planes = x.chunks(positions).zip(y.chunks_mut(positions)).enumerate().collect();
    team.share(planes, &mut [], |(plane, (x, y)): (usize, (&[f32], &mut [f32])), _, _| {
        let normal = by.of(plane % by.scales.len());
        for (y, x) in y.iter_mut().zip(x) {
            let value = normal.of(*x);
            *y = if normal.relu { relu(value) } else { value };
        }
    });
}

/// The gradients of scales and shifts; added to the gradients of other parts of the mini-batch, if it has any.
pub fn backward_parameters(
    team: &Team,
    by: Affine,
    positions: usize,
    (x, dy): (&[f32], &[f32]),
    out: PerChannelMut,
    store: Store,
) {
    let channels = by.scales.len();
    let items = out.0.iter_mut().zip(out.1).enumerate().collect();
    team.share(items, &mut [], |(channel, (scale, shift)): (usize, (&mut f32, &mut f32)), _, _| {
        let normal = by.of(channel);
        let (mean, inverse) = (f64::from(normal.mean), f64::from(normal.inverse));
        let gradient = |i: usize| f64::from(normal.gradient(x[i], dy[i]));
        store.put(shift, sum(dy, channel, channels, positions, |i, _| gradient(i)) as f32);
        let products = sum(dy, channel, channels, positions, |i, _| gradient(i) * (f64::from(x[i]) - mean));
        store.put(scale, (products * inverse) as f32);
    });
}

/// dx, given the gradients of the mini-batch's scales and shifts, of `count` elements of each channel.
pub fn backward_data(
    team: &Team,
    by: Affine,
    gradients: PerChannel,
    (positions, count): (usize, usize),
    (x, dy): (&[f32], &[f32]),
    dx: &mut [f32],
    store: Store,
) {
    let channels = by.scales.len();
    let count = count as f32;
    let planes = dx.chunks_mut(positions).enumerate().collect();
    team.share(planes, &mut [], |(plane, dx): (usize, &mut [f32]), _, _| {
        let channel = plane % channels;
        let normal = by.of(channel);
        let (by_scale, by_shift) = (gradients.0[channel] / count, gradients.1[channel] / count);
        let factor = normal.scale * normal.inverse;
        let part = plane * positions..(plane + 1) * positions;
        for (dx, (x, dy)) in dx.iter_mut().zip(x[part.clone()].iter().zip(&dy[part])) {
            let dy = normal.gradient(*x, *dy);
            store.put(dx, factor * (dy - by_shift - (x - normal.mean) * normal.inverse * by_scale));
        }
    });
}
