//! The ways to compute a convolution: the problems that each refuses, its workspace, and notes on its arithmetic.
//!
//! Workspace against mini-batch, the reason why dividing pays:
//! ```text
//! bytes |            / fft, gemm: grow with the batch, fast
//!       |       /\/\/  fft-tiling: grows, but batches of 8 need less than the batch before
//!       |     /  ----- precomputed, winograd: constant
//!       |____/________ implicit: none, slow            batch ->
//! ```

use crate::control::{compile, slowdown};
use crate::number::DataType;
use crate::problem::{Operation, Problem};
use crate::status::Status;

/// A way to compute a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Plain sums in index order.
    Implicit,
    /// Sums from the last index to the first.
    Precomputed,
    /// Unrolls the input first. Its knob halves the workspace and doubles the time, `knob` times.
    Gemm,
    /// Reads f32 as tf32; half types exactly.
    TensorCore,
    /// By transforms of the whole image.
    Fft,
    /// By transforms of tiles.
    FftTiling,
    /// Small tiles, transformed on the fly.
    Winograd,
    /// Small tiles, transforms kept in the workspace.
    WinogradNonfused,
    /// Sums in an order that changes from run to run. Its knob is the number of partial results kept.
    SplitK,
    /// Rounds inputs to f16 first; cannot add to the output.
    DownConvert,
    /// Has a number but computes nothing.
    Absent,
}

/// The engines of convolutions, by global index. One index in the middle computes nothing, as many real ones.
pub const ENGINES: [Method; 11] = [
    Method::Implicit,
    Method::Precomputed,
    Method::Gemm,
    Method::TensorCore,
    Method::Fft,
    Method::WinogradNonfused,
    Method::SplitK,
    Method::DownConvert,
    Method::Absent,
    Method::FftTiling,
    Method::Winograd,
];

/// The global index of the engine that computes by a method.
pub fn index_of(method: Method) -> Option<i64> {
    ENGINES.iter().position(|one| *one == method).and_then(|index| i64::try_from(index).ok())
}

/// A method with its knob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The method.
    pub method: Method,
    /// Its knob; 0 if it has none.
    pub knob: i64,
}

/// `cudnnBackendNumericalNote_t`
pub mod note {
    /// Tensor cores.
    pub const TENSOR_CORE: i32 = 0;
    /// Inputs are rounded first.
    pub const DOWN_CONVERT_INPUTS: i32 = 1;
    /// Sums are kept in fewer bits.
    pub const REDUCED_PRECISION: i32 = 2;
    /// Fourier transforms.
    pub const FFT: i32 = 3;
    /// Two runs may differ.
    pub const NONDETERMINISTIC: i32 = 4;
    /// Winograd transforms.
    pub const WINOGRAD: i32 = 5;
    /// Winograd transforms of 4 x 4 tiles.
    pub const WINOGRAD_4X4: i32 = 6;
}

/// Order in which products are added.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// First to last.
    Forward,
    /// Last to first.
    Backward,
    /// Beginning somewhere else each time.
    Changing,
}

/// The arithmetic of a method.
#[derive(Clone, Copy)]
pub struct Numerics {
    /// Order of additions.
    pub order: Order,
    /// Inputs are rounded to tf32.
    pub tf32: bool,
    /// Inputs are rounded to f16.
    pub half_inputs: bool,
    /// Error of transforms, relative to the sum of the products' magnitudes.
    pub transform_error: f32,
}

const fn round_up(bytes: u64) -> u64 {
    bytes.div_ceil(256) * 256
}

impl Choice {
    /// A method without a knob.
    pub const fn plain(method: Method) -> Choice {
        Choice { method, knob: 0 }
    }

    /// Whether the method computes the problem.
    ///
    /// # Errors
    /// A status of the not-supported category that names the refusal.
    pub fn check(self, problem: &Problem) -> Result<(), Status> {
        let p = problem;
        let [a, b] = p.inputs().map(|t| t.data_type);
        let (input, output) = (a, p.output().data_type);
        if a != b || (input != output && (input == DataType::F32 || output != DataType::F32)) {
            return Err(Status::UNSUPPORTED_TYPE);
        }
        let sums_in_half = p.geometry.accumulate == DataType::F16;
        if p.geometry.accumulate == DataType::Bf16
            || (sums_in_half && (input != DataType::F16 || output != DataType::F16))
        {
            return Err(Status::UNSUPPORTED_TYPE);
        }
        use Method::*;
        let wide_output = input != output;
        let types = match self.method {
            Implicit => true,
            TensorCore => true,
            Precomputed => !wide_output,
            Gemm | SplitK => !sums_in_half,
            DownConvert => !wide_output && input == DataType::F32,
            // Where compiling takes time, it is refused only after that.
            FftTiling if wide_output && !compile().is_zero() => !sums_in_half && input != DataType::Bf16,
            _ => !wide_output && !sums_in_half && input != DataType::Bf16,
        };
        if !types {
            return Err(Status::UNSUPPORTED_TYPE);
        }
        let ones = |values: &[i64]| values.iter().all(|&v| v == 1);
        let (dense, filter) = (ones(&p.geometry.strides) && ones(&p.geometry.dilations), &p.w.dims[2..]);
        let square = |size| filter[0] == 1 && filter[1] == size && filter[2] == size;
        let shape = match self.method {
            Implicit | Precomputed | SplitK => true,
            Gemm => ones(&p.geometry.dilations) && p.groups == 1,
            TensorCore => input == DataType::F32 || (p.w.dims[1] % 8 == 0 && (p.w.dims[0] / p.groups) % 8 == 0),
            Fft => {
                dense
                    && p.spatial == 2
                    && p.groups == 1
                    && filter.iter().all(|&f| f <= 32)
                    && (0..3).all(|i| p.x.dims[2 + i] + p.geometry.pre[i] + p.geometry.post[i] <= 256)
                    && (0..3).all(|i| p.geometry.pre[i] < filter[i])
            }
            FftTiling => dense && p.spatial >= 2 && p.groups == 1 && filter.iter().all(|&f| f <= 32),
            Winograd => dense && p.spatial == 2 && square(3) && p.groups == 1,
            WinogradNonfused => dense && p.spatial == 2 && (square(3) || square(5)),
            DownConvert => p.groups == 1 && p.beta == 0.0,
            Absent => false,
        };
        if !shape {
            return Err(Status::UNSUPPORTED_SHAPE);
        }
        // Transforms read images from separate tensors.
        let has_gaps = [&p.x, &p.y].iter().any(|t| t.extent() > t.len() * t.data_type.bytes());
        if has_gaps && matches!(self.method, Fft | FftTiling | WinogradNonfused) {
            return Err(Status::UNSUPPORTED_LAYOUT);
        }
        let channels_last = [&p.x, &p.w, &p.y].iter().any(|t| t.is_channels_last());
        if channels_last && matches!(self.method, Fft | FftTiling | Winograd | WinogradNonfused) {
            return Err(Status::UNSUPPORTED_LAYOUT);
        }
        Ok(())
    }

    /// Bytes of alignment that every tensor must promise, where the promise is made (backend API).
    pub fn alignment(self) -> i64 {
        match self.method {
            Method::TensorCore => 16,
            Method::DownConvert => 8,
            _ => 1,
        }
    }

    /// Exact workspace in bytes.
    pub fn workspace(self, problem: &Problem) -> u64 {
        let p = problem;
        let [n, c, k] = [p.x.dims[0], p.x.dims[1], p.y.dims[1]].map(|d| d as u64);
        let positions = p.y.dims[2..].iter().product::<i64>() as u64;
        let patch = p.w.dims[1..].iter().product::<i64>() as u64;
        let element = p.inputs()[0].data_type.bytes() as u64;
        let transformed = |n: u64, points: u64| 8 * points * (n * c + n * k + c * k / p.groups as u64);
        round_up(match self.method {
            Method::Implicit | Method::Absent => 0,
            Method::Precomputed => 4096 + 4 * patch,
            Method::Gemm => (n * positions * patch * element) >> self.knob,
            Method::TensorCore if p.x.is_channels_last() => 0,
            Method::TensorCore => (p.x.len() + p.y.len()) as u64 * element,
            Method::Fft => {
                let side = (0..3).map(|i| p.x.dims[2 + i] + p.w.dims[2 + i] - 1).max().unwrap_or(1) as u64;
                let side = side.next_power_of_two();
                transformed(n, side * (side / 2 + 1))
            }
            Method::FftTiling => transformed(if n.is_multiple_of(8) { n } else { 2 * n }, 32 * 17),
            Method::Winograd => 64 * c * k,
            Method::WinogradNonfused => transformed(n * positions.div_ceil(16), 18),
            Method::SplitK => 4 * p.output().len() as u64 * self.knob as u64,
            Method::DownConvert => p.inputs().map(|t| 2 * t.len() as u64).iter().sum(),
        })
    }

    /// Virtual time in nanoseconds: a launch, then a fixed time for each product.
    pub fn nanos(self, problem: &Problem) -> u64 {
        let (launch, femtos) = match self.method {
            Method::Implicit | Method::Absent => (3_000, 20_000),
            Method::Precomputed => (3_500, 8_000),
            Method::Gemm => (5_000, 3_000 << self.knob),
            Method::TensorCore => (6_000, 1_000),
            Method::Fft => (9_000, 1_200),
            Method::FftTiling => (8_000, 1_500),
            Method::Winograd => (4_000, 4_000),
            Method::WinogradNonfused => (7_000, 900),
            Method::SplitK => (4_500, 6_000 / (1 + self.knob as u64)),
            Method::DownConvert => (6_000, 700),
        };
        let backward = 4 + u64::from(problem.operation != Operation::Forward);
        let femtos = problem.products().saturating_mul(femtos).saturating_mul(slowdown());
        (femtos / 1_000_000 * backward / 4).saturating_add(launch)
    }

    /// The notes in the backend API's answers, for the problem's types.
    pub fn notes(self, problem: &Problem) -> Vec<i32> {
        let mut notes = match self.method {
            Method::TensorCore => vec![note::TENSOR_CORE],
            Method::DownConvert => vec![note::TENSOR_CORE, note::DOWN_CONVERT_INPUTS],
            Method::Fft | Method::FftTiling => vec![note::FFT],
            Method::Winograd => vec![note::WINOGRAD],
            Method::WinogradNonfused => vec![note::WINOGRAD, note::WINOGRAD_4X4],
            Method::SplitK => vec![note::NONDETERMINISTIC],
            _ => vec![],
        };
        if problem.geometry.accumulate == DataType::F16 {
            notes.push(note::REDUCED_PRECISION);
        }
        notes
    }

    /// The method's arithmetic.
    pub fn numerics(self) -> Numerics {
        let plain = Numerics { order: Order::Forward, tf32: false, half_inputs: false, transform_error: 0.0 };
        match self.method {
            Method::Precomputed => Numerics { order: Order::Backward, ..plain },
            Method::TensorCore => Numerics { order: Order::Backward, tf32: true, ..plain },
            Method::SplitK => Numerics { order: Order::Changing, ..plain },
            Method::DownConvert => Numerics { half_inputs: true, ..plain },
            Method::Fft | Method::FftTiling => Numerics { transform_error: 2e-7, ..plain },
            Method::Winograd | Method::WinogradNonfused => Numerics { transform_error: 5e-7, ..plain },
            _ => plain,
        }
    }
}
