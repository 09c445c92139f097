//! Trains networks in the memory that a plan gives them: one arena on the device, one pinned arena on the host, three
//! streams, and a schedule that says what happens where.
//!
//! The engine walks a [`Schedule`](tightfit_core::plan::Schedule) once and hands every instruction to a [`Machine`], which only
//! enqueues; nothing waits on the host until the step is over.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod data;
mod engine;
mod error;
mod evaluate;
pub mod host_memory;
mod initialize;
pub mod machine;
mod observe;
mod resolve;
mod trace;

pub use engine::{Engine, Learned, Outcome, Solver};
pub use error::Error;
pub use evaluate::{Prediction, Score, evaluate, predict};
pub use machine::Machine;
pub use observe::Observation;
pub use resolve::Poison;
pub use trace::Trace;
