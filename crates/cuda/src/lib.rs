//! Convolutions on NVIDIA GPUs.

mod backend;
pub mod call;
mod convolution;
pub mod doctor;
mod error;
pub mod load;
pub mod safe;
pub mod sys;
mod transfer;

pub use backend::{CudaBackend, Options};
pub use error::{CudaError, Tried};
pub use load::CudnnVersion;
