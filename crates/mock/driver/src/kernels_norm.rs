//! The kernels of batch normalization, in both layouts. The caller's choices for speed alone (lanes, parts, packs of 16
//! bytes) is checked and otherwise ignored.

use crate::error::Code;
use crate::launch::{Array, Launch, Storage};

/// Bytes of each parameter of a kernel, if it is one of these.
pub fn sizes(name: &str) -> Option<&'static [usize]> {
    Some(match name {
        "norm_sums" => &[8, 8, 4, 4, 4, 4, 4],
        "norm_sums_last" => &[8, 8, 8, 4, 4, 4],
        "norm_statistics" => &[8, 8, 8, 8, 8, 8, 8, 8, 8, 4, 4, 4, 4],
        "norm_running" => &[8, 8, 8, 8, 8, 4, 4, 4],
        "norm_apply" => &[8, 8, 8, 8, 8, 8, 4, 4, 4, 4, 4, 4, 4],
        "norm_apply_last" => &[8, 8, 8, 8, 8, 8, 8, 4, 4, 4, 4, 4],
        "norm_gradient_sums" => &[8, 8, 8, 8, 8, 8, 8, 4, 4, 4, 4, 4, 4],
        "norm_gradient_sums_last" => &[8, 8, 8, 8, 8, 8, 8, 8, 4, 4, 4, 4],
        "norm_gradients" => &[8, 8, 8, 8, 4, 4, 4],
        "norm_gradient" => &[8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 4, 4, 4, 4, 4, 4, 4],
        "norm_gradient_last" => &[8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 4, 4, 4, 4, 4],
        _ => return None,
    })
}

/// A map as a launch goes over it: samples of channels of planes. With the channels last, a sample is one row of channels.
struct Planes {
    storage: Storage,
    samples: usize,
    channels: usize,
    area: usize,
}

impl Planes {
    /// From the arguments from `at` on (rows, channels and lanes with the channels last, else samples, channels, area and lanes)
    /// and the last one, for packs of 16 bytes, with which the addresses must agree.
    fn new(launch: &Launch, storage: Storage, last: bool, at: usize, addresses: &[u64]) -> Result<Planes, Code> {
        let p = &launch.parameters;
        let number = |i: usize| p[i] as u32 as usize;
        let (samples, channels) = (if last { p[at] as usize } else { number(at) }, number(at + 1));
        let (area, lanes) = if last { (1, number(at + 2)) } else { (number(at + 2), number(at + 3)) };
        let pack = if number(p.len() - 1) == 0 { 1 } else { storage.pack() };
        if lanes == 0 || lanes > 256 {
            return Err(Code::INVALID_VALUE);
        }
        // Every channel has a thread, and packs only have adjacent elements.
        let (beside, reached) = if last { (channels, lanes * pack) } else { (area, 256 / lanes) };
        if !beside.is_multiple_of(pack) || launch.grid[0] * reached < channels {
            return Err(Code::INVALID_VALUE);
        }
        if pack > 1 && addresses.iter().any(|address| !address.is_multiple_of(16)) {
            return Err(Code::MISALIGNED_ADDRESS);
        }
        Ok(Planes { storage, samples, channels, area })
    }

    fn map(&self, address: u64) -> Result<Array, Code> {
        Array::hold(address, self.storage, self.samples * self.channels * self.area)
    }

    fn floats(&self, address: u64) -> Result<Array, Code> {
        Array::hold(address, Storage::F32, self.channels)
    }

    /// Calls with every element and its channel.
    fn each(&self, mut call: impl FnMut(usize, usize)) {
        (0..self.samples * self.channels * self.area).for_each(|i| call(i, i / self.area % self.channels));
    }

    /// Two sums over each channel by parts: partial (parts, 2, channels).
    fn sum(&self, partial: u64, parts: usize, values: impl Fn(usize, usize) -> [f32; 2]) -> Result<(), Code> {
        let partial = Array::hold(partial, Storage::F32, parts * 2 * self.channels)?;
        for (part, channel) in (0..parts).flat_map(|part| (0..self.channels).map(move |channel| (part, channel))) {
            let mut sums = [0.0_f32; 2];
            for own in (part..self.samples * self.area).step_by(parts) {
                let i = (own / self.area * self.channels + channel) * self.area + own % self.area;
                sums.iter_mut().zip(values(i, channel)).for_each(|(sum, value)| *sum += value);
            }
            for (k, sum) in sums.into_iter().enumerate() {
                partial.set((part * 2 + k) * self.channels + channel, sum);
            }
        }
        Ok(())
    }
}

/// How channels are normalized: means, inverse deviations, or variances if there is an epsilon, scales and shifts.
struct Normal {
    arrays: [Array; 4],
    epsilon: f32,
    relu: bool,
}

impl Normal {
    fn new(planes: &Planes, addresses: &[u64], epsilon: f32, relu: bool) -> Result<Normal, Code> {
        let [mean, second, scale, shift] = [0, 1, 2, 3].map(|i| planes.floats(addresses[i]));
        Ok(Normal { arrays: [mean?, second?, scale?, shift?], epsilon, relu })
    }

    /// The mean of a channel, the factor of the difference, and the shift.
    fn of(&self, channel: usize) -> [f32; 3] {
        let [mean, second, scale, shift] = self.arrays.each_ref().map(|array| array.get(channel));
        let deviation = if self.epsilon < 0.0 { second } else { 1.0 / (second + self.epsilon).sqrt() };
        [mean, scale * deviation, shift]
    }

    /// An element before a ReLU.
    fn normalized(&self, channel: usize, x: f32) -> f32 {
        let [mean, factor, shift] = self.of(channel);
        (x - mean) * factor + shift
    }

    fn apply(&self, channel: usize, x: f32) -> f32 {
        let y = self.normalized(channel, x);
        if self.relu && y < 0.0 { 0.0 } else { y }
    }

    /// dy, or 0 where a ReLU behind the normalization cut the element.
    fn passed(&self, channel: usize, x: f32, dy: f32) -> f32 {
        if !self.relu || self.normalized(channel, x) > 0.0 { dy } else { 0.0 }
    }
}

/// Both sums of all parts of a channel.
fn total(partial: &Array, channels: usize, parts: usize, channel: usize) -> [f64; 2] {
    [0, 1].map(|k| (0..parts).map(|part| f64::from(partial.get((part * 2 + k) * channels + channel))).sum())
}

/// The variance that an inverse deviation is of.
fn variance_of(deviation: f32, epsilon: f32) -> f64 {
    (f64::from(deviation).recip().powi(2) - f64::from(epsilon)).max(0.0)
}

/// Moves a channel's running mean and variance to the statistics of `count` elements.
fn move_running(running: &(Array, Array), channel: usize, (mean, variance): (f32, f64), count: usize, share: f32) {
    let unbiased = (variance * (count as f64 / (count as f64 - 1.0).max(1.0))) as f32;
    for (running, new) in [(&running.0, mean), (&running.1, unbiased)] {
        running.set(channel, running.get(channel) * (1.0 - share) + new * share);
    }
}

/// Runs one of these kernels.
///
/// # Errors
/// As [`Launch::run`].
pub fn run(launch: &Launch, name: &str, storage: Storage) -> Result<(), Code> {
    let p = &launch.parameters;
    let float = |i: usize| f32::from_bits(p[i] as u32);
    let number = |i: usize| p[i] as u32 as usize;
    let (name, last) = name.strip_suffix("_last").map_or((name, false), |name| (name, true));
    let planes = |at: usize, addresses: &[u64]| Planes::new(launch, storage, last, at, addresses);
    // One argument less with the channels last.
    let beyond = |at: usize| if last { at - 1 } else { at };
    match name {
        "norm_sums" => {
            let planes = planes(2, &p[..1])?;
            let x = planes.map(p[0])?;
            planes.sum(p[1], launch.grid[1], |i, channel| {
                let value = x.get(i) - x.get(channel * planes.area);
                [value, value * value]
            })?;
        }
        "norm_statistics" => {
            let (count, before, plane) = (p[6] as usize, p[7] as usize, p[8] as usize);
            let (channels, parts, share, epsilon) = (number(9), number(10), float(11), float(12));
            let first = Array::hold(p[0], storage, channels.saturating_sub(1) * plane + 1)?;
            let partial = Array::hold(p[1], Storage::F32, parts * 2 * channels)?;
            let each = |address| Array::hold(address, Storage::F32, channels);
            let (means, deviations) = (each(p[2])?, each(p[3])?);
            let running = if p[4] == 0 { None } else { Some((each(p[4])?, each(p[5])?)) };
            for channel in 0..channels {
                let [sum, squares] = total(&partial, channels, parts, channel);
                let beyond = sum / count as f64;
                let variance = (squares / count as f64 - beyond * beyond).max(0.0);
                let mut mean = first.get(channel * plane) + beyond as f32;
                let mut variance = variance;
                if before > 0 {
                    let own = count as f64 / (before as f64 + count as f64);
                    let earlier = variance_of(deviations.get(channel), epsilon);
                    let apart = f64::from(mean) - f64::from(means.get(channel));
                    variance = earlier * (1.0 - own) + variance * own + apart * apart * own * (1.0 - own);
                    mean = (f64::from(means.get(channel)) + apart * own) as f32;
                }
                means.set(channel, mean);
                deviations.set(channel, (1.0 / (variance + f64::from(epsilon)).sqrt()) as f32);
                if let Some(running) = &running {
                    move_running(running, channel, (mean, variance), count, share);
                }
            }
        }
        "norm_running" => {
            let (count, channels, share, epsilon) = (p[4] as usize, number(5), float(6), float(7));
            let each = |address| Array::hold(address, Storage::F32, channels);
            let (means, deviations, running) = (each(p[0])?, each(p[1])?, (each(p[2])?, each(p[3])?));
            for channel in 0..channels.min(launch.grid[0] * 256) {
                let variance = variance_of(deviations.get(channel), epsilon);
                move_running(&running, channel, (means.get(channel), variance), count, share);
            }
        }
        "norm_apply" => {
            let planes = planes(6, &p[..2])?;
            let (x, y) = (planes.map(p[0])?, planes.map(p[1])?);
            let normal = Normal::new(&planes, &p[2..6], float(beyond(10)), number(beyond(11)) != 0)?;
            planes.each(|i, channel| y.set(i, normal.apply(channel, x.get(i))));
        }
        "norm_gradient_sums" => {
            let planes = planes(7, &p[..2])?;
            let (x, dy) = (planes.map(p[0])?, planes.map(p[1])?);
            let normal = Normal::new(&planes, &p[2..6], -1.0, number(beyond(11)) != 0)?;
            planes.sum(p[6], launch.grid[1], |i, channel| {
                let (x, [mean, ..]) = (x.get(i), normal.of(channel));
                let dy = normal.passed(channel, x, dy.get(i));
                [dy, dy * (x - mean)]
            })?;
        }
        "norm_gradients" => {
            let (channels, parts, add) = (number(4), number(5), number(6) != 0);
            let partial = Array::hold(p[0], Storage::F32, parts * 2 * channels)?;
            let each = |address| Array::hold(address, Storage::F32, channels);
            let (deviations, scales, shifts) = (each(p[1])?, each(p[2])?, each(p[3])?);
            for channel in 0..channels {
                let [sum, product] = total(&partial, channels, parts, channel);
                scales.put(channel, (product * f64::from(deviations.get(channel))) as f32, add);
                shifts.put(channel, sum as f32, add);
            }
        }
        "norm_gradient" => {
            let planes = planes(10, &p[..3])?;
            let (x, dy, dx) = (planes.map(p[0])?, planes.map(p[1])?, planes.map(p[2])?);
            let [add, relu] = [14, 15].map(|at| number(beyond(at)) != 0);
            let (normal, deviations) = (Normal::new(&planes, &p[3..7], -1.0, relu)?, planes.floats(p[4])?);
            let (to_scales, to_shifts, count) = (planes.floats(p[7])?, planes.floats(p[8])?, p[9] as f32);
            planes.each(|i, channel| {
                let (x, [mean, factor, _]) = (x.get(i), normal.of(channel));
                let slope = factor * deviations.get(channel) * (to_scales.get(channel) / count);
                let offset = factor * (to_shifts.get(channel) / count);
                dx.put(i, factor * normal.passed(channel, x, dy.get(i)) - slope * (x - mean) - offset, add);
            });
        }
        _ => return Err(Code::INVALID_HANDLE),
    }
    Ok(())
}
