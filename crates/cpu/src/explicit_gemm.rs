//! `explicit-gemm`: the columns of the whole micro-batch in the workspace, so that samples with few outputs are
//! multiplied together.
//!
//! ```text
//! block of samples   | 0 | 1 | 2 | 3 |    columns: depth x (samples · positions)
//! one product        | y of all four |    nchw: into scratch, then to the samples; nhwc: in place
//! ```
//!
//! A block is one sample if the sample has enough outputs. Otherwise it grows to at most [`WIDTH`] positions. Pointwise
//! convolutions without padding are multiplied in place, without workspace for forward and backward-data.

use tightfit_conv::{Layout, Operation, Problem};

use crate::call::Call;
use crate::gemm::{Kind, Strides, multiply};
use crate::implicit_gemm::{sample_strides, write_transposed};
use crate::shape::{Shape, prescale};
use crate::unfold::{fold, strides, unfold};
use crate::workspace::{Workspace, floats};

/// Positions that a product should have at least: fewer leave the multiplication units waiting for filters.
const WIDTH: usize = 256;

/// Samples of a block: enough to reach [`WIDTH`], while every thread has a block.
fn block(shape: &Shape, threads: usize) -> usize {
    if shape.is_pointwise() && shape.layout == Layout::Nchw || !shape.samples_follow() {
        return 1;
    }
    WIDTH.div_ceil(shape.positions()).min(shape.n / threads).max(1)
}

/// Floats of scratch a thread needs to multiply a block of several nchw samples: its y, which is not contiguous.
fn scratch(shape: &Shape, threads: usize) -> usize {
    let block = block(shape, threads);
    if block == 1 || shape.layout == Layout::Nhwc { 0 } else { block * shape.k * shape.positions() }
}

/// The columns of all samples, the scratch of each thread, and for backward-filter the transposed dw.
pub fn workspace(problem: &Problem, threads: usize) -> Result<usize, String> {
    let shape = Shape::new(problem);
    shape.no_matrix().map_or(Ok(()), Err)?;
    let depth = (shape.groups * shape.depth()) as u128;
    let columns = if shape.is_pointwise() { 0 } else { depth * (shape.n * shape.positions()) as u128 };
    let rest = match problem.operation() {
        Operation::BackwardFilter => depth * shape.k as u128,
        _ => (threads * scratch(&shape, threads)) as u128,
    };
    floats(columns + rest)
}

/// Computes the operation, block by block.
pub fn run(call: &Call, output: &mut [f32], workspace: &mut [f32]) {
    let (shape, threads) = (&call.shape, call.team.threads());
    let block = block(shape, threads);
    let sample = shape.groups * shape.depth() * shape.positions();
    let mut workspace = Workspace::new(workspace);
    let columns = workspace.take(if shape.is_pointwise() { 0 } else { shape.n * sample });
    if call.problem.operation() == Operation::BackwardFilter {
        return backward_filter(call, output, columns, workspace);
    }
    let scratch = workspace.take(threads * scratch(shape, threads));
    let piece = if call.problem.operation() == Operation::Forward { shape.y[0] } else { shape.x[0] };
    let blocks = output.chunks_mut(block * piece).enumerate();
    let items: Vec<_> = if shape.is_pointwise() {
        blocks.map(|(index, output)| (index, output, &mut [][..])).collect()
    } else {
        blocks.zip(columns.chunks_mut(block * sample)).map(|((i, output), columns)| (i, output, columns)).collect()
    };
    call.team.share(items, scratch, |(index, output, columns), scratch, threads| {
        let samples = Samples { first: index * block, count: output.len().div_ceil(piece) };
        match call.problem.operation() {
            Operation::Forward => forward(call, samples, output, columns, scratch, threads),
            _ => backward_data(call, samples, output, columns, scratch, threads),
        }
    });
}

/// The samples of a block.
#[derive(Clone, Copy)]
struct Samples {
    first: usize,
    count: usize,
}

/// Fills the columns of one group for a block.
fn unfold_block(call: &Call, samples: Samples, group: usize, columns: &mut [f32]) {
    let (shape, positions) = (&call.shape, call.shape.positions());
    let width = samples.count * positions;
    for i in 0..samples.count {
        let x = &call.data[(samples.first + i) * shape.x[0] + shape.x_group(group)..];
        let start = i * positions * strides(shape, width).column;
        unfold(shape, 0..positions, width, x, &mut columns[start..]);
    }
}

fn forward(call: &Call, samples: Samples, y: &mut [f32], columns: &mut [f32], scratch: &mut [f32], threads: usize) {
    let shape = &call.shape;
    let width = samples.count * shape.positions();
    let (x_strides, y_strides) = sample_strides(shape);
    let size = (shape.k, width, shape.depth());
    for group in 0..shape.groups {
        let filters = (&call.other[shape.w_group(group)], Strides::rows(shape.depth()));
        let right = if shape.is_pointwise() {
            (&call.data[samples.first * shape.x[0] + shape.x_group(group)..], x_strides)
        } else {
            let columns = &mut columns[group * shape.depth() * width..][..shape.depth() * width];
            unfold_block(call, samples, group, columns);
            (&*columns, strides(shape, width))
        };
        if samples.count == 1 || shape.layout == Layout::Nhwc {
            let y = (&mut y[shape.y_group(group)..], y_strides);
            multiply(Kind::Real, size, call.scale.alpha, filters, right, call.scale.beta, y, threads);
        } else {
            let product = (&mut *scratch, Strides::rows(width));
            multiply(Kind::Real, size, call.scale.alpha, filters, right, 0.0, product, threads);
            for_planes(shape, samples, group, |plane, in_block| {
                let (plane, product) = (&mut y[plane], &scratch[in_block]);
                prescale(plane, call.scale.beta);
                plane.iter_mut().zip(product).for_each(|(y, product)| *y += product);
            });
        }
    }
}

fn backward_data(
    call: &Call,
    samples: Samples,
    dx: &mut [f32],
    columns: &mut [f32],
    scratch: &mut [f32],
    threads: usize,
) {
    let (shape, positions) = (&call.shape, call.shape.positions());
    let width = samples.count * positions;
    let (x_strides, y_strides) = sample_strides(shape);
    let size = (shape.depth(), width, shape.k);
    if !shape.is_pointwise() {
        for dx in dx.chunks_mut(shape.x[0]) {
            shape.scale_x(dx, call.scale.beta);
        }
    }
    for group in 0..shape.groups {
        let filters = (&call.other[shape.w_group(group)], Strides::rows(shape.depth()).transposed());
        let dy = &call.data[samples.first * shape.y[0]..];
        let right = if samples.count == 1 || shape.layout == Layout::Nhwc {
            (&dy[shape.y_group(group)..], y_strides)
        } else {
            for_planes(shape, samples, group, |plane, in_block| scratch[in_block].copy_from_slice(&dy[plane]));
            (&*scratch, Strides::rows(width))
        };
        if shape.is_pointwise() {
            let dx = (&mut dx[shape.x_group(group)..], x_strides);
            multiply(Kind::Real, size, call.scale.alpha, filters, right, call.scale.beta, dx, threads);
            continue;
        }
        let columns = &mut columns[group * shape.depth() * width..][..shape.depth() * width];
        let order = strides(shape, width);
        multiply(Kind::Real, size, call.scale.alpha, filters, right, 0.0, (&mut *columns, order), threads);
        for i in 0..samples.count {
            let dx = &mut dx[i * shape.x[0] + shape.x_group(group)..];
            fold(shape, 0..positions, width, &mut columns[i * positions * order.column..], dx);
        }
    }
}

/// Visits the planes of one group of y in a block of nchw samples: where each lies, and where in a matrix of filters
/// x (samples · positions).
fn for_planes(
    shape: &Shape,
    samples: Samples,
    group: usize,
    mut visit: impl FnMut(std::ops::Range<usize>, std::ops::Range<usize>),
) {
    let positions = shape.positions();
    for k in 0..shape.k {
        for i in 0..samples.count {
            let plane = i * shape.y[0] + shape.y_group(group) + k * shape.y[1];
            let in_block = (k * samples.count + i) * positions;
            visit(plane..plane + positions, in_block..in_block + positions);
        }
    }
}

/// Unfolds everything, then gives each thread some rows of the transposed dw = columns · dyt, over all samples.
fn backward_filter(call: &Call, dw: &mut [f32], columns: &mut [f32], mut workspace: Workspace) {
    let (shape, positions) = (&call.shape, call.shape.positions());
    let sum = workspace.take(dw.len());
    let per_group = shape.depth() * positions;
    if !shape.is_pointwise() {
        let items = columns.chunks_mut(per_group).enumerate().collect();
        call.team.share(items, &mut [], |(index, columns), _, _| {
            let sample = Samples { first: index / shape.groups, count: 1 };
            unfold_block(call, sample, index % shape.groups, columns);
        });
    }
    let (x_strides, y_strides) = sample_strides(shape);
    let order = if shape.is_pointwise() { x_strides } else { strides(shape, positions) };
    let rows = shape.depth().div_ceil(call.team.threads());
    let items = sum
        .chunks_mut(shape.depth() * shape.k)
        .enumerate()
        .flat_map(|(group, sum)| sum.chunks_mut(rows * shape.k).enumerate().map(move |(part, sum)| (group, part, sum)))
        .collect();
    call.team.share(items, &mut [], |(group, part, sum): (usize, usize, &mut [f32]), _, threads| {
        for n in 0..shape.n {
            if call.team.is_left() {
                return;
            }
            let columns = if shape.is_pointwise() {
                &call.data[n * shape.x[0] + shape.x_group(group)..]
            } else {
                &columns[(n * shape.groups + group) * per_group..][..per_group]
            };
            let left = (&columns[part * rows * order.row..], order);
            let dy = (&call.other[n * shape.y[0] + shape.y_group(group)..], y_strides.transposed());
            let size = (sum.len() / shape.k, shape.k, positions);
            let beta = if n == 0 { 0.0 } else { 1.0 };
            multiply(Kind::Real, size, 1.0, left, dy, beta, (&mut *sum, Strides::rows(shape.k)), threads);
        }
    });
    write_transposed(call, sum, dw);
}
