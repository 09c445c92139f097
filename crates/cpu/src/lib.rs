//! Convolution algorithms on the CPU: the backend that is always available.
//!
//! | algorithm | workspace | where it applies |
//! |---|---|---|
//! | `direct` | none | everywhere: the specification |
//! | `blocked-gemm` | none | filters of at most 256 elements; in nhwc: of at most 16384 with all channels |
//! | `implicit-gemm` | tiles of columns: one for each thread | everywhere |
//! | `explicit-gemm` | the columns of the micro-batch | everywhere |
//! | `winograd-2x2`, `winograd-4x4` | transformed input, filters and output | 2-D: 3x3 filters, stride and dilation 1 |
//! | `fft`, `fft-tiling` | spectra of input, filters and output | 2-D: stride and dilation 1 |
//!
//! Each computes forward, backward-data and backward-filter in both layouts, with groups, any padding, and any alpha
//! and beta, in f32. One algorithm is one file, and `method` lists them; `transform` and `strips` are shared by the last four
//! and `unfold` by the three GEMM algorithms; `simd` runs plain loops with the processor's widest vectors.
//!
//! [`layers`] are the other layers of a network with their gradients; [`arena`] is memory of a fixed size that streams
//! share. `backend` measures and runs algorithms, `team` divides work among threads, and [`host_memory`] reports how
//! much host memory is available.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod arena;
mod backend;
mod blocked_gemm;
mod call;
mod direct;
mod explicit_gemm;
mod fft;
mod gemm;
pub mod host_memory;
mod implicit_gemm;
pub mod layers;
mod machine;
mod method;
pub mod random;
mod shape;
mod simd;
mod strips;
mod team;
mod transform;
mod unfold;
mod winograd;
mod workspace;

#[cfg(test)]
mod tests;

pub use backend::CpuBackend;
pub use direct::reference;
pub use team::Team;
