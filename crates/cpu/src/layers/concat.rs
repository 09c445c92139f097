//! Maps side by side in channels.
//!
//! ```text
//! sample of y   |-- x0 --|---- x1 ----|-- x2 --|     a range of elements for each input
//! ```

use std::ops::Range;

use super::Store;
use crate::team::Team;

/// The part of y that one input fills: `range` of the `length` elements of each sample of y.
pub fn forward(team: &Team, x: &[f32], y: &mut [f32], range: Range<usize>, length: usize) {
    let samples = x.chunks(range.len()).zip(y.chunks_mut(length)).collect();
    team.share(samples, &mut [], |(x, y): (&[f32], &mut [f32]), _, _| y[range.clone()].copy_from_slice(x));
}

/// The gradient of one input: `range` of the `length` elements of each sample of dy.
pub fn backward(team: &Team, dy: &[f32], dx: &mut [f32], range: Range<usize>, length: usize, store: Store) {
    let samples = dx.chunks_mut(range.len()).zip(dy.chunks(length)).collect();
    team.share(samples, &mut [], |(dx, dy): (&mut [f32], &[f32]), _, _| {
        dx.iter_mut().zip(&dy[range.clone()]).for_each(|(dx, dy)| store.put(dx, *dy));
    });
}
