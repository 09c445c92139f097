//! The main entry points, `optimize`, `profile` and `verify`, and their result: a network's kernels with their configurations (`optimized`). `choose`
//! picks the configurations.

mod choose;
mod optimize;
mod optimized;
mod profile;
#[cfg(any(test, feature = "test-util"))]
pub mod samples;
mod verify;

pub use optimize::{Request, optimize};
pub use optimized::{NotUndivided, Optimized, OptimizedKernel, Profiling};
pub use profile::profile;
pub use verify::{Check, compared, fault, verify};
