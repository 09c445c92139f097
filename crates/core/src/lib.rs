//! The core of tightfit, in safe Rust without device code: convolutions, their measurements, and how to divide a
//! mini-batch so that the fastest algorithms fit in memory.
//!
//! The entry points are [`answer::optimize`] and [`answer::profile`] for convolutions under a workspace limit, and
//! [`plan::plan`] for a training step in a memory budget. From measurements recorded on an H200:
//!
//! ```
//! use tightfit_core::answer::{Request, optimize};
//! use tightfit_conv::candidate::Limit;
//! use tightfit_network::built_in;
//! use tightfit_core::profile::{Recording, Replay, Selection};
//! use tightfit_core::survey::Env;
//! use tightfit_units::Bytes;
//! use tightfit_conv::Backend;
//!
//! # let profile = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/recorded/h200-legacy-alexnet-1col-all.jsonl.gz");
//! let recorded = Replay::of(Recording::read(profile.as_ref())?)?;
//! let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(recorded)];
//! let request = Request::new(Selection::new(built_in("alexnet-1col")?, Some(256)), Limit::PerKernel(Bytes::mib(64)));
//! let found = optimize(&request, &mut backends, &Env::default())?;
//! assert!(found.time() <= found.undivided_time().unwrap());
//! assert!(found.kernels.iter().all(|kernel| kernel.configuration.workspace() <= Bytes::mib(64)));
//! # Ok::<(), tightfit_units::Error>(())
//! ```
//!
//! To store measurements elsewhere, implement [`profile::Store`].
//! Features: `cache` (SQLite, needs a C compiler) and `tables` (text for a terminal), both on by default.
//!
//! The folders form layers, and each imports only from those above it:
//!
//! ```text
//! flow         least cuts
//! profile      measuring, caching, recording and replaying
//! survey       which sizes to measure
//! mixed        unequal devices
//! plan         a step within a memory budget: policies, offsets, simulator, checker
//! eager        plans of other programs' steps, as they are carried out from outside
//! answer       entry points and results
//! report       tables, JSON, CSV, pictures
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod answer;
pub mod eager;
pub mod flow;
pub mod mixed;
pub mod plan;
pub mod profile;
pub mod report;
pub mod survey;
