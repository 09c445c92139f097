//! What is known of a problem's algorithms: asked of a [`Backend`](crate::Backend), measured, kept in a cache on disk, or replayed from
//! a recording.

mod cache;
mod corrections;
mod profiler;
mod recording;
mod replay;
mod statistics;

pub use cache::{Cache, Summary};
pub use corrections::corrected;
pub use profiler::{Admission, Profiler, Skipped, Spent};
pub use recording::{RecordedNetwork, Recording};
pub use replay::Replay;
pub use statistics::{Sample, sample};
