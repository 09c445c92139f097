//! The choices for a kernel and their costs: algorithms, measurements, configurations, and workspace limits.

mod configuration;
mod limit;
mod measurement;

pub use configuration::{Candidate, Candidates, Configuration, DivisionCost};
pub use limit::Limit;
pub use measurement::{Algorithm, Measurement, Notes};
