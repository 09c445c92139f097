//! What a journey returns: a network's kernels with the configurations chosen for them.

mod choose;
mod optimize;
mod optimized;
mod profile;
#[cfg(test)]
pub(crate) mod samples;

pub use optimize::{Request, optimize};
pub use optimized::{Optimized, OptimizedKernel, Profiling};
pub use profile::profile;
