//! `direct`: the convolution as its definition says, in plain loops without workspace, and the same in f64.
//!
//! ```text
//! y[n, k, p] = sum over c, r of w[k, c, r] · x[n, c, p · stride - pad + r · dilation]
//! ```
//!
//! The sums run over rows: one filter element times one row of outputs, which is a loop over contiguous memory.

use tightfit_core::profile::{Scale, Tensors};
use tightfit_core::{Layout, Operation, Problem};

use crate::method::Call;
use crate::shape::{Shape, input_at, inside};

/// No workspace, and no problem that it refuses.
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
        prescale(piece, call.scale.beta);
        if call.problem.operation() == Operation::BackwardFilter {
            return backward_filter(call, index, piece);
        }
        let all = if planar { 1 } else { channels_of_output(call) };
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

/// Multiplies by beta; beta = 0 writes zeros without reading.
pub fn prescale(output: &mut [f32], beta: f32) {
    if beta == 0.0 {
        output.fill(0.0);
    } else if beta != 1.0 {
        output.iter_mut().for_each(|value| *value *= beta);
    }
}

/// y += alpha · x * w for one filter of one sample.
fn forward(call: &Call, (n, k): (usize, usize), y: &mut [f32]) {
    let shape = &call.shape;
    let step = (shape.y[4], shape.axes[2].stride * shape.x[4]);
    for c in 0..shape.c {
        let channel = k / shape.k * shape.c + c;
        for_rows(shape, |tap, output, input, count| {
            let factor = call.scale.alpha * call.other[k * shape.w[0] + c * shape.w[1] + tap];
            let from = n * shape.x[0] + channel * shape.x[1] + input;
            add(&mut y[output..], step.0, &call.data[from..], step.1, count, factor);
        });
    }
}

/// dx += alpha · dy * w for one channel of one sample.
fn backward_data(call: &Call, (n, channel): (usize, usize), dx: &mut [f32]) {
    let shape = &call.shape;
    let (group, c) = (channel / shape.c, channel % shape.c);
    let step = (shape.axes[2].stride * shape.x[4], shape.y[4]);
    for k in group * shape.k..(group + 1) * shape.k {
        for_rows(shape, |tap, output, input, count| {
            let factor = call.scale.alpha * call.other[k * shape.w[0] + c * shape.w[1] + tap];
            let from = n * shape.y[0] + k * shape.y[1] + output;
            add(&mut dx[input..], step.0, &call.data[from..], step.1, count, factor);
        });
    }
}

/// dw += alpha · x * dy for one filter.
fn backward_filter(call: &Call, k: usize, dw: &mut [f32]) {
    let shape = &call.shape;
    let step = (shape.y[4], shape.axes[2].stride * shape.x[4]);
    for n in 0..shape.n {
        for c in 0..shape.c {
            let channel = k / shape.k * shape.c + c;
            for_rows(shape, |tap, output, input, count| {
                let dy = &call.other[n * shape.y[0] + k * shape.y[1] + output..];
                let x = &call.data[n * shape.x[0] + channel * shape.x[1] + input..];
                dw[c * shape.w[1] + tap] += call.scale.alpha * dot(dy, step.0, x, step.1, count);
            });
        }
    }
}

/// Visits every filter element with every row of outputs: (offset of the element in a channel of w, offsets of the
/// row's first output and of the input under it in a plane, number of outputs whose input is no padding).
fn for_rows(shape: &Shape, mut visit: impl FnMut(usize, usize, usize, usize)) {
    let [d, h, w] = &shape.axes;
    for t in 0..shape.filter[0] {
        for r in 0..shape.filter[1] {
            for s in 0..shape.filter[2] {
                let tap = t * shape.w[2] + r * shape.w[3] + s * shape.w[4];
                let row = inside(w, s);
                let Some(column) = input_at(w, row.start, s).filter(|_| !row.is_empty()) else { continue };
                for (o, p) in inside(d, t).flat_map(|o| inside(h, r).map(move |p| (o, p))) {
                    let (Some(depth), Some(height)) = (input_at(d, o, t), input_at(h, p, r)) else { continue };
                    let output = o * shape.y[2] + p * shape.y[3] + row.start * shape.y[4];
                    let input = depth * shape.x[2] + height * shape.x[3] + column * shape.x[4];
                    visit(tap, output, input, row.len());
                }
            }
        }
    }
}

/// into += factor · from, every `step`-th element of each.
fn add(into: &mut [f32], into_step: usize, from: &[f32], from_step: usize, count: usize, factor: f32) {
    if into_step == 1 && from_step == 1 {
        into[..count].iter_mut().zip(&from[..count]).for_each(|(into, from)| *into += factor * from);
    } else {
        let into = into.iter_mut().step_by(into_step).take(count);
        into.zip(from.iter().step_by(from_step)).for_each(|(into, from)| *into += factor * from);
    }
}

/// The sum of products, in sixteen partial sums where memory is contiguous.
fn dot(a: &[f32], a_step: usize, b: &[f32], b_step: usize, count: usize) -> f32 {
    if a_step != 1 || b_step != 1 {
        return a.iter().step_by(a_step).zip(b.iter().step_by(b_step)).take(count).map(|(a, b)| a * b).sum();
    }
    let (a, a_rest) = a[..count].as_chunks::<16>();
    let (b, b_rest) = b[..count].as_chunks::<16>();
    let mut sums = [0.0; 16];
    for (a, b) in a.iter().zip(b) {
        sums.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum += a * b);
    }
    sums.iter().sum::<f32>() + a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum::<f32>()
}

/// Chosen output elements in f64, straight from the definition: what every algorithm is compared with.
///
/// `at` holds flat indices into the output of the problem's operation, in the problem's layout; what lies beyond the
/// output gives NaN. The data is used as it is, in f32, and every product and sum is in f64. With beta = 0 the output is
/// not read. Cost: one filter's products an element; for backward-filter one product a sample and output position.
pub fn reference(problem: &Problem, tensors: Tensors<'_>, scale: Scale, at: &[usize]) -> Vec<f64> {
    let shape = Shape::new(problem);
    at.iter().map(|&index| element(problem.operation(), &shape, tensors, scale, index).unwrap_or(f64::NAN)).collect()
}

/// One output element, or none if there is no such element.
fn element(operation: Operation, shape: &Shape, tensors: Tensors<'_>, scale: Scale, index: usize) -> Option<f64> {
    let strides = match operation {
        Operation::Forward => shape.y,
        Operation::BackwardData => shape.x,
        Operation::BackwardFilter => shape.w,
    };
    let outer = index / strides[0];
    let channels = match operation {
        Operation::Forward => shape.groups * shape.k,
        Operation::BackwardData => shape.groups * shape.c,
        Operation::BackwardFilter => shape.c,
    };
    let extents = match operation {
        Operation::Forward => shape.outputs,
        Operation::BackwardData => shape.axes.map(|axis| axis.input),
        Operation::BackwardFilter => shape.filter,
    };
    let count = [shape.n * strides[0], shape.n * strides[0], shape.groups * shape.k * strides[0]];
    if index >= count[operation as usize] {
        return None;
    }
    // A dimension's index: what is left of the stride outside it, in steps of its own.
    let along = |dimension: usize, extent: usize| index / strides[dimension] % extent;
    let channel = along(1, channels);
    let place = [along(2, extents[0]), along(3, extents[1]), along(4, extents[2])];
    let offset = |strides: [usize; 5], outer: usize, channel: usize, [a, b, c]: [usize; 3]| {
        outer * strides[0] + channel * strides[1] + a * strides[2] + b * strides[3] + c * strides[4]
    };
    let value = |slice: &[f32], index: usize| slice.get(index).map(|&value| f64::from(value));
    let mut sum = 0.0;
    match operation {
        Operation::Forward => {
            let group = channel / shape.k;
            for c in 0..shape.c {
                for tap in places(shape.filter) {
                    let Some(input) = each(|i| input_at(&shape.axes[i], place[i], tap[i])) else { continue };
                    sum += value(tensors.data, offset(shape.x, outer, group * shape.c + c, input))?
                        * value(tensors.other, offset(shape.w, channel, c, tap))?;
                }
            }
        }
        Operation::BackwardData => {
            let (group, c) = (channel / shape.c, channel % shape.c);
            for k in group * shape.k..(group + 1) * shape.k {
                for tap in places(shape.filter) {
                    let Some(output) = each(|i| output_at(shape, i, place[i], tap[i])) else { continue };
                    sum += value(tensors.data, offset(shape.y, outer, k, output))?
                        * value(tensors.other, offset(shape.w, k, c, tap))?;
                }
            }
        }
        Operation::BackwardFilter => {
            let group = outer / shape.k;
            for n in 0..shape.n {
                for output in places(shape.outputs) {
                    let Some(input) = each(|i| input_at(&shape.axes[i], output[i], place[i])) else { continue };
                    sum += value(tensors.data, offset(shape.x, n, group * shape.c + channel, input))?
                        * value(tensors.other, offset(shape.y, n, outer, output))?;
                }
            }
        }
    }
    let kept = if scale.beta == 0.0 { 0.0 } else { f64::from(scale.beta) * value(tensors.output, index)? };
    Some(f64::from(scale.alpha) * sum + kept)
}

/// The output whose filter element `tap` lies on this input, or none.
fn output_at(shape: &Shape, dimension: usize, input: usize, tap: usize) -> Option<usize> {
    let axis = &shape.axes[dimension];
    let steps = (input + axis.pad_before).checked_sub(tap * axis.dilation)?;
    (steps.is_multiple_of(axis.stride)).then_some(steps / axis.stride).filter(|&at| at < shape.outputs[dimension])
}

/// All three, or none.
fn each(of: impl Fn(usize) -> Option<usize>) -> Option<[usize; 3]> {
    Some([of(0)?, of(1)?, of(2)?])
}

/// Every index of three dimensions.
fn places([a, b, c]: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).map(move |l| [i, j, l])))
}
