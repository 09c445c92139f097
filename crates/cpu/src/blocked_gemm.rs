//! `blocked-gemm`: the convolution as matrix products of blocks that fit the first cache levels. Needs no workspace: each
//! thread has one block of columns on its stack.
//!
//! ```text
//!               positions
//!            |    |    |    |      a block: some channels under some positions, unfolded into 64 KiB and multiplied;
//!   channels |----+----+----|      the products of the blocks of a column add up in the output
//!            |    |    |    |
//! ```
//!
//! Unfolds small pieces, so it reads memory more often than `implicit-gemm` and packs filters again for each block: the
//! fallback where no other product fits, much faster than plain loops.

use tightfit_conv::{Layout, Operation, Problem};

use crate::call::Call;
use crate::gemm::{Kind, Strides, multiply};
use crate::implicit_gemm::sample_strides;
use crate::shape::{Shape, prescale};
use crate::unfold::{fold, strides, unfold};

/// Floats of columns in a block, on the stack of a thread.
const BLOCK: usize = 1 << 14;
/// Positions of a block, if the output has that many.
const WIDTH: usize = 64;

/// Needs no workspace. Supports filters of which a block holds one channel; in nhwc, where a filter's channels do not lie in
/// a row, all of them.
pub fn workspace(problem: &Problem, _: usize) -> Result<usize, String> {
    let shape = Shape::new(problem);
    shape.no_matrix().map_or(Ok(()), Err)?;
    let (count, most) = match shape.layout {
        Layout::Nchw => (shape.taps(), BLOCK / WIDTH),
        Layout::Nhwc => (shape.depth(), BLOCK),
    };
    if count > most {
        return Err(format!("filters of at most {most} elements fit its blocks, not {count}"));
    }
    Ok(0)
}

/// Computes the operation; threads divide samples, or the filters of backward-filter.
pub fn run(call: &Call, output: &mut [f32], _workspace: &mut [f32]) {
    let shape = &call.shape;
    match call.problem.operation() {
        Operation::Forward => {
            let items = output.chunks_mut(shape.y[0]).enumerate().collect();
            call.team.share(items, &mut [], |(n, y), _, threads| forward(call, n, y, threads));
        }
        Operation::BackwardData => {
            let items = output.chunks_mut(shape.x[0]).enumerate().collect();
            call.team.share(items, &mut [], |(n, dx), _, threads| backward_data(call, n, dx, threads));
        }
        Operation::BackwardFilter => {
            let filters = shape.k.div_ceil(call.team.threads());
            let group = shape.k * shape.depth();
            let items = output.chunks_mut(group).enumerate().flat_map(|(group, dw)| {
                let parts = dw.chunks_mut(filters * shape.depth()).enumerate();
                parts.map(move |(part, dw)| (group, part * filters, dw))
            });
            call.team.share(items.collect(), &mut [], |(group, first, dw), _, threads| {
                backward_filter(call, (group, first), dw, threads);
            });
        }
    }
}

/// One block of columns.
struct Block {
    group: usize,
    /// The first channel in the group, and the first position.
    channel: usize,
    at: usize,
    /// How many positions.
    count: usize,
    /// The shape with only the block's channels.
    shape: Shape,
}

/// The blocks of a sample; blocks of the same positions follow each other.
fn blocks(shape: &Shape) -> impl Iterator<Item = Block> {
    let Shape { groups, c, .. } = *shape;
    let (shape, positions) = (*shape, shape.positions());
    let width = match shape.layout {
        Layout::Nchw => WIDTH,
        Layout::Nhwc => (BLOCK / shape.depth()).min(WIDTH),
    };
    let width = width.min(positions);
    let channels = (BLOCK / width / shape.taps()).clamp(1, c);
    let of_group = move |group| {
        (0..positions).step_by(width).flat_map(move |at| {
            (0..c).step_by(channels).map(move |channel| Block {
                group,
                channel,
                at,
                count: width.min(positions - at),
                shape: Shape { c: channels.min(c - channel), ..shape },
            })
        })
    };
    (0..groups).flat_map(of_group)
}

impl Block {
    /// Where its channels begin in a sample of x.
    fn input(&self, whole: &Shape) -> usize {
        whole.x_group(self.group) + self.channel * whole.x[1]
    }

    /// Where its outputs begin in a sample of y.
    fn output(&self, whole: &Shape) -> usize {
        whole.y_group(self.group) + self.at * whole.y[4]
    }

    /// Where its elements begin in the group's first filter.
    fn filter(&self, whole: &Shape) -> usize {
        self.channel * whole.taps()
    }

    /// Fills the columns from a sample of x.
    fn unfold(&self, whole: &Shape, sample: &[f32], columns: &mut [f32]) -> Strides {
        let positions = self.at..self.at + self.count;
        unfold(&self.shape, positions, self.count, &sample[self.input(whole)..], columns);
        strides(&self.shape, self.count)
    }
}

fn forward(call: &Call, n: usize, y: &mut [f32], threads: usize) {
    let shape = &call.shape;
    let mut columns = [0.0; BLOCK];
    for block in blocks(shape) {
        let column = block.unfold(shape, &call.data[n * shape.x[0]..], &mut columns);
        let filters = &call.other[shape.w_group(block.group)][block.filter(shape)..];
        let beta = if block.channel == 0 { call.scale.beta } else { 1.0 };
        let y = (&mut y[block.output(shape)..], sample_strides(shape).1);
        let size = (shape.k, block.count, block.shape.depth());
        let filters = (filters, Strides::rows(shape.depth()));
        multiply(Kind::Real, size, call.scale.alpha, filters, (&columns, column), beta, y, threads);
    }
}

fn backward_data(call: &Call, n: usize, dx: &mut [f32], threads: usize) {
    let shape = &call.shape;
    let mut columns = [0.0; BLOCK];
    shape.scale_x(dx, call.scale.beta);
    for block in blocks(shape) {
        let filters = &call.other[shape.w_group(block.group)][block.filter(shape)..];
        let dy = (&call.data[n * shape.y[0] + block.output(shape)..], sample_strides(shape).1);
        let column = strides(&block.shape, block.count);
        let size = (block.shape.depth(), block.count, shape.k);
        let filters = (filters, Strides::rows(shape.depth()).transposed());
        multiply(Kind::Real, size, call.scale.alpha, filters, dy, 0.0, (&mut columns, column), threads);
        let positions = block.at..block.at + block.count;
        fold(&block.shape, positions, block.count, &mut columns, &mut dx[block.input(shape)..]);
    }
}

/// dw += alpha · dy · columnsᵀ for the filters of a group from `first` on that `dw` holds.
fn backward_filter(call: &Call, (group, first): (usize, usize), dw: &mut [f32], threads: usize) {
    let shape = &call.shape;
    let mut columns = [0.0; BLOCK];
    let filters = dw.len() / shape.depth();
    prescale(dw, call.scale.beta);
    for n in 0..shape.n {
        if call.team.is_left() {
            return;
        }
        for block in blocks(shape).filter(|block| block.group == group) {
            let column = block.unfold(shape, &call.data[n * shape.x[0]..], &mut columns);
            let dy = &call.other[n * shape.y[0] + block.output(shape) + first * shape.y[1]..];
            let dw = (&mut dw[block.filter(shape)..], Strides::rows(shape.depth()));
            let size = (filters, block.shape.depth(), block.count);
            let dy = (dy, sample_strides(shape).1);
            multiply(Kind::Real, size, call.scale.alpha, dy, (&columns, column.transposed()), 1.0, dw, threads);
        }
    }
}
