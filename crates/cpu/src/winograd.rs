//! `winograd-2x2` and `winograd-4x4`: minimal filtering F(2x2, 3x3) and F(4x4, 3x3), transforms and products apart.
//!
//! A tile of M x M outputs needs (M + 2)² products instead of 9 M²: 2.25 times fewer for M = 2, 4 times for M = 4.
//!
//! ```text
//! y = Aᵀ [(G w Gᵀ) · (Bᵀ x B)] A          dw = Gᵀ [(A dy Aᵀ) · (Bᵀ x B)] G        (products point by point)
//! ```
//!
//! The second follows from the first, as y is linear in w: the gradient applies the transposed matrices. F(4x4) loses
//! about a decimal digit more than direct sums do, since its matrices hold numbers from 1/24 to 8.
//!
//! **Source**: Lavin and Gray 2016, sections 4.1 to 4.3.

use tightfit_core::Problem;

use crate::gemm::Kind;
use crate::method::Call;
use crate::transform::{self, Role, Transform};

/// Tiles of a block: a cache line of floats, one vector register of the widest kind.
const LANES: usize = 16;

/// Floats of workspace of F(M x M, 3 x 3), whose tiles are T = M + 2 wide, or why it does not apply.
pub fn workspace<const M: usize, const T: usize>(problem: &Problem, threads: usize) -> Result<usize, String> {
    let convolution = problem.convolution();
    let axes = convolution.axes();
    if axes.len() != 2 {
        return Err(format!("it is for 2 spatial dimensions, not {}", axes.len()));
    }
    if axes.iter().any(|axis| axis.filter != 3) {
        return Err(format!("it is for filters of 3x3, not {}x{}", axes[0].filter, axes[1].filter));
    }
    if axes.iter().any(|axis| axis.stride != 1) {
        return Err("it is for stride 1 alone".to_owned());
    }
    if axes.iter().any(|axis| axis.dilation != 1) {
        return Err("it is for dilation 1 alone".to_owned());
    }
    transform::workspace(&Winograd::<M, T>, problem, threads)
}

/// Runs F(M x M, 3 x 3) in its workspace.
pub fn run<const M: usize, const T: usize>(call: &Call, output: &mut [f32], workspace: &mut [f32]) {
    transform::run(&Winograd::<M, T>, call, output, workspace);
}

/// F(M x M, 3 x 3) with T = M + 2.
struct Winograd<const M: usize, const T: usize>;

/// One element of sixteen tiles.
type Lanes = [f32; LANES];

impl<const M: usize, const T: usize> Transform for Winograd<M, T> {
    const LANES: usize = LANES;
    const KIND: Kind = Kind::Real;

    fn tile(&self) -> [usize; 2] {
        [T, T]
    }

    fn outputs(&self) -> [usize; 2] {
        [M, M]
    }

    fn points(&self) -> usize {
        T * T
    }

    fn element_step(&self) -> usize {
        LANES
    }

    fn lane_step(&self) -> usize {
        1
    }

    fn scratch(&self) -> usize {
        0
    }

    fn forward(&self, role: Role, block: &[f32], points: &mut [f32], _: &mut [f32]) {
        let (Some(block), Some(points)) = (square::<T>(block), square_mut::<T>(points)) else { return };
        match role {
            Role::Input => both_axes::<T, T, T>(block, points, input),
            Role::Filter => both_axes::<T, 3, T>(block, points, filter),
            Role::Output => both_axes::<T, M, T>(block, points, output_transposed::<M, T>),
        }
    }

    fn inverse(&self, role: Role, points: &mut [f32], block: &mut [f32], _: &mut [f32]) {
        let (Some(points), Some(block)) = (square::<T>(points), square_mut::<T>(block)) else { return };
        match role {
            Role::Filter => both_axes::<T, T, 3>(points, block, filter_transposed),
            _ => both_axes::<T, T, M>(points, block, output::<M, T>),
        }
    }
}

/// The block as T rows of T elements of sixteen lanes. Always some: blocks and points are of exactly that size.
fn square<const T: usize>(floats: &[f32]) -> Option<&[[Lanes; T]; T]> {
    floats.as_chunks::<LANES>().0.as_chunks::<T>().0.first_chunk()
}

/// As [`square`], to be written.
fn square_mut<const T: usize>(floats: &mut [f32]) -> Option<&mut [[Lanes; T]; T]> {
    floats.as_chunks_mut::<LANES>().0.as_chunks_mut::<T>().0.first_chunk_mut()
}

/// Applies a map from I to O elements along both axes, in the upper left corner of blocks T wide.
#[inline(always)]
fn both_axes<const T: usize, const I: usize, const O: usize>(
    from: &[[Lanes; T]; T],
    into: &mut [[Lanes; T]; T],
    map: impl Fn([&Lanes; I]) -> [Lanes; O],
) {
    let mut half = [[[0.0; LANES]; T]; O];
    for column in 0..I {
        let mapped = map(std::array::from_fn(|i| &from[i][column]));
        (0..O).for_each(|o| half[o][column] = mapped[o]);
    }
    for (row, half) in half.iter().enumerate() {
        let mapped = map(std::array::from_fn(|i| &half[i]));
        into[row][..O].copy_from_slice(&mapped);
    }
}

/// The sum of elements times constants, those of zero left out at compile time once the table is unrolled.
#[inline(always)]
fn combine<const I: usize>(from: &[&Lanes; I], factors: &[f32; I]) -> Lanes {
    let mut sum = [0.0; LANES];
    for (from, &factor) in from.iter().zip(factors) {
        if factor != 0.0 {
            (0..LANES).for_each(|lane| sum[lane] += factor * from[lane]);
        }
    }
    sum
}

/// Bᵀ x.
#[inline(always)]
fn input<const T: usize>(x: [&Lanes; T]) -> [Lanes; T] {
    std::array::from_fn(|row| combine(&x, &std::array::from_fn(|i| if T == 4 { BT_2[row][i] } else { BT_4[row][i] })))
}

/// G w.
#[inline(always)]
fn filter<const T: usize>(w: [&Lanes; 3]) -> [Lanes; T] {
    std::array::from_fn(|row| combine(&w, if T == 4 { &G_2[row] } else { &G_4[row] }))
}

/// Gᵀ m.
#[inline(always)]
fn filter_transposed<const T: usize>(m: [&Lanes; T]) -> [Lanes; 3] {
    std::array::from_fn(|row| combine(&m, &std::array::from_fn(|i| if T == 4 { G_2[i][row] } else { G_4[i][row] })))
}

/// Aᵀ m.
#[inline(always)]
fn output<const M: usize, const T: usize>(m: [&Lanes; T]) -> [Lanes; M] {
    std::array::from_fn(|row| combine(&m, &std::array::from_fn(|i| if T == 4 { AT_2[row][i] } else { AT_4[row][i] })))
}

/// A dy.
#[inline(always)]
fn output_transposed<const M: usize, const T: usize>(dy: [&Lanes; M]) -> [Lanes; T] {
    std::array::from_fn(|row| combine(&dy, &std::array::from_fn(|i| if T == 4 { AT_2[i][row] } else { AT_4[i][row] })))
}

// Interpolation at 0, 1, -1 and infinity.
const BT_2: [[f32; 4]; 4] = [[1.0, 0.0, -1.0, 0.0], [0.0, 1.0, 1.0, 0.0], [0.0, -1.0, 1.0, 0.0], [0.0, 1.0, 0.0, -1.0]];
const G_2: [[f32; 3]; 4] = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0.0, 0.0, 1.0]];
const AT_2: [[f32; 4]; 2] = [[1.0, 1.0, 1.0, 0.0], [0.0, 1.0, -1.0, -1.0]];

// Interpolation at 0, 1, -1, 2, -2 and infinity.
const BT_4: [[f32; 6]; 6] = [
    [4.0, 0.0, -5.0, 0.0, 1.0, 0.0],
    [0.0, -4.0, -4.0, 1.0, 1.0, 0.0],
    [0.0, 4.0, -4.0, -1.0, 1.0, 0.0],
    [0.0, -2.0, -1.0, 2.0, 1.0, 0.0],
    [0.0, 2.0, -1.0, -2.0, 1.0, 0.0],
    [0.0, 4.0, 0.0, -5.0, 0.0, 1.0],
];
const G_4: [[f32; 3]; 6] = [
    [1.0 / 4.0, 0.0, 0.0],
    [-1.0 / 6.0, -1.0 / 6.0, -1.0 / 6.0],
    [-1.0 / 6.0, 1.0 / 6.0, -1.0 / 6.0],
    [1.0 / 24.0, 1.0 / 12.0, 1.0 / 6.0],
    [1.0 / 24.0, -1.0 / 12.0, 1.0 / 6.0],
    [0.0, 0.0, 1.0],
];
const AT_4: [[f32; 6]; 4] = [
    [1.0, 1.0, 1.0, 1.0, 1.0, 0.0],
    [0.0, 1.0, -1.0, 2.0, -2.0, 0.0],
    [0.0, 1.0, 1.0, 4.0, 4.0, 0.0],
    [0.0, 1.0, -1.0, 8.0, -8.0, 1.0],
];
