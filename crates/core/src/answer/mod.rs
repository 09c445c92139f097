//! The main entry points, `optimize` and `profile`, and their result: a network's kernels with their configurations.

mod choose;
mod optimize;
mod optimized;
mod profile;
#[cfg(test)]
pub(crate) mod samples;

pub use optimize::{Request, optimize};
pub use optimized::{NotUndivided, Optimized, OptimizedKernel, Profiling};
pub use profile::profile;
