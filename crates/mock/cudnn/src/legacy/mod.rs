//! The legacy interface: descriptors, and algorithms by number.

mod algorithm;
mod convolution;
mod descriptor;
mod fused;
mod ranking;
mod reading;

pub use descriptor::{count, reset, tensor};
