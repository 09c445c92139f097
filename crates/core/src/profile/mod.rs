//! What is known of a problem's algorithms: asked of a [`Backend`], measured, kept in a cache on disk, or replayed from
//! a recording.

mod backend;
mod cache;
mod corrections;
mod measurement;
mod profiler;
mod recording;
mod replay;
mod statistics;

pub use backend::{Backend, Device, Effort, Offer, Run, Scale, Task, Tensors, Together};
pub use cache::{Cache, Summary};
pub use corrections::corrected;
pub use measurement::{Algorithm, Measurement, Notes};
pub use profiler::{Admission, Profiler, Skipped, Spent};
pub use recording::{RecordedNetwork, Recording};
pub use replay::Replay;
pub use statistics::{Sample, sample};
