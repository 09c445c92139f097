//! Unequal devices: how long a training step of each batch takes on each, and a mini-batch split over them.

mod split;
mod step;

pub use split::{DeviceShare, MixedSplit, split_network};
pub use step::{StepOptions, step_times, training_bytes};
