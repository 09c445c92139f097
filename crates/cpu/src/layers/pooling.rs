//! Pooling: the largest element or the mean of each window, in two or three dimensions.
//!
//! Of equal elements the first in row order is the largest: it alone gets the gradient. A window is cut at the edges of
//! the input, so padding is never the largest and counts neither in a mean's sum nor in its divisor.

use std::ops::Range;

use tightfit_conv::Axis;
use tightfit_network::{Pooling, PoolingMethod};

use super::Store;
use crate::team::Team;

/// The inputs of one axis under window `at`.
fn window(axis: &Axis, at: usize) -> Range<usize> {
    let start = at * axis.stride;
    let end = (start + axis.reach()).saturating_sub(axis.pad_before).min(axis.input);
    start.saturating_sub(axis.pad_before).min(end)..end
}

/// One window: its inputs along each axis, and the extents of a plane of the input.
#[derive(Clone)]
struct Window {
    planes: Range<usize>,
    lines: Range<usize>,
    row: Range<usize>,
    height: usize,
    width: usize,
}

impl Window {
    /// The places of its inputs in their plane, in row order.
    fn places(&self) -> impl Iterator<Item = usize> + '_ {
        let lines = self.planes.clone().flat_map(move |z| self.lines.clone().map(move |y| z * self.height + y));
        lines.flat_map(move |line| self.row.clone().map(move |x| line * self.width + x))
    }

    fn len(&self) -> usize {
        self.planes.len() * self.lines.len() * self.row.len()
    }
}

/// Calls `each` with every window of one plane, and its output's place.
fn for_windows(pooling: &Pooling, mut each: impl FnMut(usize, Window)) {
    let [_, height, width] = pooling.axes.map(|axis| axis.input);
    let [d, h, w] = &pooling.axes;
    let [depth, rows, columns] = pooling.outputs();
    for o in 0..depth {
        for p in 0..rows {
            for q in 0..columns {
                let (planes, lines, row) = (window(d, o), window(h, p), window(w, q));
                each((o * rows + p) * columns + q, Window { planes, lines, row, height, width });
            }
        }
    }
}

/// Elements of a plane of the input and of the output.
fn planes(pooling: &Pooling) -> (usize, usize) {
    (pooling.axes.iter().map(|axis| axis.input).product(), pooling.outputs().iter().product())
}

/// y from x; both are planes one after another, as many in y as in x.
pub fn forward(team: &Team, pooling: &Pooling, x: &[f32], y: &mut [f32]) {
    let (inputs, outputs) = planes(pooling);
    let items = x.chunks(inputs).zip(y.chunks_mut(outputs)).collect();
    team.share(items, &mut [], |(x, y): (&[f32], &mut [f32]), _, _| {
        for_windows(pooling, |output, window| {
            let values = window.places().map(|place| x[place]);
            y[output] = match pooling.method {
                // A NaN wins, instead of vanishing unseen.
                PoolingMethod::Maximum => {
                    values.fold(f32::NEG_INFINITY, |best, x| if x > best || x.is_nan() { x } else { best })
                }
                PoolingMethod::Average => values.sum::<f32>() / window.len() as f32,
            };
        });
    });
}

/// dx from dy; for the maximum also from x and y, which the mean does not read.
pub fn backward(
    team: &Team,
    pooling: &Pooling,
    (x, y): (Option<&[f32]>, Option<&[f32]>),
    dy: &[f32],
    dx: &mut [f32],
    store: Store,
) {
    let (inputs, outputs) = planes(pooling);
    let items = dx.chunks_mut(inputs).enumerate().collect();
    team.share(items, &mut [], |(plane, dx): (usize, &mut [f32]), _, _| {
        if store == Store::Write {
            dx.fill(0.0);
        }
        let dy = &dy[plane * outputs..][..outputs];
        match (pooling.method, x, y) {
            (PoolingMethod::Maximum, Some(x), Some(y)) => {
                let (x, y) = (&x[plane * inputs..][..inputs], &y[plane * outputs..][..outputs]);
                for_windows(pooling, |output, window| {
                    if let Some(place) = window.places().find(|&place| x[place] == y[output]) {
                        dx[place] += dy[output];
                    }
                });
            }
            (PoolingMethod::Maximum, ..) => dx.fill(f32::NAN),
            (PoolingMethod::Average, ..) => for_windows(pooling, |output, window| {
                let part = dy[output] / window.len() as f32;
                window.places().for_each(|place| dx[place] += part);
            }),
        }
    });
}
