//! Stochastic depth: samples zeroed at random as a whole, the others scaled up to keep the mean.
//!
//! Whether a sample is kept depends on the key and its place in the mini-batch alone, so slices, recomputation and the
//! backward pass drop the same ones without a mask. **Source:** Huang et al. 2016.

use super::Flow;
use crate::random;
use crate::team::Team;

/// Zeroes dropped samples of `length` elements and scales the rest by 1 / (1 - rate): forward on x, backward on dy.
///
/// `key` is [`random::key`] of seed, layer and step; `first` is the place of the first sample in the mini-batch. A sample
/// is kept if its bits are at least `rate` · 2^32.
pub fn apply(team: &Team, rate: f32, key: u64, first: usize, length: usize, values: Flow) {
    let threshold = (f64::from(rate) * 2f64.powi(32)) as u64;
    let scale = 1.0 / (1.0 - rate);
    let samples = values.len() / length.max(1);
    let factor = |sample: usize| {
        let is_kept = u64::from(random::bits(key, (first + sample) as u64)) >= threshold;
        if is_kept { scale } else { 0.0 }
    };
    let factors: Vec<f32> = (0..samples).map(factor).collect();
    // A dropped sample is zero whatever it was, so that the gradients of a branch that overflowed vanish too.
    values.map(team, |i, value| match factors[i / length] {
        0.0 => 0.0,
        factor => value * factor,
    });
}
