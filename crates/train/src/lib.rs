//! Trains networks within the memory of a plan: one arena on the device, one pinned arena on the host, streams for
//! computations and copies, and a schedule for all of them.
//!
//! For each step, the engine walks a [`Schedule`](tightfit_plan::Schedule) and passes every instruction to a
//! [`Machine`], which only enqueues it. The host does not wait until the step is over.
//!
//! ```text
//! engine       a schedule, step after step     resolve, sharing, observe   its commands, common parameters, tests' view
//! machine/     cpu and cuda: an arena, a pinned host arena, streams, and the layers
//! data/        labeled samples from files or a generator, read in the background
//! checkpoint/  weights and the state of a run in one safetensors file     weights, initialize   the first values
//! evaluate     forward passes     rate   the learning rate     trace   a timeline     host_memory   a check before allocating
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod checkpoint;
pub mod data;
mod engine;
mod error;
mod evaluate;
pub mod host_memory;
mod initialize;
pub mod machine;
mod observe;
mod rate;
mod resolve;
mod sharing;
mod trace;
mod weights;

pub use checkpoint::{Checkpoint, Progress};
pub use engine::{Engine, Solver, StepResult};
pub use error::Error;
pub use evaluate::{Prediction, Score, evaluate, predict};
pub use machine::Machine;
pub use observe::Observation;
pub use rate::{Decay, LearningRate};
pub use resolve::Poison;
pub use trace::Trace;
pub use weights::{Learned, replace_weights};
