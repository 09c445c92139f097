//! What is known of a problem's algorithms: asked of a [`Backend`], measured, kept in a cache on disk, or replayed from
//! a recording.

mod backend;
mod measurement;
mod statistics;

pub use backend::{Backend, Device, Effort, Offer, Run, Scale, Tensors};
pub use measurement::{Algorithm, Measurement, Notes};
pub use statistics::{Sample, sample};
