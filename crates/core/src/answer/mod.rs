//! What a journey returns: a network's kernels with the configurations chosen for them.

mod choose;
mod optimized;
#[cfg(test)]
pub(crate) mod samples;

pub use choose::{Chosen, choose};
pub use optimized::{Optimized, OptimizedKernel, Profiling};
