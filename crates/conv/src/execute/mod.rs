//! Runs configurations and verifies their results: against the undivided run, against loops in f64, and concurrently with others.
//!
//! `data` generates inputs, `reference` computes chosen outputs in f64, `class` finds the error to compare with, `verify` and `concurrent` run and
//! compare.

mod class;
mod concurrent;
mod data;
mod reference;
mod trial;
mod verify;

pub use concurrent::{Overlapped, verify_together};
pub use data::{Data, Values};
pub use reference::{Elements, products, reference_of};
pub use trial::Trial;
pub use verify::{Reference, SAMPLED_OUTPUTS, Verified, verify};
