//! The choices for a kernel and their costs: algorithms and `measurement`s, `configuration`s (possibly in `slices`), and the workspace `limit`.

mod configuration;
mod limit;
mod measurement;
mod slices;

pub use configuration::{Call, Candidate, Candidates, Configuration, DivisionCost};
pub use limit::Limit;
pub use measurement::{Algorithm, Measurement, Notes, ON_COPIES};
pub use slices::Slices;
