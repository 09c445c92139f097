//! A network's step in the network's own terms: its tensors, its passes, and the role of each tensor in a pass.

use serde::{Deserialize, Serialize};
use tightfit_conv::Operation;
use tightfit_network::{LayerId, MapId};

use super::Kind;

/// A tensor of a network's step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NetworkTensor {
    /// A feature map (X of the layers that read it, Y of the layers that write it).
    FeatureMap(MapId),
    /// The gradient of a feature map.
    Gradient(MapId),
    /// The parameters of a layer, in the storage of the workload's types.
    Weights(LayerId),
    /// The parameters in 32 bits, if they are stored in 16.
    MasterWeights(LayerId),
    /// The gradient of the parameters, in 32 bits.
    WeightGradient(LayerId),
    /// The solver's momentum, or AdamW's first moment, in 32 bits.
    Momentum(LayerId),
    /// AdamW's second moment, in 32 bits.
    SecondMoment(LayerId),
    /// State that a layer keeps between steps but does not learn: running means and variances.
    Statistics(LayerId),
    /// Data other than maps that a layer's forward pass saves for its backward pass.
    Saved(LayerId),
    /// The labels of the mini-batch.
    Labels,
    /// Scratch memory for one computation of a layer.
    Workspace(LayerId),
}

impl NetworkTensor {
    /// The kind of memory it counts as.
    pub fn kind(self) -> Kind {
        match self {
            NetworkTensor::FeatureMap(_) | NetworkTensor::Labels => Kind::FeatureMaps,
            NetworkTensor::Gradient(_) => Kind::GradientMaps,
            NetworkTensor::Weights(_) | NetworkTensor::MasterWeights(_) | NetworkTensor::Statistics(_) => Kind::Weights,
            NetworkTensor::WeightGradient(_) => Kind::WeightGradients,
            NetworkTensor::Momentum(_) | NetworkTensor::SecondMoment(_) => Kind::Momentum,
            NetworkTensor::Saved(_) => Kind::Saved,
            NetworkTensor::Workspace(_) => Kind::Workspace,
        }
    }

    /// Whether it stays on the device between steps.
    pub fn is_resident(self) -> bool {
        matches!(self.kind(), Kind::Weights | Kind::WeightGradients | Kind::Momentum)
    }
}

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

/// The role of an operand in its layer; inputs are numbered as in [`tightfit_network::Layer::inputs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// An input map.
    X(usize),
    /// The output map; the same block as `X(0)` if the layer works in place.
    Y,
    /// The gradient of an input map; the same block as `Dy` if the layer works in place.
    Dx(usize),
    /// The gradient of the output map.
    Dy,
    /// The parameters.
    W,
    /// The parameters in 32 bits, if `W` is in 16.
    Master,
    /// The gradient of the parameters.
    Dw,
    /// The solver's momentum, or AdamW's first moment.
    Momentum,
    /// AdamW's second moment.
    SecondMoment,
    /// Running means and variances.
    Statistics,
    /// Data that the forward pass saves.
    Saved,
    /// The labels.
    Labels,
    /// Scratch.
    Workspace,
}
