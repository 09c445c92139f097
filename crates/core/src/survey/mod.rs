//! Experiments: which micro-batch sizes to measure, for one kernel and for all kernels of a network over several devices.

mod fit;
mod forecast;
mod policy;
#[expect(clippy::module_inception, reason = "the survey itself, beside the policies that say what it measures")]
mod survey;

pub use forecast::{Expected, Forecast, forecast, tensor_memory};
pub use policy::{Policy, candidates};
pub use survey::{Progress, Scope, Silent, Survey, survey};
