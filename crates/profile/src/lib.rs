//! Costs of convolutions on a device: measured, cached on disk, recorded and replayed; which sizes to measure; and the answers for a
//! whole network, made of these measurements and of the optimizers of `tightfit-conv`.
//!
//! The entry points are [`answer::optimize`] and [`answer::profile`]. A network under a limit for each kernel, from measurements
//! recorded on an H200:
//!
//! ```
//! use tightfit_conv::Backend;
//! use tightfit_conv::candidate::Limit;
//! use tightfit_network::built_in;
//! use tightfit_profile::answer::{Request, optimize};
//! use tightfit_profile::survey::Env;
//! use tightfit_profile::{Recording, Replay, Selection};
//! use tightfit_units::Bytes;
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
//! To store measurements elsewhere than in the [`Cache`], implement [`Store`]. Feature: `cache` (SQLite, needs a C compiler), on by
//! default.
//!
//! - `profiler` measures on demand and keeps results in a `store`; `cache` is the store on disk.
//! - `recording` is the profile file; `replay` answers from recordings as a backend.
//! - `decision` and `comparison` hold results about the convolutions of programs.
//! - `bounds` checks everything that is imported, saved or read.
//! - `model` finds a network or a recorded program by name.
//! - [`survey`] decides which sizes to measure.
//! - [`mixed`] is for unequal devices.
//! - [`answer`] has the entry points and their results.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod answer;
mod bounds;
#[cfg(feature = "cache")]
mod cache;
mod comparison;
mod decision;
mod key;
pub mod mixed;
mod model;
mod owner;
mod profiler;
mod recording;
mod replay;
mod selection;
mod store;
pub mod survey;

#[cfg(feature = "cache")]
pub use cache::{Cache, Imported, Mark, Summary};
pub use comparison::{Comparison, ComparisonKey};
pub use decision::{Decision, DecisionKey};
pub use key::{is_step_name, step_name};
pub use model::Model;
pub use owner::{Owner, RecordedNetwork};
pub use profiler::{Admission, Profiler, Share, Skipped, Spent};
pub(crate) use profiler::{Known, Rivals};
pub use recording::{Recording, Shipped};
pub use replay::Replay;
pub use selection::Selection;
pub use store::Store;
