//! Measurements of a problem's algorithms: queried from a [`Backend`](tightfit_conv::Backend), measured, cached on disk, or replayed from a recording.
//!
//! - `profiler` measures on demand and keeps results in a `store`; `cache` is the store on disk.
//! - `recording` is the profile file; `replay` answers from recordings as a backend.
//! - `decision` and `comparison` hold results about the convolutions of programs.
//! - `bounds` checks everything that is imported, saved or read; `corrections` amends the notes of libraries.
//! - `model` finds a network or a recorded program by name.

mod bounds;
#[cfg(feature = "cache")]
mod cache;
mod comparison;
mod corrections;
mod decision;
mod key;
mod model;
mod owner;
mod profiler;
mod recording;
mod replay;
mod selection;
mod statistics;
mod store;

#[cfg(feature = "cache")]
pub use cache::{Cache, Imported, Mark, Summary};
pub use comparison::{Comparison, ComparisonKey};
pub use corrections::corrected;
pub use decision::{Decision, DecisionKey};
pub use key::{is_step_name, step_name};
pub use model::Model;
pub use owner::{Owner, RecordedNetwork};
pub use profiler::{Admission, Profiler, Share, Skipped, Spent};
pub(crate) use profiler::{Known, Rivals};
pub use recording::{Recording, Shipped};
pub use replay::Replay;
pub use selection::Selection;
pub use statistics::{Sample, sample};
pub use store::Store;
