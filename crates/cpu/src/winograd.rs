//! `winograd-2x2` and `winograd-4x4`: minimal filtering F(2x2, 3x3) and F(4x4, 3x3), transforms and products apart.
//!
//! A tile of M x M outputs needs (M + 2)² products instead of 9 M²: 2.25 times fewer for M = 2, 4 times for M = 4.
//!
//! ```text
//! y = Aᵀ [(G w Gᵀ) · (Bᵀ x B)] A          dw = Gᵀ [(A dy Aᵀ) · (Bᵀ x B)] G        (products point by point)
//! ```
//!
//! The second follows from the first, as y is linear in w: the gradient applies the transposed matrices. F(4x4) loses
//! about one decimal digit more than direct sums, since its matrices hold numbers from 1/24 to 8.
//!
//! **Source**: Lavin and Gray 2016, sections 4.1 to 4.3.

use tightfit_conv::Problem;

use crate::call::Call;
use crate::gemm::Kind;
use crate::transform::{self, Role, Transform};

/// Tiles of a block: a cache line of floats, one vector register of the widest kind.
const LANES: usize = 16;

/// Floats of workspace of F(M x M, 3 x 3), whose tiles are T = M + 2 wide, or why it does not apply.
pub fn workspace<const M: usize, const T: usize>(problem: &Problem, threads: usize) -> Result<usize, String>
where
    Winograd<M, T>: Maps<M, T>,
{
    let convolution = problem.convolution();
    let axes = convolution.axes();
    if axes.len() != 2 {
        return Err(format!("it supports 2 spatial dimensions, not {}", axes.len()));
    }
    if axes.iter().any(|axis| axis.filter != 3) {
        return Err(format!("it supports 3x3 filters, not {}x{}", axes[0].filter, axes[1].filter));
    }
    if axes.iter().any(|axis| axis.stride != 1) {
        return Err("it supports only stride 1".to_owned());
    }
    if axes.iter().any(|axis| axis.dilation != 1) {
        return Err("it supports only dilation 1".to_owned());
    }
    transform::workspace(&Winograd::<M, T>, problem, threads)
}

/// Runs F(M x M, 3 x 3) in its workspace.
pub fn run<const M: usize, const T: usize>(call: &Call, output: &mut [f32], workspace: &mut [f32])
where
    Winograd<M, T>: Maps<M, T>,
{
    transform::run(&Winograd::<M, T>, call, output, workspace);
}

/// F(M x M, 3 x 3) with T = M + 2.
pub struct Winograd<const M: usize, const T: usize>;

/// The matrices of F(M, 3), each as the map of a column.
pub trait Maps<const M: usize, const T: usize> {
    /// Bᵀ x.
    fn input(x: [f32; T]) -> [f32; T];
    /// G w.
    fn filter(w: [f32; 3]) -> [f32; T];
    /// Gᵀ m.
    fn filter_transposed(m: [f32; T]) -> [f32; 3];
    /// Aᵀ m.
    fn output(m: [f32; T]) -> [f32; M];
    /// A dy.
    fn output_transposed(dy: [f32; M]) -> [f32; T];
}

/// Interpolation at 0, 1, -1 and infinity.
impl Maps<2, 4> for Winograd<2, 4> {
    #[inline(always)]
    fn input([a, b, c, d]: [f32; 4]) -> [f32; 4] {
        [a - c, b + c, c - b, b - d]
    }

    #[inline(always)]
    fn filter([a, b, c]: [f32; 3]) -> [f32; 4] {
        let (even, odd) = (0.5 * (a + c), 0.5 * b);
        [a, even + odd, even - odd, c]
    }

    #[inline(always)]
    fn filter_transposed([a, b, c, d]: [f32; 4]) -> [f32; 3] {
        let (even, odd) = (0.5 * (b + c), 0.5 * (b - c));
        [a + even, odd, even + d]
    }

    #[inline(always)]
    fn output([a, b, c, d]: [f32; 4]) -> [f32; 2] {
        [a + b + c, b - c - d]
    }

    #[inline(always)]
    fn output_transposed([a, b]: [f32; 2]) -> [f32; 4] {
        [a, a + b, a - b, -b]
    }
}

/// Interpolation at 0, 1, -1, 2, -2 and infinity.
impl Maps<4, 6> for Winograd<4, 6> {
    #[inline(always)]
    fn input([a, b, c, d, e, f]: [f32; 6]) -> [f32; 6] {
        let (even_1, odd_1) = (e - 4.0 * c, d - 4.0 * b);
        let (even_2, odd_2) = (e - c, 2.0 * (d - b));
        [4.0 * a - 5.0 * c + e, even_1 + odd_1, even_1 - odd_1, even_2 + odd_2, even_2 - odd_2, 4.0 * b - 5.0 * d + f]
    }

    #[inline(always)]
    fn filter([a, b, c]: [f32; 3]) -> [f32; 6] {
        let (even_1, odd_1) = ((a + c) * (-1.0 / 6.0), b * (-1.0 / 6.0));
        let (even_2, odd_2) = (a * (1.0 / 24.0) + c * (1.0 / 6.0), b * (1.0 / 12.0));
        [0.25 * a, even_1 + odd_1, even_1 - odd_1, even_2 + odd_2, even_2 - odd_2, c]
    }

    #[inline(always)]
    fn filter_transposed([a, b, c, d, e, f]: [f32; 6]) -> [f32; 3] {
        let (even_1, odd_1) = ((b + c) * (-1.0 / 6.0), (b - c) * (-1.0 / 6.0));
        let (even_2, odd_2) = (d + e, (d - e) * (1.0 / 12.0));
        [0.25 * a + even_1 + even_2 * (1.0 / 24.0), odd_1 + odd_2, even_1 + even_2 * (1.0 / 6.0) + f]
    }

    #[inline(always)]
    fn output([a, b, c, d, e, f]: [f32; 6]) -> [f32; 4] {
        let (even_1, odd_1, even_2, odd_2) = (b + c, b - c, d + e, d - e);
        [a + even_1 + even_2, odd_1 + 2.0 * odd_2, even_1 + 4.0 * even_2, odd_1 + 8.0 * odd_2 + f]
    }

    #[inline(always)]
    fn output_transposed([a, b, c, d]: [f32; 4]) -> [f32; 6] {
        let (even_1, odd_1) = (a + c, b + d);
        let (even_2, odd_2) = (a + 4.0 * c, 2.0 * b + 8.0 * d);
        [a, even_1 + odd_1, even_1 - odd_1, even_2 + odd_2, even_2 - odd_2, d]
    }
}

/// One element of sixteen tiles.
type Lanes = [f32; LANES];

impl<const M: usize, const T: usize> Transform for Winograd<M, T>
where
    Winograd<M, T>: Maps<M, T>,
{
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

    #[inline(always)]
    fn forward(&self, role: Role, block: &[f32], points: &mut [f32], _: &mut [f32]) {
        let (Some(block), Some(points)) = (square::<T>(block), square_mut::<T>(points)) else { return };
        match role {
            Role::Input => both_axes::<T, T, T>(block, points, Self::input),
            Role::Filter => both_axes::<T, 3, T>(block, points, Self::filter),
            Role::Output => both_axes::<T, M, T>(block, points, Self::output_transposed),
        }
    }

    #[inline(always)]
    fn inverse(&self, role: Role, points: &mut [f32], block: &mut [f32], _: &mut [f32]) {
        let (Some(points), Some(block)) = (square::<T>(points), square_mut::<T>(block)) else { return };
        match role {
            Role::Filter => both_axes::<T, T, 3>(points, block, Self::filter_transposed),
            _ => both_axes::<T, T, M>(points, block, Self::output),
        }
    }
}

/// The block as T rows of T elements of sixteen lanes. Always some: blocks and points are of exactly that size.
#[inline(always)]
fn square<const T: usize>(floats: &[f32]) -> Option<&[[Lanes; T]; T]> {
    floats.as_chunks::<LANES>().0.as_chunks::<T>().0.first_chunk()
}

/// As [`square`], to be written.
#[inline(always)]
fn square_mut<const T: usize>(floats: &mut [f32]) -> Option<&mut [[Lanes; T]; T]> {
    floats.as_chunks_mut::<LANES>().0.as_chunks_mut::<T>().0.first_chunk_mut()
}

/// Applies a map from I to O elements along both axes, in the upper left corner of blocks T wide.
#[inline(always)]
fn both_axes<const T: usize, const I: usize, const O: usize>(
    from: &[[Lanes; T]; T],
    into: &mut [[Lanes; T]; T],
    map: impl Fn([f32; I]) -> [f32; O],
) {
    let mut half = [[[0.0; LANES]; T]; O];
    for column in 0..I {
        // Lanes innermost: the compiler turns this loop into one vector for each element.
        for lane in 0..LANES {
            let mut elements = [0.0; I];
            (0..I).for_each(|i| elements[i] = from[i][column][lane]);
            let mapped = map(elements);
            (0..O).for_each(|o| half[o][column][lane] = mapped[o]);
        }
    }
    for (half, into) in half.iter().zip(into) {
        for lane in 0..LANES {
            let mut elements = [0.0; I];
            (0..I).for_each(|i| elements[i] = half[i][lane]);
            let mapped = map(elements);
            (0..O).for_each(|o| into[o][lane] = mapped[o]);
        }
    }
}
