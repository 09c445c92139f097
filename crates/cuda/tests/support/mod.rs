//! The convolution as plain loops.

pub mod reference;
