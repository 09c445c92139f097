//! The legacy interface: descriptors, and algorithms by number.

mod algorithm;
mod convolution;
mod descriptor;

pub use descriptor::{count, reset, tensor};
