//! Unequal devices: `step` predicts the time of a training step per device and batch, and `split` splits a mini-batch over the devices.

mod split;
mod step;

pub use split::{DeviceShare, MixedSplit, split_network};
pub use step::{StepOptions, step_times, training_bytes};
