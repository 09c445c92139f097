//! Dropout: elements zeroed at random, the others scaled up to keep the mean.
//!
//! Whether an element is kept depends on the key and its place in the mini-batch alone, so slices and recomputation drop
//! the same ones. **Source:** Srivastava et al. 2014, with the scaling in training.

use super::{Flow, PIECE};
use crate::random;
use crate::team::Team;

/// Draws which elements are kept (1) and which dropped (0).
///
/// `key` is [`random::key`] of seed, layer and step; `first` is the place of the first element in the mini-batch. An
/// element is kept if its bits are at least `rate` · 2^32.
pub fn draw(team: &Team, rate: f32, key: u64, first: u64, mask: &mut [u8]) {
    let threshold = (f64::from(rate) * 2f64.powi(32)) as u64;
    let pieces = mask.chunks_mut(PIECE).enumerate().collect();
    team.share(pieces, &mut [], |(piece, mask): (usize, &mut [u8]), _, _| {
        for (i, kept) in mask.iter_mut().enumerate() {
            let place = first + (piece * PIECE + i) as u64;
            *kept = u8::from(u64::from(random::bits(key, place)) >= threshold);
        }
    });
}

/// Zeroes what the mask drops and scales the rest by 1 / (1 - rate): forward on x, backward on dy.
pub fn apply(team: &Team, rate: f32, mask: &[u8], values: Flow) {
    let scale = 1.0 / (1.0 - rate);
    values.map(team, |i, value| if mask[i] == 0 { 0.0 } else { value * scale });
}
