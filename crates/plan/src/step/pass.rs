//! The passes of a layer; rates differ between them.

use serde::{Deserialize, Serialize};
use tightfit_conv::Operation;

/// One of a layer's computations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pass {
    /// Y from X. For an input layer: the next mini-batch and its labels.
    Forward,
    /// dX from dY. Batch normalization also computes its parameter gradients in this pass.
    BackwardData,
    /// dW from X and dY.
    BackwardFilter,
    /// The solver: W from dW.
    Update,
}

impl Pass {
    /// The name used in messages and files.
    pub fn name(self) -> &'static str {
        match self {
            Pass::Forward => "forward",
            Pass::BackwardData => "backward-data",
            Pass::BackwardFilter => "backward-filter",
            Pass::Update => "update",
        }
    }

    /// The convolution operation of this pass; `None` for the solver.
    pub fn operation(self) -> Option<Operation> {
        match self {
            Pass::Forward => Some(Operation::Forward),
            Pass::BackwardData => Some(Operation::BackwardData),
            Pass::BackwardFilter => Some(Operation::BackwardFilter),
            Pass::Update => None,
        }
    }
}
