//! Layer normalization: each row brought to mean 0 and deviation 1, then scaled and shifted place by place.
//!
//! ```text
//! y = scale · h + shift        h = (x - mean) · inverse        inverse = 1 / sqrt(variance + epsilon)
//!
//! dshift = sum of dy           dscale = sum of dy · h, over the rows
//!
//! dx = inverse · (g - mean of g - h · mean of g · h)           g = dy · scale
//! ```
//!
//! The backward pass computes mean and inverse again from x, so nothing is saved. Sums run in 64 bits.
//! **Source:** Ba et al. 2016.

use super::Store;
use crate::team::Team;

/// Rows that a thread takes at a time.
const ROWS: usize = 64;

/// The mean and the inverse deviation of a row.
fn statistics(epsilon: f32, x: &[f32]) -> (f64, f64) {
    let count = x.len() as f64;
    let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
    let variance = x.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count;
    (mean, 1.0 / (variance + f64::from(epsilon)).sqrt())
}

/// y from x; both are rows of as many elements as there are scales.
pub fn forward(team: &Team, epsilon: f32, (scales, shifts): (&[f32], &[f32]), x: &[f32], y: &mut [f32]) {
    let length = scales.len();
    let items = x.chunks(ROWS * length).zip(y.chunks_mut(ROWS * length)).collect();
    team.share(items, &mut [], |(x, y): (&[f32], &mut [f32]), _, _| {
        for (x, y) in x.chunks(length).zip(y.chunks_mut(length)) {
            let (mean, inverse) = statistics(epsilon, x);
            for ((y, x), (scale, shift)) in y.iter_mut().zip(x).zip(scales.iter().zip(shifts)) {
                *y = ((f64::from(*x) - mean) * inverse) as f32 * scale + shift;
            }
        }
    });
}

/// The gradients of scales and shifts.
pub fn backward_parameters(
    team: &Team,
    epsilon: f32,
    (x, dy): (&[f32], &[f32]),
    (scales, shifts): (&mut [f32], &mut [f32]),
    store: Store,
) {
    let length = scales.len();
    let statistics: Vec<(f64, f64)> = x.chunks(length).map(|x| statistics(epsilon, x)).collect();
    let items = scales.iter_mut().zip(shifts).enumerate().collect();
    team.share(items, &mut [], |(place, (scale, shift)): (usize, (&mut f32, &mut f32)), _, _| {
        let column = |of: &'_ [f32], row: usize| f64::from(of[row * length + place]);
        let (mut by_scale, mut by_shift) = (0.0, 0.0);
        for (row, (mean, inverse)) in statistics.iter().enumerate() {
            by_shift += column(dy, row);
            by_scale += column(dy, row) * (column(x, row) - mean) * inverse;
        }
        store.put(scale, by_scale as f32);
        store.put(shift, by_shift as f32);
    });
}

/// dx from x and dy.
pub fn backward_data(
    team: &Team,
    epsilon: f32,
    scales: &[f32],
    (x, dy): (&[f32], &[f32]),
    dx: &mut [f32],
    store: Store,
) {
    let (length, count) = (scales.len(), scales.len() as f64);
    let items = dx.chunks_mut(length).zip(x.chunks(length).zip(dy.chunks(length))).collect();
    team.share(items, &mut [], |(dx, (x, dy)): (&mut [f32], (&[f32], &[f32])), _, _| {
        let (mean, inverse) = statistics(epsilon, x);
        let parts = || {
            let places = x.iter().zip(dy).zip(scales);
            places.map(|((x, dy), scale)| ((f64::from(*x) - mean) * inverse, f64::from(*dy) * f64::from(*scale)))
        };
        let (sum, product) = parts().fold((0.0, 0.0), |(sum, product), (h, g)| (sum + g, product + g * h));
        for (dx, (h, g)) in dx.iter_mut().zip(parts()) {
            store.put(dx, (inverse * (g - sum / count - h * product / count)) as f32);
        }
    });
}
