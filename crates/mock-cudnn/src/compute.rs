//! The loops: for each element of the output all products, gathered in index order, then added as the method adds.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::method::{Numerics, Order};
use crate::number::{DataType, round_tf32};
use crate::problem::{Operation, Problem};
use crate::tensor::Tensor;

/// Addresses of x, w, y.
#[derive(Clone, Copy)]
pub struct Addresses {
    /// x or dx.
    pub x: usize,
    /// w or dw.
    pub w: usize,
    /// y or dy.
    pub y: usize,
}

impl Addresses {
    /// Those of the inputs, in the order of [`Problem::inputs`], then that of the output.
    pub fn by_role(self, operation: Operation) -> [usize; 3] {
        match operation {
            Operation::Forward => [self.x, self.w, self.y],
            Operation::BackwardData => [self.y, self.w, self.x],
            Operation::BackwardFilter => [self.x, self.y, self.w],
        }
    }
}

/// A tensor's values by index, last dimension fastest.
struct Values {
    dims: [usize; 5],
    data: Vec<f32>,
}

impl Values {
    fn at(&self, i: [usize; 5]) -> f32 {
        let d = &self.dims;
        self.data[(((i[0] * d[1] + i[1]) * d[2] + i[2]) * d[3] + i[3]) * d[4] + i[4]]
    }
}

/// # Safety
/// `address` is that of a live tensor of this description.
unsafe fn load(tensor: &Tensor, address: usize, numerics: &Numerics) -> Values {
    let prepare = |v: f32| {
        let v = if numerics.tf32 && tensor.data_type == DataType::F32 { round_tf32(v) } else { v };
        if numerics.half_inputs { DataType::F16.round(v) } else { v }
    };
    let offsets = tensor.offsets(&tensor.dims);
    // SAFETY: every offset is within the tensor's extent.
    let data = offsets.iter().map(|&o| prepare(unsafe { tensor.data_type.read(address as *const u8, o) })).collect();
    Values { dims: std::array::from_fn(|i| tensor.dims[i] as usize), data }
}

/// Computes the convolution.
///
/// # Safety
/// The addresses are those of live tensors of the problem's descriptions, and nobody else writes them meanwhile.
pub unsafe fn convolve(problem: &Problem, numerics: &Numerics, addresses: Addresses) {
    let [a, b, out] = addresses.by_role(problem.operation);
    let [ta, tb] = problem.inputs();
    // SAFETY: by the contract.
    let (a, b) = unsafe { (load(ta, a, numerics), load(tb, b, numerics)) };
    let output = problem.output();
    let mut products = Vec::new();
    for (flat, offset) in output.offsets(&output.dims).into_iter().enumerate() {
        products.clear();
        gather(problem, &a, &b, index_of(flat, output), &mut products);
        let mut value = problem.alpha * sum(&products, numerics, problem.geometry.accumulate, flat);
        if problem.beta != 0.0 {
            // SAFETY: the offset is within the output's extent.
            value += problem.beta * unsafe { output.data_type.read(out as *const u8, offset) };
        }
        // SAFETY: as above.
        unsafe { output.data_type.write(out as *mut u8, offset, value) };
    }
}

fn index_of(mut flat: usize, tensor: &Tensor) -> [usize; 5] {
    let mut index = [0; 5];
    for i in (0..5).rev() {
        index[i] = flat % tensor.dims[i] as usize;
        flat /= tensor.dims[i] as usize;
    }
    index
}

/// All positions of a box, last dimension fastest.
fn positions(dims: &[i64]) -> impl Iterator<Item = [i64; 3]> {
    let [d, h, w] = [dims[0], dims[1], dims[2]];
    (0..d).flat_map(move |i| (0..h).flat_map(move |j| (0..w).map(move |k| [i, j, k])))
}

fn with(n: i64, c: i64, at: [i64; 3]) -> [usize; 5] {
    [n, c, at[0], at[1], at[2]].map(|i| i as usize)
}

/// Appends the products whose sum is the output's element at `index`.
fn gather(p: &Problem, a: &Values, b: &Values, index: [usize; 5], products: &mut Vec<f32>) {
    let index = index.map(|i| i as i64);
    let (g, spot) = (&p.geometry, [index[2], index[3], index[4]]);
    let (channels, filters) = (p.w.dims[1], p.w.dims[0] / p.groups);
    let inside = |at: [i64; 3], dims: &[i64]| (0..3).all(|i| (0..dims[i]).contains(&at[i]));
    let tap = |r: [i64; 3]| if g.mirrored { std::array::from_fn(|i| p.w.dims[2 + i] - 1 - r[i]) } else { r };
    // Where in x the filter element r falls at output position q.
    let source = |q: [i64; 3], r: [i64; 3]| -> [i64; 3] {
        std::array::from_fn(|i| q[i] * g.strides[i] + r[i] * g.dilations[i] - g.pre[i])
    };
    match p.operation {
        Operation::Forward => {
            let first = index[1] / filters * channels;
            for c in 0..channels {
                for r in positions(&p.w.dims[2..]) {
                    let at = source(spot, r);
                    if inside(at, &p.x.dims[2..]) {
                        products.push(a.at(with(index[0], first + c, at)) * b.at(with(index[1], c, tap(r))));
                    }
                }
            }
        }
        Operation::BackwardData => {
            let first = index[1] / channels * filters;
            for k in first..first + filters {
                for r in positions(&p.w.dims[2..]) {
                    let reach: [i64; 3] = std::array::from_fn(|i| spot[i] + g.pre[i] - r[i] * g.dilations[i]);
                    let q: [i64; 3] = std::array::from_fn(|i| reach[i].div_euclid(g.strides[i]));
                    if source(q, r) == spot && inside(q, &p.y.dims[2..]) {
                        products.push(a.at(with(index[0], k, q)) * b.at(with(k, index[1] % channels, tap(r))));
                    }
                }
            }
        }
        Operation::BackwardFilter => {
            let channel = index[0] / filters * channels + index[1];
            for n in 0..p.x.dims[0] {
                for q in positions(&p.y.dims[2..]) {
                    let at = source(q, tap(spot));
                    if inside(at, &p.x.dims[2..]) {
                        products.push(a.at(with(n, channel, at)) * b.at(with(n, index[0], q)));
                    }
                }
            }
        }
    }
}

fn sum(products: &[f32], numerics: &Numerics, accumulate: DataType, flat: usize) -> f32 {
    let add = |sum: f32, &product: &f32| accumulate.round(sum + accumulate.round(product));
    let total = match numerics.order {
        Order::Forward => products.iter().fold(0.0, add),
        Order::Backward => products.iter().rev().fold(0.0, add),
        Order::Changing => {
            static RUN: AtomicUsize = AtomicUsize::new(0);
            let (tail, head) = products.split_at(RUN.fetch_add(7, Ordering::Relaxed) % products.len().max(1));
            head.iter().chain(tail).fold(0.0, add)
        }
    };
    if numerics.transform_error == 0.0 {
        return total;
    }
    let magnitude: f32 = products.iter().map(|p| p.abs()).sum();
    let sign = if flat.is_multiple_of(2) { 1.0 } else { -1.0 };
    total + sign * numerics.transform_error * magnitude
}
