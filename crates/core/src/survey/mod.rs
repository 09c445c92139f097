//! Surveys: which micro-batch sizes to measure, for one kernel, and for all kernels of a network over several devices.

mod ahead;
mod bounds;
mod budget;
mod devices;
mod env;
mod fit;
mod forecast;
mod grouped;
mod parts;
mod sizes;
mod slices;
mod slicing;
#[expect(clippy::module_inception, reason = "the survey itself, beside the sizes that it measures")]
mod survey;

pub use budget::TuneBudget;
pub use env::{Env, Progress, Silent};
pub use fit::Screen;
pub use forecast::{Expected, Forecast, forecast, tensor_memory};
pub use sizes::{Sizes, candidates, screened};
pub use slices::{Divide, add_slices};
pub use slicing::Slicing;
pub use survey::{Scope, Survey, survey};
