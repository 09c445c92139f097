//! `implicit-gemm`: the convolution as matrix products of small tiles, whose columns live in a small workspace that
//! does not grow with the mini-batch.
//!
//! ```text
//! sample 0 | tile | tile | tile |      each thread: unfold a tile into its own 1 MiB or so, multiply it, go on
//! sample 1 | tile | tile | tile |
//! ```
//!
//! Pointwise convolutions without padding are multiplied in place. Threads take whole samples; of fewer samples than
//! threads, they divide each product.

use tightfit_conv::{Operation, Problem};

use crate::call::Call;
use crate::gemm::{Kind, Strides, multiply};
use crate::shape::{Shape, prescale};
use crate::unfold::{fold, strides, unfold};
use crate::workspace::{Workspace, floats};

/// Floats of columns that a tile aims at: they fit a second-level cache together with the filters.
const TILE: usize = 1 << 18;

/// Positions of a tile.
fn width(shape: &Shape) -> usize {
    (TILE / shape.depth()).next_multiple_of(16).clamp(64, 1024).min(shape.positions())
}

/// A tile of columns per thread, and for backward-filter its sum; none if the columns are the input itself.
pub fn workspace(problem: &Problem, threads: usize) -> Result<usize, String> {
    let shape = Shape::new(problem);
    shape.no_matrix().map_or(Ok(()), Err)?;
    let tile = if shape.is_pointwise() { 0 } else { width(&shape) * shape.depth() };
    let sum = match problem.operation() {
        Operation::BackwardFilter => shape.groups * shape.k * shape.depth(),
        _ => 0,
    };
    floats((tile as u128 + sum as u128) * threads as u128)
}

/// Computes the operation, sample by sample.
pub fn run(call: &Call, output: &mut [f32], workspace: &mut [f32]) {
    let shape = &call.shape;
    match call.problem.operation() {
        Operation::Forward => {
            let items = output.chunks_mut(shape.y[0]).enumerate().collect();
            call.team.share(items, workspace, |(n, y), tile, threads| forward(call, n, y, tile, threads));
        }
        Operation::BackwardData => {
            let items = output.chunks_mut(shape.x[0]).enumerate().collect();
            call.team.share(items, workspace, |(n, dx), tile, threads| backward_data(call, n, dx, tile, threads));
        }
        Operation::BackwardFilter => backward_filter(call, output, workspace),
    }
}

/// Every (group, first position, positions) of a sample.
fn tiles(shape: &Shape) -> impl Iterator<Item = (usize, usize, usize)> {
    let (positions, groups) = (shape.positions(), shape.groups);
    let width = width(shape);
    (0..groups).flat_map(move |g| (0..positions).step_by(width).map(move |at| (g, at, width.min(positions - at))))
}

/// Strides of a sample of x, as a matrix of channels and positions, and of y, as one of filters and positions.
pub fn sample_strides(shape: &Shape) -> (Strides, Strides) {
    (Strides { row: shape.x[1], column: shape.x[4] }, Strides { row: shape.y[1], column: shape.y[4] })
}

fn forward(call: &Call, n: usize, y: &mut [f32], tile: &mut [f32], threads: usize) {
    let shape = &call.shape;
    let (x_strides, y_strides) = sample_strides(shape);
    for (group, at, count) in tiles(shape) {
        let x = &call.data[n * shape.x[0] + shape.x_group(group)..];
        let columns = if shape.is_pointwise() {
            (&x[at * shape.x[4]..], x_strides)
        } else {
            unfold(shape, at..at + count, count, x, tile);
            (&*tile, strides(shape, count))
        };
        let filters = (&call.other[shape.w_group(group)], Strides::rows(shape.depth()));
        let y = (&mut y[shape.y_group(group) + at * shape.y[4]..], y_strides);
        let size = (shape.k, count, shape.depth());
        multiply(Kind::Real, size, call.scale.alpha, filters, columns, call.scale.beta, y, threads);
    }
}

fn backward_data(call: &Call, n: usize, dx: &mut [f32], tile: &mut [f32], threads: usize) {
    let shape = &call.shape;
    let (x_strides, y_strides) = sample_strides(shape);
    if !shape.is_pointwise() {
        shape.scale_x(dx, call.scale.beta);
    }
    for (group, at, count) in tiles(shape) {
        let dx = &mut dx[shape.x_group(group)..];
        let filters = (&call.other[shape.w_group(group)], Strides::rows(shape.depth()).transposed());
        let dy = (&call.data[n * shape.y[0] + shape.y_group(group) + at * shape.y[4]..], y_strides);
        let size = (shape.depth(), count, shape.k);
        if shape.is_pointwise() {
            let dx = (&mut dx[at * shape.x[4]..], x_strides);
            multiply(Kind::Real, size, call.scale.alpha, filters, dy, call.scale.beta, dx, threads);
        } else {
            let columns = (&mut *tile, strides(shape, count));
            multiply(Kind::Real, size, call.scale.alpha, filters, dy, 0.0, columns, threads);
            fold(shape, at..at + count, count, tile, dx);
        }
    }
}

/// Each thread sums its samples into a separate transposed dw; the sums are added in the order of the threads.
fn backward_filter(call: &Call, dw: &mut [f32], workspace: &mut [f32]) {
    let shape = &call.shape;
    let (threads, floats) = (call.team.threads(), dw.len());
    let mut workspace = Workspace::new(workspace);
    let sums = workspace.take(threads * floats);
    let tile = workspace.take(if shape.is_pointwise() { 0 } else { threads * width(shape) * shape.depth() });
    let parts = threads.min(shape.n);
    let items = sums.chunks_mut(floats).take(parts).enumerate().collect();
    call.team.share(items, tile, |(part, sum): (usize, &mut [f32]), tile, threads| {
        let samples = shape.n * part / parts..shape.n * (part + 1) / parts;
        for n in samples.clone() {
            if call.team.is_left() {
                return;
            }
            for (group, at, count) in tiles(shape) {
                let beta = if n == samples.start && at == 0 { 0.0 } else { 1.0 };
                add_filter_tile(call, (n, group, at, count), beta, sum, tile, threads);
            }
        }
    });
    let (first, others) = sums[..parts * floats].split_at_mut(floats);
    for other in others.chunks(floats) {
        first.iter_mut().zip(other).for_each(|(sum, part)| *sum += part);
    }
    write_transposed(call, first, dw);
}

/// dwt = beta · dwt + columns · dyt for one tile.
fn add_filter_tile(
    call: &Call,
    (n, group, at, count): (usize, usize, usize, usize),
    beta: f32,
    sum: &mut [f32],
    tile: &mut [f32],
    threads: usize,
) {
    let shape = &call.shape;
    let (x_strides, y_strides) = sample_strides(shape);
    let x = &call.data[n * shape.x[0] + shape.x_group(group)..];
    let columns = if shape.is_pointwise() {
        (&x[at * shape.x[4]..], x_strides)
    } else {
        unfold(shape, at..at + count, count, x, tile);
        (&*tile, strides(shape, count))
    };
    let dy = (&call.other[n * shape.y[0] + shape.y_group(group) + at * shape.y[4]..], y_strides.transposed());
    let sum = (&mut sum[shape.w_group(group)], Strides::rows(shape.k));
    multiply(Kind::Real, (shape.depth(), shape.k, count), 1.0, columns, dy, beta, sum, threads);
}

/// dw = beta · dw + alpha · transposed sum, where the sum of each group is depth x filters.
pub fn write_transposed(call: &Call, sum: &[f32], dw: &mut [f32]) {
    let shape = &call.shape;
    let depth = shape.depth();
    let filters = dw.chunks_mut(depth).enumerate().collect();
    call.team.share(filters, &mut [], |(k, filter): (usize, &mut [f32]), _, _| {
        let sum = &sum[shape.w_group(k / shape.k)];
        prescale(filter, call.scale.beta);
        let column = sum[k % shape.k..].iter().step_by(shape.k);
        filter.iter_mut().zip(column).for_each(|(dw, sum)| *dw += call.scale.alpha * sum);
    });
}
