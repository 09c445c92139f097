//! Convolutions on NVIDIA GPUs.

pub mod call;
mod error;
pub mod load;
pub mod safe;
pub mod sys;

pub use error::{CudaError, Tried};
pub use load::CudnnVersion;
