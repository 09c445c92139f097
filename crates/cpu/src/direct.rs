//! `direct`: the convolution as its definition says, in plain loops without workspace; and in f64, by core's reference.
//!
//! ```text
//! y[n, k, p] = sum over c, r of w[k, c, r] · x[n, c, p · stride - pad + r · dilation]
//! ```
//!
//! The sums run over rows: one filter element times a plane of outputs, row by row, which are contiguous in nchw.

use tightfit_conv::backend::{Scale, Tensors};
use tightfit_conv::execute::{Elements, reference_of};
use tightfit_conv::{Layout, Operation, Problem};

use crate::call::Call;
use crate::shape::{Shape, input_at, inside, prescale, scale};
use crate::simd::{Steps, add_rows, dot_rows};

/// Needs no workspace and supports every problem.
pub fn workspace(_: &Problem, _: usize) -> Result<usize, String> {
    Ok(0)
}

/// Computes the operation; threads divide the output's planes (samples where channels lie innermost), or the filters.
pub fn run(call: &Call, output: &mut [f32], _workspace: &mut [f32]) {
    let shape = &call.shape;
    let strides = match call.problem.operation() {
        Operation::Forward => shape.y,
        Operation::BackwardData => shape.x,
        Operation::BackwardFilter => shape.w,
    };
    let planar = shape.layout == Layout::Nchw && call.problem.operation() != Operation::BackwardFilter;
    let piece = if planar { strides[1] } else { strides[0] };
    let channels = strides[0] / piece;
    let items = output.chunks_mut(piece).enumerate().collect();
    call.team.share(items, &mut [], |(index, piece): (usize, &mut [f32]), _, _| {
        let beta = call.scale.beta;
        let extents = match call.problem.operation() {
            Operation::BackwardFilter => {
                prescale(piece, beta);
                return backward_filter(call, index, piece);
            }
            Operation::Forward => shape.outputs,
            Operation::BackwardData => shape.axes.map(|axis| axis.input),
        };
        let all = if planar { 1 } else { channels_of_output(call) };
        scale(piece, all, extents, strides, beta);
        for channel in 0..all {
            let first = channel * strides[1];
            let at = (index / channels, index % channels + channel);
            match call.problem.operation() {
                Operation::Forward => forward(call, at, &mut piece[first..]),
                _ => backward_data(call, at, &mut piece[first..]),
            }
        }
    });
}

/// Channels of the tensor that is computed, over all groups.
fn channels_of_output(call: &Call) -> usize {
    call.shape.groups * if call.problem.operation() == Operation::Forward { call.shape.k } else { call.shape.c }
}

/// y += alpha · x * w for one filter of one sample.
fn forward(call: &Call, (n, k): (usize, usize), y: &mut [f32]) {
    let shape = &call.shape;
    for c in 0..shape.c {
        let channel = k / shape.k * shape.c + c;
        for_taps(shape, |tap, rows| {
            let factor = call.scale.alpha * call.other[k * shape.w[0] + c * shape.w[1] + tap];
            let x = &call.data[n * shape.x[0] + channel * shape.x[1]..];
            add_rows(factor, (x, rows.input), (y, rows.output), rows.extent);
        });
    }
}

/// dx += alpha · dy * w for one channel of one sample.
fn backward_data(call: &Call, (n, channel): (usize, usize), dx: &mut [f32]) {
    let shape = &call.shape;
    let (group, c) = (channel / shape.c, channel % shape.c);
    for k in group * shape.k..(group + 1) * shape.k {
        for_taps(shape, |tap, rows| {
            let factor = call.scale.alpha * call.other[k * shape.w[0] + c * shape.w[1] + tap];
            let dy = &call.data[n * shape.y[0] + k * shape.y[1]..];
            add_rows(factor, (dy, rows.output), (dx, rows.input), rows.extent);
        });
    }
}

/// dw += alpha · x * dy for one filter.
fn backward_filter(call: &Call, k: usize, dw: &mut [f32]) {
    let shape = &call.shape;
    for n in 0..shape.n {
        if call.team.is_left() {
            return;
        }
        for c in 0..shape.c {
            let channel = k / shape.k * shape.c + c;
            for_taps(shape, |tap, rows| {
                let dy = &call.other[n * shape.y[0] + k * shape.y[1]..];
                let x = &call.data[n * shape.x[0] + channel * shape.x[1]..];
                let sum = dot_rows((dy, rows.output), (x, rows.input), rows.extent);
                dw[c * shape.w[1] + tap] += call.scale.alpha * sum;
            });
        }
    }
}

/// The outputs of one filter element in one depth, and the inputs under them, without padding.
struct Rows {
    output: Steps,
    input: Steps,
    /// The number of rows, and the outputs in each.
    extent: [usize; 2],
}

/// Visits every filter element (its offset in a channel of w) with the rows of outputs of every depth.
fn for_taps(shape: &Shape, mut visit: impl FnMut(usize, Rows)) {
    let [d, h, w] = &shape.axes;
    for t in 0..shape.filter[0] {
        for r in 0..shape.filter[1] {
            for s in 0..shape.filter[2] {
                let tap = t * shape.w[2] + r * shape.w[3] + s * shape.w[4];
                let (rows, columns) = (inside(h, r), inside(w, s));
                let extent = [rows.len(), columns.len()];
                for o in inside(d, t) {
                    let place = (input_at(d, o, t), input_at(h, rows.start, r), input_at(w, columns.start, s));
                    let ((Some(z), Some(y), Some(x)), false) = (place, extent.contains(&0)) else { continue };
                    let output = Steps {
                        start: o * shape.y[2] + rows.start * shape.y[3] + columns.start * shape.y[4],
                        row: shape.y[3],
                        element: shape.y[4],
                    };
                    let input = Steps {
                        start: z * shape.x[2] + y * shape.x[3] + x * shape.x[4],
                        row: h.stride * shape.x[3],
                        element: w.stride * shape.x[4],
                    };
                    visit(tap, Rows { output, input, extent });
                }
            }
        }
    }
}

/// Chosen output elements in f64: what every algorithm is compared with. See [`reference_of`].
pub fn reference(problem: &Problem, tensors: Tensors<'_>, scale: Scale, at: &[usize]) -> Vec<f64> {
    let read = |tensor: &'_ [f32], index: usize| tensor.get(index).map_or(f64::NAN, |&value| f64::from(value));
    let (data, other) = (|index| read(tensors.data, index), |index| read(tensors.other, index));
    let output = |index| read(tensors.output, index);
    reference_of(problem, Elements { data: &data, other: &other, output: &output }, scale, at)
}
