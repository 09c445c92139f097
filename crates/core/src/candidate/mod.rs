//! The choices for a kernel and their costs: algorithms, measurements, configurations, and workspace limits.

mod configuration;
mod limit;
mod measurement;
mod slices;

pub use configuration::{Call, Candidate, Candidates, Configuration, DivisionCost};
pub use limit::Limit;
pub use measurement::{Algorithm, Measurement, Notes, ON_COPIES};
pub use slices::Slices;
