//! Local response normalization across channels.
//!
//! ```text
//! s = k + alpha / size · sum of x² over the window        y = x · s^-beta
//!
//! dx = dy · s^-beta - 2 · alpha · beta / size · x · sum of dy · y / s over the windows that x is in
//! ```
//!
//! The window of channel c is the (size - 1) / 2 channels before it, c, and the rest after it, cut at the edges, as
//! cuDNN has it. **Source:** Krizhevsky et al. 2012, section 3.3, alpha divided by the size as Caffe does.

use std::ops::Range;

use super::Store;
use crate::team::Team;

/// The layer's numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Normalization {
    /// Channels of a window.
    pub size: usize,
    /// Factor of the mean square.
    pub alpha: f32,
    /// The exponent.
    pub beta: f32,
    /// The constant that keeps the base from zero.
    pub k: f32,
}

/// Positions that are worked on at a time, so that all their channels stay in the cache.
const TILE: usize = 256;

impl Normalization {
    /// The channels that channel `c` is normalized by.
    fn window(&self, c: usize, channels: usize) -> Range<usize> {
        let behind = (self.size - 1) / 2;
        c.saturating_sub(behind)..(c + self.size - behind).min(channels)
    }

    /// The channels whose windows channel `c` is in.
    fn mirrored(&self, c: usize, channels: usize) -> Range<usize> {
        let behind = (self.size - 1) / 2;
        (c + 1 + behind).saturating_sub(self.size)..(c + behind + 1).min(channels)
    }

    /// s of some positions of one channel of a sample.
    fn base(&self, x: &[f32], at: &Range<usize>, c: usize, (channels, positions): (usize, usize), s: &mut [f32]) {
        s.fill(0.0);
        for other in self.window(c, channels) {
            let row = &x[other * positions..][at.clone()];
            s.iter_mut().zip(row).for_each(|(s, x)| *s += x * x);
        }
        let factor = self.alpha / self.size as f32;
        s.iter_mut().for_each(|s| *s = self.k + factor * *s);
    }
}

/// y from x; both are n, `channels`, `positions`.
pub fn forward(team: &Team, by: Normalization, channels: usize, positions: usize, x: &[f32], y: &mut [f32]) {
    let sample = channels * positions;
    let samples = x.chunks(sample).zip(y.chunks_mut(sample)).collect();
    team.share(samples, &mut [], |(x, y): (&[f32], &mut [f32]), _, _| {
        let mut s = [0.0; TILE];
        for (at, c) in tiles(channels, positions) {
            let s = &mut s[..at.len()];
            by.base(x, &at, c, (channels, positions), s);
            let row = c * positions;
            let (x, y) = (&x[row..][at.clone()], &mut y[row..][at]);
            y.iter_mut().zip(x.iter().zip(s)).for_each(|(y, (x, s))| *y = x * s.powf(-by.beta));
        }
    });
}

/// dx from x, y and dy.
#[allow(clippy::too_many_arguments)]
pub fn backward(
    team: &Team,
    by: Normalization,
    channels: usize,
    positions: usize,
    (x, y): (&[f32], &[f32]),
    dy: &[f32],
    dx: &mut [f32],
    store: Store,
) {
    let sample = channels * positions;
    let samples = dx.chunks_mut(sample).enumerate().collect();
    team.share(samples, &mut [], |(n, dx): (usize, &mut [f32]), _, _| {
        let part = n * sample..(n + 1) * sample;
        let (x, y, dy) = (&x[part.clone()], &y[part.clone()], &dy[part]);
        // s of all channels of a tile: every channel needs its neighbors.
        let mut bases = vec![0.0; channels * TILE];
        for start in (0..positions).step_by(TILE) {
            let at = start..(start + TILE).min(positions);
            for c in 0..channels {
                by.base(x, &at, c, (channels, positions), &mut bases[c * TILE..][..at.len()]);
            }
            let factor = 2.0 * by.alpha * by.beta / by.size as f32;
            for c in 0..channels {
                let mut sum = [0.0f32; TILE];
                for other in by.mirrored(c, channels) {
                    let (row, s) = (other * positions, &bases[other * TILE..]);
                    let values = dy[row..][at.clone()].iter().zip(&y[row..][at.clone()]).zip(s);
                    sum.iter_mut().zip(values).for_each(|(sum, ((dy, y), s))| *sum += dy * y / s);
                }
                let (row, s) = (c * positions, &bases[c * TILE..]);
                for (i, place) in at.clone().enumerate() {
                    let (x, dy) = (x[row + place], dy[row + place]);
                    store.put(&mut dx[row + place], dy * s[i].powf(-by.beta) - factor * x * sum[i]);
                }
            }
        }
    });
}

/// Every tile of positions of every channel.
fn tiles(channels: usize, positions: usize) -> impl Iterator<Item = (Range<usize>, usize)> {
    let starts = (0..positions).step_by(TILE);
    starts.flat_map(move |at| (0..channels).map(move |c| (at..(at + TILE).min(positions), c)))
}
