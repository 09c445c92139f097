//! The three convolution operations of training.

use serde::{Deserialize, Serialize};

use tightfit_units::by_name;

/// The output and inputs of each operation; y = x * w throughout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// y from x and w.
    Forward,
    /// dx from dy and w.
    BackwardData,
    /// dw from dy and x: the only one whose output has no batch dimension, so micro-batches add up in it.
    BackwardFilter,
}

impl Operation {
    /// All three, in the order in which a training step runs and reports list them.
    pub const ALL: [Operation; 3] = [Operation::Forward, Operation::BackwardData, Operation::BackwardFilter];

    /// The name used in text forms, files and options.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Forward => "forward",
            Operation::BackwardData => "backward-data",
            Operation::BackwardFilter => "backward-filter",
        }
    }
}

by_name!(Operation, "operations");
