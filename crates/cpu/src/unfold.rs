//! The columns of a convolution (im2col): for every output position the inputs under the filter, so that the
//! convolution becomes a matrix product.
//!
//! ```text
//!            positions p ..                           nchw: a row of the matrix per (c, r, s), contiguous in p
//!   c r s  | x[c, p+r-pad ..] |                       nhwc: a row per position, contiguous in (r, s, c)
//! ```
//!
//! Both orders copy runs of contiguous memory, and match the order of a filter in memory. [`fold`] is the adjoint: it
//! adds columns back to where they came from.

use std::ops::Range;

use tightfit_core::Layout;

use crate::gemm::Strides;
use crate::shape::{Shape, input_at, inside};

/// Strides of a column matrix (depth x positions) that holds `count` positions.
pub fn strides(shape: &Shape, count: usize) -> Strides {
    match shape.layout {
        Layout::Nchw => Strides::rows(count),
        Layout::Nhwc => Strides { row: 1, column: shape.depth() },
    }
}

/// A run of a column matrix.
struct Run {
    /// Where it starts in the matrix, where it is contiguous.
    column: usize,
    /// How many elements it has.
    count: usize,
    /// Where it starts in the sample, from the group's first channel on; none for padding.
    input: Option<usize>,
    /// Floats between neighboring elements in the sample.
    step: usize,
}

/// Fills `columns` with the inputs under `positions` of one sample, which starts at the group's first channel. In nchw
/// a row of the matrix holds `width` positions; these are the first ones.
pub fn unfold(shape: &Shape, positions: Range<usize>, width: usize, sample: &[f32], columns: &mut [f32]) {
    for_runs(shape, positions, width, |Run { column, count, input, step }| {
        let into = &mut columns[column..column + count];
        match input {
            None => into.fill(0.0),
            Some(from) if step == 1 => into.copy_from_slice(&sample[from..from + count]),
            Some(from) => into.iter_mut().zip(sample[from..].iter().step_by(step)).for_each(|(into, &x)| *into = x),
        }
    });
}

/// Adds `columns` to the inputs under `positions` of one sample, which starts at the group's first channel.
pub fn fold(shape: &Shape, positions: Range<usize>, width: usize, columns: &[f32], sample: &mut [f32]) {
    for_runs(shape, positions, width, |Run { column, count, input, step }| {
        let from = &columns[column..column + count];
        match input {
            None => {}
            Some(into) if step == 1 => {
                sample[into..into + count].iter_mut().zip(from).for_each(|(into, x)| *into += x);
            }
            Some(into) => sample[into..].iter_mut().step_by(step).zip(from).for_each(|(into, x)| *into += x),
        }
    });
}

fn for_runs(shape: &Shape, positions: Range<usize>, width: usize, visit: impl FnMut(Run)) {
    match shape.layout {
        Layout::Nchw => for_rows(shape, positions, width, visit),
        Layout::Nhwc => for_pixels(shape, positions, visit),
    }
}

/// Runs along the rows of the output, for each channel and filter element.
fn for_rows(shape: &Shape, positions: Range<usize>, width: usize, mut visit: impl FnMut(Run)) {
    let [d, h, w] = &shape.axes;
    let [_, rows, length] = shape.outputs;
    for depth in 0..shape.depth() {
        let [_, filter_h, filter_w] = shape.filter;
        let (channel, tap) = (depth / shape.taps(), depth % shape.taps());
        let [t, r, s] = [tap / (filter_h * filter_w), tap / filter_w % filter_h, tap % filter_w];
        let covered = inside(w, s);
        let mut at = positions.start;
        let mut column = depth * width;
        while at < positions.end {
            let (row, start) = (at / length, at % length);
            let end = length.min(start + positions.end - at);
            let mut run = |from: usize, to: usize, input| {
                if from < to {
                    let step = w.stride * shape.x[4];
                    visit(Run { column: column + from - start, count: to - from, input, step });
                }
            };
            let (first, last) = (covered.start.clamp(start, end), covered.end.clamp(start, end));
            let place = (input_at(d, row / rows, t), input_at(h, row % rows, r), input_at(w, first, s));
            match place {
                (Some(z), Some(y), Some(x)) if first < last => {
                    let input = channel * shape.x[1] + z * shape.x[2] + y * shape.x[3] + x * shape.x[4];
                    run(start, first, None);
                    run(first, last, Some(input));
                    run(last, end, None);
                }
                _ => run(start, end, None),
            }
            column += end - start;
            at += end - start;
        }
    }
}

/// Runs along the channels of one pixel, for each position and filter element.
fn for_pixels(shape: &Shape, positions: Range<usize>, mut visit: impl FnMut(Run)) {
    let [d, h, w] = &shape.axes;
    let [_, rows, length] = shape.outputs;
    let mut column = 0;
    for at in positions {
        for t in 0..shape.filter[0] {
            for r in 0..shape.filter[1] {
                for s in 0..shape.filter[2] {
                    let z = input_at(d, at / length / rows, t);
                    let y = input_at(h, at / length % rows, r);
                    let x = input_at(w, at % length, s);
                    let input = z.zip(y).zip(x).map(|((z, y), x)| z * shape.x[2] + y * shape.x[3] + x * shape.x[4]);
                    visit(Run { column, count: shape.c, input, step: 1 });
                    column += shape.c;
                }
            }
        }
    }
}
