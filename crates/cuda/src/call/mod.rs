//! One function for each C function in use: its status becomes a `Result`, its out-parameter the value. They keep the
//! obligations of C, listed under `# Safety`; [`safe`](crate::safe) and [`layers`](crate::layers) uphold them.

pub mod cublas;
pub mod cudnn;
pub mod driver;
pub mod layers;
