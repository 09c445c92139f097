//! The choices for a kernel and their costs: `algorithm`s (possibly in slices) and `measurement`s, `configuration`s, and the workspace `limit`.

mod algorithm;
mod configuration;
mod limit;
mod measurement;

pub use algorithm::{Algorithm, ON_COPIES, Slices};
pub use configuration::{Call, Candidate, Candidates, Configuration, DivisionCost};
pub use limit::Limit;
pub use measurement::{Measurement, Notes};
