//! The columns of a convolution (im2col): for every output position the inputs under the filter, so that the
//! convolution becomes a matrix product.
//!
//! ```text
//!            positions p ..                           nchw: a row of the matrix per (c, r, s), contiguous in p
//!   c r s  | x[c, p+r-pad ..] |                       nhwc: a row per position, contiguous in (r, s, c)
//! ```
//!
//! Both orders copy runs of contiguous memory, and match the order of a filter in memory. In nchw, where the output has
//! the width of the input and the stride is 1, a run is a whole channel: its rows follow one another in both, shifted,
//! and only positions outside of the input are not copied. [`fold`] is the adjoint: it adds columns back to where they came
//! from.

use std::ops::Range;

use tightfit_conv::Layout;

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
    if shifts(shape) {
        unfold_channels(shape, positions, width, sample, columns);
    } else {
        unfold_runs(shape, positions, width, sample, columns);
    }
}

fn unfold_channels(shape: &Shape, positions: Range<usize>, width: usize, sample: &[f32], columns: &mut [f32]) {
    for_channels(shape, positions, width, |channel| {
        let Channel { whole, copied, input, .. } = &channel;
        columns[whole.start..copied.start].fill(0.0);
        columns[copied.clone()].copy_from_slice(&sample[*input..*input + copied.len()]);
        columns[copied.end..whole.end].fill(0.0);
        channel.beside().for_each(|beside| columns[beside] = 0.0);
    });
}

fn unfold_runs(shape: &Shape, positions: Range<usize>, width: usize, sample: &[f32], columns: &mut [f32]) {
    for_runs(shape, positions, width, |Run { column, count, input, step }| {
        let into = &mut columns[column..column + count];
        match input {
            None => into.fill(0.0),
            Some(from) if step == 1 => into.copy_from_slice(&sample[from..from + count]),
            Some(from) => into.iter_mut().zip(sample[from..].iter().step_by(step)).for_each(|(into, &x)| *into = x),
        }
    });
}

/// Adds `columns` to the inputs under `positions` of one sample, which starts at the group's first channel. Overwrites
/// columns that lie on padding.
pub fn fold(shape: &Shape, positions: Range<usize>, width: usize, columns: &mut [f32], sample: &mut [f32]) {
    if shifts(shape) {
        fold_channels(shape, positions, width, columns, sample);
    } else {
        fold_runs(shape, positions, width, columns, sample);
    }
}

fn fold_channels(shape: &Shape, positions: Range<usize>, width: usize, columns: &mut [f32], sample: &mut [f32]) {
    for_channels(shape, positions, width, |channel| {
        channel.beside().for_each(|beside| columns[beside] = 0.0);
        let into = &mut sample[channel.input..channel.input + channel.copied.len()];
        into.iter_mut().zip(&columns[channel.copied.clone()]).for_each(|(into, x)| *into += x);
    });
}

fn fold_runs(shape: &Shape, positions: Range<usize>, width: usize, columns: &[f32], sample: &mut [f32]) {
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

/// Whether the inputs under a filter element are the positions of a channel, shifted by the same number everywhere.
fn shifts(shape: &Shape) -> bool {
    let [d, h, w] = &shape.axes;
    let is_flat = d.input == 1 && d.pad_before == 0 && shape.outputs[0] == 1 && shape.filter[0] == 1;
    let is_dense = shape.layout == Layout::Nchw && shape.x[4] == 1 && shape.x[3] == w.input;
    is_flat && is_dense && h.stride == 1 && w.stride == 1 && shape.outputs[2] == w.input
}

/// A row of the column matrix: one filter element over the positions of one channel.
struct Channel {
    /// Where it lies in the matrix.
    whole: Range<usize>,
    /// The part of it that is copied: that above and below the input is not.
    copied: Range<usize>,
    /// Where that starts in the sample, from the group's first channel on.
    input: usize,
    /// Of a row of outputs, those whose inputs lie in the same row, the length of the row, and the first position.
    covered: Range<usize>,
    length: usize,
    first: usize,
}

impl Channel {
    /// The places left and right of the input, at the ends of each row of outputs.
    fn beside(&self) -> impl Iterator<Item = usize> {
        let Channel { whole, copied, covered, length, first, .. } = self;
        let position = move |at: usize| at - whole.start + first;
        let rows = position(copied.start) / length..position(copied.end).div_ceil(*length);
        let ends = move |row| (0..covered.start).chain(covered.end..*length).map(move |at| row * length + at);
        let range = position(copied.start)..position(copied.end);
        rows.flat_map(ends).filter(move |at| range.contains(at)).map(move |at| at - first + whole.start)
    }
}

/// Visits every filter element of every channel of a shape that [`shifts`].
fn for_channels(shape: &Shape, positions: Range<usize>, width: usize, mut visit: impl FnMut(Channel)) {
    let [_, h, w] = &shape.axes;
    let length = w.input;
    for depth in 0..shape.depth() {
        let (channel, tap) = (depth / shape.taps(), depth % shape.taps());
        let (r, s) = (tap / shape.filter[2], tap % shape.filter[2]);
        let (rows, covered) = (inside(h, r), inside(w, s));
        // An input lies this far behind its output in the channel, less what the padding takes away.
        let (shift, back) = (r * h.dilation * length + s * w.dilation, h.pad_before * length + w.pad_before);
        let inputs = h.input * length;
        let least = (rows.start * length).max(back.saturating_sub(shift));
        let most = (rows.end * length).min((inputs + back).saturating_sub(shift));
        let start = least.clamp(positions.start, positions.end);
        let end = most.clamp(start, positions.end);
        let place = |position: usize| depth * width + position - positions.start;
        let empty = covered.is_empty() || start == end;
        let end = if empty { start } else { end };
        visit(Channel {
            whole: place(positions.start)..place(positions.end),
            copied: place(start)..place(end),
            input: channel * shape.x[1] + if empty { 0 } else { start + shift - back },
            covered,
            length,
            first: positions.start,
        });
    }
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

#[cfg(test)]
mod tests {
    use tightfit_conv::{Axis, Convolution, Operation, Problem, Types};

    use super::*;

    /// Whole channels against single runs: every part of the positions of maps of every small size, filters of up to 5 with
    /// every padding that keeps the width, and dilation.
    #[test]
    fn channels_and_runs_give_the_same() {
        let mut tried = 0;
        for [h, w] in [[1, 1], [1, 4], [4, 1], [3, 2], [4, 5]] {
            for (filter, dilation, before) in
                [(1, 1, 0), (3, 1, 0), (3, 1, 1), (3, 1, 2), (5, 1, 2), (3, 2, 2), (3, 2, 3)]
            {
                for (filter_h, above, below) in [(1, 0, 0), (3, 1, 1), (3, 0, 3), (5, 4, 1)] {
                    let after = (filter - 1) * dilation - before;
                    let high = Axis { pad_before: above, pad_after: below, ..Axis::new(h, filter_h) };
                    let wide = Axis { pad_before: before, pad_after: after, dilation, ..Axis::new(w, filter) };
                    let Ok(convolution) = Convolution::new(2, 1, 1, &[high, wide]) else { continue };
                    let problem = Problem::new(convolution, Operation::Forward, 1, Types::F32, Layout::Nchw).unwrap();
                    compare(&Shape::new(&problem));
                    tried += 1;
                }
            }
        }
        assert!(tried > 80, "{tried} shapes");
    }

    fn compare(shape: &Shape) {
        assert!(shifts(shape), "{shape:?}");
        let sample: Vec<f32> = (1..=shape.c * shape.x[1]).map(|i| i as f32).collect();
        let count = shape.positions();
        for start in 0..count {
            for end in start + 1..=count {
                // Rows are wider than the filled part: the rest stays.
                let width = end - start + 1;
                let given: Vec<f32> = (0..shape.depth() * width).map(|i| (i % 17) as f32).collect();
                let (mut all, mut runs) = (given.clone(), given.clone());
                unfold_channels(shape, start..end, width, &sample, &mut all);
                unfold_runs(shape, start..end, width, &sample, &mut runs);
                assert_eq!(all, runs, "{shape:?} {start}..{end}");
                let (mut all, mut runs) = (sample.clone(), sample.clone());
                fold_channels(shape, start..end, width, &mut given.clone(), &mut all);
                fold_runs(shape, start..end, width, &given, &mut runs);
                assert_eq!(all, runs, "folded: {shape:?} {start}..{end}");
            }
        }
    }

    #[test]
    fn strides_other_widths_and_other_orders_are_no_shifts() {
        for line in [
            "forward n1 c2 h4 w5 k1 r3 s3 f32",
            "forward n1 c2 h5 w5 k1 r3 s3 pad1 stride2 f32",
            "forward n1 c2 h4 w5 k1 r3 s3 pad1 f32 nhwc",
            "forward n1 c2 d4 h4 w5 k1 t3 r3 s3 pad1 f32",
        ] {
            assert!(!shifts(&Shape::new(&line.parse().unwrap())), "{line}");
        }
    }
}
