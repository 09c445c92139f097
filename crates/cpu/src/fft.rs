//! `fft` and `fft-tiling`: convolution as products of Fourier transforms, of whole images or of 32 x 32 tiles.
//!
//! A circular convolution of extent F equals the one wanted on the first F - r + 1 outputs. So `fft` takes the next fast
//! size from p + r - 1 on, and `fft-tiling` gets 33 - r outputs from each tile (overlap-save). Half of the spectrum is
//! enough, since the data is real:
//!
//! ```text
//! rows: real -> w/2 + 1 complex, only those rows that are not zero; then columns: complex -> complex, contiguous
//! ```
//!
//! Both beat the GEMM algorithms from 5x5 filters and some tens of channels on (AlexNet's second layer: about two
//! thirds of their time). Which one is faster depends on the image size: whole images win where they are just under a
//! fast size, as OverFeat's 24x24 is, tiles where images are large and the filter leaves most of a tile to the outputs.
//!
//! The tables of the transforms (a few numbers for each row and column) are not part of the workspace.
//!
//! **Source**: Mathieu, Henaff and LeCun 2014 (whole images); Vasilache et al. 2015 (tiles).

use std::sync::Arc;

use bytemuck::{cast_slice, cast_slice_mut};
use num_complex::Complex32;
use realfft::{ComplexToReal, RealFftPlanner, RealToComplex};
use rustfft::{Fft, FftPlanner};
use tightfit_conv::{Operation, Problem};

use crate::call::Call;
use crate::gemm::Kind;
use crate::transform::{self, Role, Transform};

/// Rows and columns of a tile of `fft-tiling`.
const TILE: usize = 32;

/// Tiles of a block: as many complex numbers as fill a cache line.
const LANES: usize = 8;

/// Floats of workspace of `fft`, or why it does not apply.
pub fn workspace_whole(problem: &Problem, threads: usize) -> Result<usize, String> {
    check(problem)?;
    transform::workspace(&Fourier::whole(problem), problem, threads)
}

/// Floats of workspace of `fft-tiling`, or why it does not apply.
pub fn workspace_tiles(problem: &Problem, threads: usize) -> Result<usize, String> {
    check(problem)?;
    let axes = problem.convolution().axes();
    if axes.iter().any(|axis| axis.filter > TILE) {
        return Err(format!(
            "a filter of {}x{} is larger than its {TILE}x{TILE} tiles",
            axes[0].filter, axes[1].filter
        ));
    }
    transform::workspace(&Fourier::tiles(problem), problem, threads)
}

/// Runs `fft` in its workspace.
pub fn run_whole(call: &Call, output: &mut [f32], workspace: &mut [f32]) {
    transform::run(&Fourier::whole(call.problem), call, output, workspace);
}

/// Runs `fft-tiling` in its workspace.
pub fn run_tiles(call: &Call, output: &mut [f32], workspace: &mut [f32]) {
    transform::run(&Fourier::tiles(call.problem), call, output, workspace);
}

fn check(problem: &Problem) -> Result<(), String> {
    let axes = problem.convolution().axes();
    if axes.len() != 2 {
        return Err(format!("it supports 2 spatial dimensions, not {}", axes.len()));
    }
    if axes.iter().any(|axis| axis.stride != 1) {
        return Err("it supports only stride 1, since it computes every output".to_owned());
    }
    if axes.iter().any(|axis| axis.dilation != 1) {
        return Err("it supports only dilation 1".to_owned());
    }
    if axes.iter().any(|axis| axis.input + axis.pad_before + axis.pad_after > 1 << 14) {
        return Err("it supports padded images of at most 16384x16384".to_owned());
    }
    Ok(())
}

/// The smallest even number from `least` on that has no prime factor over 5.
fn fast_size(least: usize) -> usize {
    let is_fast = |size: &usize| {
        let mut rest = *size;
        for prime in [2, 3, 5] {
            while rest.is_multiple_of(prime) {
                rest /= prime;
            }
        }
        rest == 1
    };
    // A power of two ends the search at the latest.
    let end = least.next_power_of_two().max(2);
    (least.next_multiple_of(2).max(2)..end).step_by(2).find(is_fast).unwrap_or(end)
}

/// Two-dimensional transforms of one size.
struct Fourier {
    tile: [usize; 2],
    outputs: [usize; 2],
    filter: [usize; 2],
    rows: Arc<dyn RealToComplex<f32>>,
    rows_back: Arc<dyn ComplexToReal<f32>>,
    columns: Arc<dyn Fft<f32>>,
    columns_back: Arc<dyn Fft<f32>>,
}

impl Fourier {
    fn whole(problem: &Problem) -> Fourier {
        let axes = problem.convolution().axes();
        let outputs = [0, 1].map(|i| match problem.operation() {
            Operation::BackwardData => axes[i].input,
            _ => axes[i].output(),
        });
        Fourier::new([0, 1].map(|i| fast_size(outputs[i] + axes[i].filter - 1)), outputs, problem)
    }

    fn tiles(problem: &Problem) -> Fourier {
        let axes = problem.convolution().axes();
        Fourier::new([TILE; 2], [0, 1].map(|i| TILE + 1 - axes[i].filter), problem)
    }

    fn new(tile: [usize; 2], outputs: [usize; 2], problem: &Problem) -> Fourier {
        let (mut rows, mut columns) = (RealFftPlanner::new(), FftPlanner::new());
        let axes = problem.convolution().axes();
        Fourier {
            tile,
            outputs,
            filter: [axes[0].filter, axes[1].filter],
            rows: rows.plan_fft_forward(tile[1]),
            rows_back: rows.plan_fft_inverse(tile[1]),
            columns: columns.plan_fft_forward(tile[0]),
            columns_back: columns.plan_fft_inverse(tile[0]),
        }
    }

    /// Complex numbers of half a row's spectrum.
    fn half(&self) -> usize {
        self.tile[1] / 2 + 1
    }

    /// Rows that a role's tiles have.
    fn height(&self, role: Role) -> usize {
        match role {
            Role::Input => self.tile[0],
            Role::Filter => self.filter[0],
            Role::Output => self.outputs[0],
        }
    }

    /// Complex numbers that the one-dimensional transforms need for themselves.
    fn inner_scratch(&self) -> usize {
        let rows = self.rows.get_scratch_len().max(self.rows_back.get_scratch_len());
        rows.max(self.columns.get_inplace_scratch_len()).max(self.columns_back.get_inplace_scratch_len())
    }

    /// Scratch as a real row, half a spectrum of a row, all columns, and the scratch of the transforms.
    fn split<'s>(&self, scratch: &'s mut [f32]) -> [&'s mut [f32]; 4] {
        let (row, rest) = scratch.split_at_mut(self.tile[1]);
        let (half, rest) = rest.split_at_mut(2 * self.half());
        let (columns, inner) = rest.split_at_mut(2 * self.points());
        [row, half, columns, inner]
    }
}

impl Transform for Fourier {
    const LANES: usize = LANES;
    const KIND: Kind = Kind::ConjugateLeft;

    fn tile(&self) -> [usize; 2] {
        self.tile
    }

    fn outputs(&self) -> [usize; 2] {
        self.outputs
    }

    fn points(&self) -> usize {
        self.half() * self.tile[0]
    }

    fn element_step(&self) -> usize {
        1
    }

    fn lane_step(&self) -> usize {
        self.tile[0] * self.tile[1]
    }

    fn scratch(&self) -> usize {
        self.tile[1] + 2 * (self.half() + self.points() + self.inner_scratch())
    }

    fn forward(&self, role: Role, block: &[f32], points: &mut [f32], scratch: &mut [f32]) {
        let [height, width] = self.tile;
        let [row, half, columns, inner] = self.split(scratch);
        let (half, columns): (&mut [Complex32], &mut [Complex32]) = (cast_slice_mut(half), cast_slice_mut(columns));
        let (inner, points): (&mut [Complex32], &mut [Complex32]) = (cast_slice_mut(inner), cast_slice_mut(points));
        for (lane, tile) in block.chunks(height * width).enumerate() {
            columns.fill(Complex32::ZERO);
            for (y, from) in tile.chunks(width).take(self.height(role)).enumerate() {
                row.copy_from_slice(from);
                // Fails for slices of wrong lengths alone; these were cut to the plan's.
                let _ = self.rows.process_with_scratch(row, half, &mut inner[..self.rows.get_scratch_len()]);
                columns[y..].iter_mut().step_by(height).zip(&*half).for_each(|(into, &value)| *into = value);
            }
            self.columns.process_with_scratch(columns, inner);
            points[lane..].iter_mut().step_by(LANES).zip(&*columns).for_each(|(into, &value)| *into = value);
        }
    }

    fn inverse(&self, role: Role, points: &mut [f32], block: &mut [f32], scratch: &mut [f32]) {
        let [height, width] = self.tile;
        let [_, half, columns, inner] = self.split(scratch);
        let (half, columns): (&mut [Complex32], &mut [Complex32]) = (cast_slice_mut(half), cast_slice_mut(columns));
        let (inner, points): (&mut [Complex32], &[Complex32]) = (cast_slice_mut(inner), cast_slice(points));
        let scale = 1.0 / (height * width) as f32;
        for (lane, tile) in block.chunks_mut(height * width).enumerate() {
            columns
                .iter_mut()
                .zip(points[lane..].iter().step_by(LANES))
                .for_each(|(into, &value)| *into = value * scale);
            self.columns_back.process_with_scratch(columns, inner);
            for (y, into) in tile.chunks_mut(width).take(self.height(role)).enumerate() {
                half.iter_mut().zip(columns[y..].iter().step_by(height)).for_each(|(into, &value)| *into = value);
                // Zero but for rounding, and the transform insists.
                half[0].im = 0.0;
                half[width / 2].im = 0.0;
                let _ = self.rows_back.process_with_scratch(half, into, &mut inner[..self.rows_back.get_scratch_len()]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fast_size;

    #[test]
    fn fast_sizes_are_even_and_near() {
        for (least, fast) in
            [(1, 2), (2, 2), (3, 4), (7, 8), (11, 12), (31, 32), (34, 36), (58, 60), (127, 128), (226, 240)]
        {
            assert_eq!(fast_size(least), fast, "from {least}");
        }
    }
}
