//! Runs configurations and verifies their results: against the undivided run, against loops in f64, and concurrently
//! with others.

mod class;
mod concurrent;
mod data;
mod reference;
mod verify;

pub use concurrent::{Overlapped, verify_together};
pub use data::{Data, Values};
pub use reference::{Elements, products, reference_of};
pub use verify::{Reference, SAMPLED_OUTPUTS, Trial, Verified, verify};
