//! What can be chosen for a kernel, and what it costs: algorithms, their measurements, configurations made of them, and the
//! limit that binds them.

mod configuration;
mod limit;
mod measurement;

pub use configuration::{Candidate, Candidates, Configuration, DivisionCost};
pub use limit::Limit;
pub use measurement::{Algorithm, Measurement, Notes};
