//! Runs configurations and proves that they compute the same: against the undivided run, and against loops in f64.

mod data;
mod verify;

pub use data::{Data, Values};
pub use verify::{Reference, SAMPLED_OUTPUTS, Trial, Verified, verify};
