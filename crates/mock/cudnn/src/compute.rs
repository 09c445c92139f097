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
    /// Of the inputs, in the order of [`Problem::inputs`], then of the output.
    pub fn by_role(self, operation: Operation) -> [usize; 3] {
        match operation {
            Operation::Forward => [self.x, self.w, self.y],
            Operation::BackwardData => [self.y, self.w, self.x],
            Operation::BackwardFilter => [self.x, self.y, self.w],
        }
    }
}

/// A tensor's values, last dimension fastest.
struct Values {
    dims: [usize; 5],
    data: Vec<f32>,
}

impl Values {
    /// Where the first element of sample and channel (filter and channel of a filter) `i`, `j` lies.
    fn first(&self, i: usize, j: usize) -> usize {
        (i * self.dims[1] + j) * self.dims[2..].iter().product::<usize>()
    }
}

/// # Safety
/// `address` belongs to a live tensor of this description.
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
/// The addresses belong to live tensors of the problem's descriptions, and no other code writes them during the call.
pub unsafe fn convolve(problem: &Problem, numerics: &Numerics, addresses: Addresses) {
    let [a, b, out] = addresses.by_role(problem.operation);
    let [ta, tb] = problem.inputs();
    // SAFETY: by the contract.
    let (a, b) = unsafe { (load(ta, a, numerics), load(tb, b, numerics)) };
    let output = problem.output();
    let (pairs, mut products) = (pairs(problem), Vec::new());
    for (flat, offset) in output.offsets(&output.dims).into_iter().enumerate() {
        products.clear();
        gather(problem, (&a, &b), &pairs, index_of(flat, output), &mut products);
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

/// The positions of two inputs whose elements are multiplied, along one axis.
type Pairs = Vec<(usize, usize)>;

/// By axis and position in the output, the pairs in the order in which they are added.
fn pairs(p: &Problem) -> [Vec<Pairs>; 3] {
    let g = &p.geometry;
    std::array::from_fn(|i| {
        let [x, w, y] = [&p.x, &p.w, &p.y].map(|tensor| tensor.dims[2 + i]);
        let tap = |r: i64| if g.mirrored { w - 1 - r } else { r };
        // Where in x the filter element r falls at output position q.
        let source = |q: i64, r: i64| q * g.strides[i] + r * g.dilations[i] - g.pre[i];
        let pair = |a: i64, b: i64| (a as usize, b as usize);
        let inside = |at: i64, len: i64| (0..len).contains(&at);
        match p.operation {
            Operation::Forward => {
                let at = |q: i64| (0..w).map(move |r| (source(q, r), tap(r))).filter(|(at, _)| inside(*at, x));
                (0..y).map(|q| at(q).map(|(at, r)| pair(at, r)).collect()).collect()
            }
            Operation::BackwardData => {
                let from = |at: i64, r: i64| (at + g.pre[i] - r * g.dilations[i]).div_euclid(g.strides[i]);
                let reached = |at: i64| {
                    let all = (0..w).map(move |r| (from(at, r), r));
                    all.filter(move |&(q, r)| source(q, r) == at && inside(q, y))
                };
                (0..x).map(|at| reached(at).map(|(q, r)| pair(q, tap(r))).collect()).collect()
            }
            Operation::BackwardFilter => {
                let at = |r: i64| (0..y).map(move |q| (source(q, tap(r)), q)).filter(|(at, _)| inside(*at, x));
                (0..w).map(|r| at(r).map(|(at, q)| pair(at, q)).collect()).collect()
            }
        }
    })
}

/// Appends the products whose sum is the output's element at `index`.
fn gather(
    p: &Problem,
    (a, b): (&Values, &Values),
    pairs: &[Vec<Pairs>; 3],
    index: [usize; 5],
    products: &mut Vec<f32>,
) {
    let (channels, filters) = (p.w.dims[1] as usize, (p.w.dims[0] / p.groups) as usize);
    let mut add = |a_first: usize, b_first: usize| {
        for &(a0, b0) in &pairs[0][index[2]] {
            for &(a1, b1) in &pairs[1][index[3]] {
                let a_row = &a.data[a_first + (a0 * a.dims[3] + a1) * a.dims[4]..];
                let b_row = &b.data[b_first + (b0 * b.dims[3] + b1) * b.dims[4]..];
                products.extend(pairs[2][index[4]].iter().map(|&(a2, b2)| a_row[a2] * b_row[b2]));
            }
        }
    };
    match p.operation {
        Operation::Forward => {
            let first = index[1] / filters * channels;
            (0..channels).for_each(|c| add(a.first(index[0], first + c), b.first(index[1], c)));
        }
        Operation::BackwardData => {
            let first = index[1] / channels * filters;
            (first..first + filters).for_each(|k| add(a.first(index[0], k), b.first(k, index[1] % channels)));
        }
        Operation::BackwardFilter => {
            let channel = index[0] / filters * channels + index[1];
            (0..p.x.dims[0] as usize).for_each(|n| add(a.first(n, channel), b.first(n, index[0])));
        }
    }
}

fn sum(products: &[f32], numerics: &Numerics, accumulate: DataType, flat: usize) -> f32 {
    let exact = accumulate == DataType::F32;
    let round = |value| if exact { value } else { accumulate.round(value) };
    let add = |sum: f32, &product: &f32| round(sum + round(product));
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
