//! A network's step in the network's own terms: its tensors, its passes, and the role of each tensor in a pass.

use serde::{Deserialize, Serialize};
use tightfit_network::{LayerId, MapId};

use crate::step::{Kind, Pass, Step};

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

/// A pass of a layer, as an operation of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerPass {
    /// The layer.
    pub layer: LayerId,
    /// Its pass.
    pub pass: Pass,
    /// The role of each of the operation's uses.
    pub roles: Vec<Role>,
    /// The ReLU over the layer's output that the pass also computes.
    pub relu: Option<LayerId>,
}

/// The step of a network, with the network's meaning of each part.
#[derive(Clone, Debug, PartialEq)]
pub struct Lowered {
    /// The step, without costs.
    pub step: Step,
    /// The meaning of each tensor.
    pub tensors: Vec<NetworkTensor>,
    /// The meaning of each operation.
    pub passes: Vec<LayerPass>,
    /// The layer of each group.
    pub layers: Vec<LayerId>,
}
