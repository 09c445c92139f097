//! The core of tightfit, in safe Rust without device code: convolutions, their measurements, and how to divide a
//! mini-batch so that the fastest algorithms fit in memory.
//!
//! The folders form layers, and each imports only from those above it:
//!
//! ```text
//! flow         least cuts
//! plan         a step within a memory budget: policies, offsets, simulator, checker
//! eager        plans of other programs' steps, as they are carried out from outside
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod eager;
pub mod flow;
pub mod plan;
