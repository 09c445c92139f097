//! What a network's step consists of, in the network's own words: what its tensors are, and what they are to each pass of
//! a layer.

use serde::{Deserialize, Serialize};

use super::Kind;
use crate::Operation;
use crate::network::{LayerId, MapId};

/// What a network's step keeps in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkTensor {
    /// A feature map (X of the layers that read it, Y of those that write it).
    FeatureMap(MapId),
    /// The gradient of a feature map.
    Gradient(MapId),
    /// The parameters of a layer, in the storage of the workload's types.
    Weights(LayerId),
    /// The parameters in 32 bits, where they are stored in 16.
    MasterWeights(LayerId),
    /// The gradient of the parameters, in 32 bits.
    WeightGradient(LayerId),
    /// The solver's momentum, in 32 bits.
    Momentum(LayerId),
    /// What a layer keeps from step to step and does not learn: running means and variances.
    Statistics(LayerId),
    /// What a layer's forward pass saves for its backward pass beside maps.
    Saved(LayerId),
    /// The labels of the mini-batch.
    Labels,
    /// Scratch of one compute step of a layer.
    Workspace(LayerId),
}

impl NetworkTensor {
    /// What its bytes are for.
    pub fn kind(self) -> Kind {
        match self {
            NetworkTensor::FeatureMap(_) | NetworkTensor::Labels => Kind::FeatureMaps,
            NetworkTensor::Gradient(_) => Kind::GradientMaps,
            NetworkTensor::Weights(_) | NetworkTensor::MasterWeights(_) | NetworkTensor::Statistics(_) => Kind::Weights,
            NetworkTensor::WeightGradient(_) => Kind::WeightGradients,
            NetworkTensor::Momentum(_) => Kind::Momentum,
            NetworkTensor::Saved(_) => Kind::Saved,
            NetworkTensor::Workspace(_) => Kind::Workspace,
        }
    }

    /// Whether it stays on the device from step to step.
    pub fn is_resident(self) -> bool {
        matches!(self.kind(), Kind::Weights | Kind::WeightGradients | Kind::Momentum)
    }
}

/// Which of a layer's computations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pass {
    /// Y from X. For an input layer: the next mini-batch and its labels.
    Forward,
    /// dX from dY; a batch normalization gives the gradients of its parameters in the same pass.
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

    /// What a convolution computes in it; nothing for the solver.
    pub fn operation(self) -> Option<Operation> {
        match self {
            Pass::Forward => Some(Operation::Forward),
            Pass::BackwardData => Some(Operation::BackwardData),
            Pass::BackwardFilter => Some(Operation::BackwardFilter),
            Pass::Update => None,
        }
    }
}

/// What an operand is to its layer; inputs are counted as in [`crate::network::Layer::inputs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// An input map.
    X(usize),
    /// The output map; the same block as `X(0)` where the layer works in place.
    Y,
    /// The gradient of an input map; the same block as `Dy` where the layer works in place.
    Dx(usize),
    /// The gradient of the output map.
    Dy,
    /// The parameters.
    W,
    /// The parameters in 32 bits, where `W` is in 16.
    Master,
    /// The gradient of the parameters.
    Dw,
    /// The solver's momentum.
    Momentum,
    /// Running means and variances.
    Statistics,
    /// What the forward pass saves.
    Saved,
    /// The labels.
    Labels,
    /// Scratch.
    Workspace,
}
