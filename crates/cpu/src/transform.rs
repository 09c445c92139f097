//! Convolution as products in a transformed domain: what Winograd's and Fourier's algorithms share.
//!
//! ```text
//! input  tiles --transform--> [point][c][tile]  \
//!                                                 one product a point --> [point][k][tile] --inverse--> output tiles
//! filters      --transform--> [point][k][c]     /
//!
//! tiles overlap by the filter's extent less one, outputs do not:   |--tile 0--|
//!                                                                         |--tile 1--|
//! ```
//!
//! Backward-data is a forward convolution of dy with filters turned by 180 degrees and channels swapped. Backward-filter
//! multiplies the transforms of dy and x, sums over all tiles, and inverts once.
//!
//! **Source**: Lavin and Gray 2016 (Winograd, tiles); Mathieu, Henaff and LeCun 2014 (Fourier).

use tightfit_conv::{Layout, Operation, Problem};

use crate::call::Call;
use crate::gemm::{Kind, Strides, multiply};
use crate::shape::Shape;
use crate::simd::vectorized;
use crate::strips::{read, strips};
use crate::workspace::{Workspace, floats};

/// The content of a block of tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Pieces of the input.
    Input,
    /// Filters, or their gradients.
    Filter,
    /// Pieces of the output, or its gradient.
    Output,
}

/// A pair of linear transforms between which convolution is multiplication point by point.
///
/// A block holds [`Transform::LANES`] tiles, each of [`Transform::tile`] rows and columns; element e of lane l lies at
/// e · `element_step` + l · `lane_step`. Points lie at point · LANES + lane, a point being one float or two
/// ([`Transform::KIND`]).
pub trait Transform: Sync {
    /// Tiles of a block.
    const LANES: usize;
    /// Real or complex points.
    const KIND: Kind;
    /// Rows and columns of an input tile: the most that a block's tile holds.
    fn tile(&self) -> [usize; 2];
    /// Rows and columns of outputs that a tile gives.
    fn outputs(&self) -> [usize; 2];
    /// Points of a transformed tile.
    fn points(&self) -> usize;
    /// Distance between elements of one tile in a block.
    fn element_step(&self) -> usize;
    /// Distance between lanes of a block.
    fn lane_step(&self) -> usize;
    /// Floats of scratch in addition to block and points.
    fn scratch(&self) -> usize;
    /// Transforms a block; rows and columns beyond the role's extent hold zeros.
    fn forward(&self, role: Role, block: &[f32], points: &mut [f32], scratch: &mut [f32]);
    /// Transforms back; only the role's extent of each tile is written.
    fn inverse(&self, role: Role, points: &mut [f32], block: &mut [f32], scratch: &mut [f32]);
}

/// A tensor of images: the positions of its elements.
#[derive(Clone, Copy)]
struct Images {
    channels: usize,
    extents: [usize; 2],
    /// Floats between samples, channels, rows and columns.
    strides: [usize; 4],
    /// Zeros before the first row and column; negative cuts rows and columns off.
    pad: [isize; 2],
}

impl Images {
    fn of_x(shape: &Shape, pad: [isize; 2]) -> Images {
        let [n, c, _, h, w] = shape.x;
        Images { channels: shape.c, extents: [shape.axes[1].input, shape.axes[2].input], strides: [n, c, h, w], pad }
    }

    fn of_y(shape: &Shape, pad: [isize; 2]) -> Images {
        let [n, c, _, h, w] = shape.y;
        Images { channels: shape.k, extents: [shape.outputs[1], shape.outputs[2]], strides: [n, c, h, w], pad }
    }
}

/// The tensors of one operation: `outputs` of a correlation of `inputs`, or, for backward-filter, its gradient.
struct Pass {
    inputs: Images,
    outputs: Images,
    turned: bool,
}

impl Pass {
    fn new(shape: &Shape, operation: Operation) -> Pass {
        let pad = [1, 2].map(|i| shape.axes[i].pad_before as isize);
        if operation == Operation::BackwardData {
            let pad = [1, 2].map(|i| shape.filter[i] as isize - 1 - shape.axes[i].pad_before as isize);
            return Pass { inputs: Images::of_y(shape, pad), outputs: Images::of_x(shape, [0; 2]), turned: true };
        }
        Pass { inputs: Images::of_x(shape, pad), outputs: Images::of_y(shape, [0; 2]), turned: false }
    }
}

/// How the outputs are covered by tiles.
#[derive(Clone, Copy)]
struct Grid {
    outputs: [usize; 2],
    columns: usize,
    /// Tiles of one sample.
    tiles: usize,
}

impl Grid {
    fn new(extents: [usize; 2], outputs: [usize; 2]) -> Grid {
        let columns = extents[1].div_ceil(outputs[1]);
        Grid { outputs, columns, tiles: columns * extents[0].div_ceil(outputs[0]) }
    }

    /// First output row and column of a sample's tile.
    fn start(&self, tile: usize) -> [usize; 2] {
        [tile / self.columns * self.outputs[0], tile % self.columns * self.outputs[1]]
    }
}

/// Floats of the three transformed tensors and of the scratch of one thread.
struct Sizes {
    tiles: usize,
    left: u128,
    right: u128,
    product: u128,
    own: usize,
}

impl Sizes {
    fn new<T: Transform>(transform: &T, problem: &Problem) -> Sizes {
        let shape = Shape::new(problem);
        let pass = Pass::new(&shape, problem.operation());
        let tiles = shape.n * Grid::new(pass.outputs.extents, transform.outputs()).tiles;
        let float = (transform.points() * T::KIND.width()) as u128;
        let (c, k, t) = (pass.inputs.channels as u128, pass.outputs.channels as u128, tiles as u128);
        let [h, w] = transform.tile();
        let own = T::LANES * (h * w + transform.points() * T::KIND.width()) + transform.scratch();
        match problem.operation() {
            Operation::BackwardFilter => {
                Sizes { tiles, left: float * k * t, right: float * c * t, product: float * k * c, own }
            }
            _ => Sizes { tiles, left: float * k * c, right: float * c * t, product: float * k * t, own },
        }
    }
}

/// Floats of workspace: transformed input, filters and output of one group at a time, and a block for each thread.
pub fn workspace<T: Transform>(transform: &T, problem: &Problem, threads: usize) -> Result<usize, String> {
    let sizes = Sizes::new(transform, problem);
    floats(sizes.left + sizes.right + sizes.product + (sizes.own * threads) as u128)
}

/// Runs the operation, one group after another.
pub fn run<T: Transform>(transform: &T, call: &Call, output: &mut [f32], workspace: &mut [f32]) {
    let shape = &call.shape;
    let sizes = Sizes::new(transform, call.problem);
    let pass = Pass::new(shape, call.problem.operation());
    let mut workspace = Workspace::new(workspace);
    // Each is at most the workspace, whose size was checked.
    let left = workspace.take(sizes.left as usize);
    let right = workspace.take(sizes.right as usize);
    let product = workspace.take(sizes.product as usize);
    let own = workspace.take(sizes.own * call.team.threads());
    let (t, kind) = (sizes.tiles, T::KIND);
    let (c, k) = (pass.inputs.channels, pass.outputs.channels);
    let filter = call.problem.operation() == Operation::BackwardFilter;
    let stage = Stage { transform, call, pass };
    for group in 0..shape.groups {
        stage.images(Role::Input, group, right, own);
        if filter {
            stage.images(Role::Output, group, left, own);
        } else {
            stage.filters(group, left, own);
        }
        let (rows, columns, depth) = if filter { (k, c, t) } else { (k, t, c) };
        let right_strides = if filter { Strides::rows(t).transposed() } else { Strides::rows(t) };
        let [left_len, right_len, product_len] =
            [rows * depth, depth * columns, rows * columns].map(|elements| elements * kind.width());
        let items = product.chunks_mut(product_len).enumerate().collect();
        call.team.share(items, &mut [], |(point, product): (usize, &mut [f32]), _, threads| {
            let left = (&left[point * left_len..][..left_len], Strides::rows(depth));
            let right = (&right[point * right_len..][..right_len], right_strides);
            let product = (product, Strides::rows(columns));
            multiply(kind, (rows, columns, depth), 1.0, left, right, 0.0, product, threads);
        });
        if filter {
            stage.invert_filters(group, product, output, own);
        } else {
            stage.invert_images(group, product, output, own);
        }
    }
}

/// The transforms before and after the products.
struct Stage<'a, T> {
    transform: &'a T,
    call: &'a Call<'a>,
    pass: Pass,
}

impl<T: Transform> Stage<'_, T> {
    fn grid(&self) -> Grid {
        Grid::new(self.pass.outputs.extents, self.transform.outputs())
    }

    /// A thread's block, points and scratch.
    fn own<'s>(&self, own: &'s mut [f32]) -> (&'s mut [f32], &'s mut [f32], &'s mut [f32]) {
        let [h, w] = self.transform.tile();
        let (block, rest) = own.split_at_mut(T::LANES * h * w);
        let (points, scratch) = rest.split_at_mut(T::LANES * self.transform.points() * T::KIND.width());
        (block, points, scratch)
    }

    /// Copies part of an image (rows and columns from `start` on, negative ones being zeros) into a lane of a block.
    /// Places of `extents` outside of the image become zero; the block's tile beyond them is left as it is.
    #[inline(always)]
    fn gather(&self, image: &[f32], of: &Images, start: [isize; 2], extents: [usize; 2], lane: &mut [f32]) {
        let [_, width] = self.transform.tile();
        let step = self.transform.element_step();
        let range = |dimension: usize| {
            let end = (of.extents[dimension] as isize - start[dimension]).clamp(0, extents[dimension] as isize);
            (-start[dimension]).clamp(0, end) as usize..end as usize
        };
        let (rows, columns) = (range(0), range(1));
        for row in 0..extents[0] {
            let into = &mut lane[row * width * step..][..(extents[1] - 1) * step + 1];
            if !rows.contains(&row) || columns.is_empty() {
                into.iter_mut().step_by(step).for_each(|value| *value = 0.0);
                continue;
            }
            // Inside the ranges both sums are at least zero.
            let y = (start[0] + row as isize) as usize;
            let x = (start[1] + columns.start as isize) as usize;
            let from = &image[y * of.strides[2] + x * of.strides[3]..];
            if of.strides[3] == 1 && columns.len() == extents[1] {
                let from = &from[..extents[1]];
                if step == 1 {
                    into.copy_from_slice(from);
                } else {
                    (0..extents[1]).for_each(|column| into[column * step] = from[column]);
                }
                continue;
            }
            for column in 0..extents[1] {
                let inside = columns.contains(&column);
                into[column * step] = if inside { from[(column - columns.start) * of.strides[3]] } else { 0.0 };
            }
        }
    }

    /// Transforms all tiles of one group of x or dy into [point][channel][tile].
    fn images(&self, role: Role, group: usize, into: &mut [f32], own: &mut [f32]) {
        let (images, data) = match role {
            Role::Output => (self.pass.outputs, self.call.other),
            _ => (self.pass.inputs, self.call.data),
        };
        let extents = if role == Role::Output { self.transform.outputs() } else { self.transform.tile() };
        let grid = self.grid();
        let tiles = self.call.shape.n * grid.tiles;
        let parts = if images.channels < 4 * self.call.team.threads() { self.call.team.threads() } else { 1 };
        let step = tiles.div_ceil(parts).next_multiple_of(T::LANES);
        let strips = strips(into, images.channels, tiles, step, T::KIND.width());
        self.call.team.share(strips, own, |mut strip, own, _| {
            let (block, points, scratch) = self.own(own);
            // Beyond the extents tiles stay zero: nothing else writes there.
            self.clear_lanes(0, block);
            vectorized(
                #[inline(always)]
                || {
                    for first in (0..strip.width).step_by(T::LANES) {
                        let count = T::LANES.min(strip.width - first);
                        for lane in 0..count {
                            let tile = strip.first + first + lane;
                            let channel = group * images.channels + strip.row;
                            let image = &data[tile / grid.tiles * images.strides[0] + channel * images.strides[1]..];
                            let start = grid.start(tile % grid.tiles);
                            let start = [0, 1].map(|i| start[i] as isize - images.pad[i]);
                            let lane = &mut block[lane * self.transform.lane_step()..];
                            self.gather(image, &images, start, extents, lane);
                        }
                        self.clear_lanes(count, block);
                        self.transform.forward(role, block, points, scratch);
                        strip.write(points, T::LANES, first..first + count, T::KIND.width());
                    }
                },
            );
        });
    }

    /// Zeros the lanes that hold no tile, so that nothing is computed from the workspace's earlier content.
    #[inline(always)]
    fn clear_lanes(&self, count: usize, block: &mut [f32]) {
        let [height, width] = self.transform.tile();
        for lane in count..T::LANES {
            let lane = &mut block[lane * self.transform.lane_step()..];
            lane.iter_mut().step_by(self.transform.element_step()).take(height * width).for_each(|value| *value = 0.0);
        }
    }

    /// Transforms the filters of one group into [point][k][c], or [point][c][k] turned by 180 degrees.
    fn filters(&self, group: usize, into: &mut [f32], own: &mut [f32]) {
        let shape = &self.call.shape;
        let (rows, columns, [r, s]) = (self.pass.outputs.channels, self.pass.inputs.channels, self.extents());
        let weights = &self.call.other[shape.w_group(group)];
        let strips = strips(into, rows, columns, columns, T::KIND.width());
        let [_, width] = self.transform.tile();
        let step = self.transform.element_step();
        self.call.team.share(strips, own, |mut strip, own, _| {
            let (block, points, scratch) = self.own(own);
            self.clear_lanes(0, block);
            for first in (0..columns).step_by(T::LANES) {
                let count = T::LANES.min(columns - first);
                self.clear_lanes(count, block);
                for lane in 0..count {
                    let (k, c) = if self.pass.turned { (first + lane, strip.row) } else { (strip.row, first + lane) };
                    let filter = &weights[k * shape.w[0] + c * shape.w[1]..];
                    let lane = &mut block[lane * self.transform.lane_step()..];
                    for i in 0..r {
                        for j in 0..s {
                            let (y, x) = if self.pass.turned { (r - 1 - i, s - 1 - j) } else { (i, j) };
                            lane[(i * width + j) * step] = filter[y * shape.w[3] + x * shape.w[4]];
                        }
                    }
                }
                self.transform.forward(Role::Filter, block, points, scratch);
                strip.write(points, T::LANES, first..first + count, T::KIND.width());
            }
        });
    }

    /// Rows and columns of a filter.
    fn extents(&self) -> [usize; 2] {
        [self.call.shape.filter[1], self.call.shape.filter[2]]
    }

    /// Inverts [point][k][tile] into the output of one group.
    fn invert_images(&self, group: usize, from: &[f32], output: &mut [f32], own: &mut [f32]) {
        let images = self.pass.outputs;
        let channels = images.channels;
        let grid = self.grid();
        let tiles = self.call.shape.n * grid.tiles;
        let (piece, each) = match self.call.shape.layout {
            Layout::Nchw => (images.strides[1], 1),
            Layout::Nhwc => (images.strides[0], channels),
        };
        let pieces = images.strides[0] / piece;
        // (channel, sample, where its first channel lies). Neighbors in the product, which has samples innermost, become
        // neighbors here as well, so that small samples fill a block together.
        let mut planes: Vec<(usize, usize, &mut [f32])> = output
            .chunks_mut(piece)
            .enumerate()
            .filter(|(index, _)| pieces == 1 || index % pieces / channels == group)
            .map(|(index, output)| {
                let start = if pieces == 1 { group * channels * images.strides[1] } else { 0 };
                (index % pieces % channels, index / pieces, &mut output[start..])
            })
            .collect();
        planes.sort_by_key(|&(channel, sample, _)| (channel, sample));
        let together = T::LANES.div_ceil(grid.tiles).min(self.call.shape.n / self.call.team.threads()).max(1);
        let mut items: Vec<Vec<(usize, usize, &mut [f32])>> = Vec::new();
        for plane in planes {
            match items.last_mut() {
                Some(item) if item.len() < together && item[0].0 == plane.0 => item.push(plane),
                _ => items.push(vec![plane]),
            }
        }
        self.call.team.share(items, own, |mut item, own, _| {
            let (block, points, scratch) = self.own(own);
            let (first_channel, first_sample, _) = item[0];
            vectorized(
                #[inline(always)]
                || {
                    for i in 0..each {
                        for first in (0..item.len() * grid.tiles).step_by(T::LANES) {
                            let count = T::LANES.min(item.len() * grid.tiles - first);
                            let at = (first_channel + i) * tiles + first_sample * grid.tiles + first;
                            read(from, channels * tiles, at, points, T::LANES, count, T::KIND.width());
                            self.transform.inverse(Role::Output, points, block, scratch);
                            for lane in 0..count {
                                let (sample, tile) = ((first + lane) / grid.tiles, (first + lane) % grid.tiles);
                                let output = &mut item[sample].2[i * images.strides[1]..];
                                let lane = &block[lane * self.transform.lane_step()..];
                                self.scatter(lane, &images, grid.start(tile), output);
                            }
                        }
                    }
                },
            );
        });
    }

    /// Writes one lane's outputs into an image.
    #[inline(always)]
    fn scatter(&self, lane: &[f32], of: &Images, [y, x]: [usize; 2], image: &mut [f32]) {
        let [_, width] = self.transform.tile();
        let [rows, columns] = self.transform.outputs();
        let (rows, columns) = (rows.min(of.extents[0] - y), columns.min(of.extents[1] - x));
        let step = self.transform.element_step();
        for row in 0..rows {
            let into = &mut image[(y + row) * of.strides[2] + x * of.strides[3]..];
            let from = lane[row * width * step..].iter().step_by(step);
            self.store(from, into, of.strides[3], columns);
        }
    }

    /// output = beta · output + alpha · result, for a row of results.
    #[inline(always)]
    fn store<'f>(&self, from: impl Iterator<Item = &'f f32>, into: &mut [f32], step: usize, count: usize) {
        let scale = self.call.scale;
        let into = into.iter_mut().step_by(step).take(count);
        if scale.beta == 0.0 {
            into.zip(from).for_each(|(into, from)| *into = scale.alpha * from);
        } else {
            into.zip(from).for_each(|(into, from)| *into = scale.beta * *into + scale.alpha * from);
        }
    }

    /// Inverts [point][k][c] into the filters of one group.
    fn invert_filters(&self, group: usize, from: &[f32], output: &mut [f32], own: &mut [f32]) {
        let shape = &self.call.shape;
        let ([_, width], [r, s]) = (self.transform.tile(), self.extents());
        let items = output[shape.w_group(group)].chunks_mut(shape.depth()).enumerate().collect();
        self.call.team.share(items, own, |(k, filter): (usize, &mut [f32]), own, _| {
            let (block, points, scratch) = self.own(own);
            for first in (0..shape.c).step_by(T::LANES) {
                let count = T::LANES.min(shape.c - first);
                let at = k * shape.c + first;
                read(from, shape.k * shape.c, at, points, T::LANES, count, T::KIND.width());
                self.transform.inverse(Role::Filter, points, block, scratch);
                for lane in 0..count {
                    let filter = &mut filter[(first + lane) * shape.w[1]..];
                    let lane = &block[lane * self.transform.lane_step()..];
                    for row in 0..r {
                        let from = lane[row * width * self.transform.element_step()..]
                            .iter()
                            .step_by(self.transform.element_step());
                        self.store(from, &mut filter[row * shape.w[3]..], shape.w[4], s);
                    }
                }
            }
        });
    }
}
