//! Surveys: which micro-batch sizes to measure, for one kernel, and for all kernels of a network over several devices.
//!
//! 1. `survey` takes the distinct problems; `devices` gives each free device the next task; `env` has the store, stop flag and listener.
//! 2. `sizes` lists the fixed sizes of a problem; `fit` searches for the best ones; `ahead` measures on several devices at once.
//! 3. `bounds` and `grouped` spare hopeless candidates; `budget` limits the time.
//! 4. `slices` and `slicing` measure slices along an axis; `parts` further mini-batches.
//! 5. `forecast` predicts the cost of a survey.

mod ahead;
mod bounds;
mod budget;
mod devices;
mod env;
mod fit;
mod forecast;
mod grouped;
mod parts;
mod scope;
mod sizes;
mod slices;
mod slicing;
#[expect(clippy::module_inception, reason = "the survey itself, beside the sizes that it measures")]
mod survey;

pub use budget::TuneBudget;
pub use env::{Env, Progress, Silent};
pub use fit::Screen;
pub use forecast::{Expected, Forecast, forecast, tensor_memory};
pub use scope::Scope;
pub use sizes::{Sizes, candidates, screened};
pub use slices::{Divide, add_slices};
pub use slicing::Slicing;
pub use survey::{Survey, survey};
