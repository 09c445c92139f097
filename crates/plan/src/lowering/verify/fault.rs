//! Faults of a lowered step, and facts of networks that several rules use.

use std::fmt;

use tightfit_network::{LayerId, LayerKind};

use crate::step::Access;
use crate::{NetworkTensor, Pass, Role, Workload};

/// A difference between a step and its network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A pass has an operand it should not have, or accesses it the wrong way.
    WrongRole(Role),
    /// A pass claims a layer that is not a ReLU in place over its output, or that it cannot compute.
    WrongRelu(LayerId),
    /// A pass lacks an operand.
    MissingRole(Role),
    /// An operand does not hold what the pass must read.
    WrongContent(Role),
    /// A pass runs twice.
    RunTwice,
    /// A pass does not run.
    MissingPass(Pass),
    /// A tensor has the wrong length or residence.
    WrongTensor(NetworkTensor),
    /// The tensors marked as results are not the network's results.
    WrongResult,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// A tensor as used by a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operand {
    pub(super) role: Role,
    /// Its index among the tensors.
    pub(super) place: usize,
    pub(super) access: Access,
}

/// Whether this input's gradient is the output's gradient, modified in place.
pub(super) fn is_in_place(workload: &Workload<'_>, layer: LayerId, place: usize) -> bool {
    let inputs = &workload.network.layer(layer).inputs;
    let map = |layer| workload.maps.written_by(layer);
    workload.network.layer(layer).kind != LayerKind::SoftmaxLoss
        && inputs.get(place).is_some_and(|input| map(*input) == map(layer))
}

/// Whether a layer only reshapes its input.
pub(super) fn is_view(kind: &LayerKind) -> bool {
    matches!(kind, LayerKind::Flatten | LayerKind::Reshape { .. })
}

/// The layer that wrote a layer's output: a view writes nothing.
pub(super) fn unflattened(workload: &Workload<'_>, mut layer: LayerId) -> LayerId {
    while let (true, Some(input)) =
        (is_view(&workload.network.layer(layer).kind), workload.network.layer(layer).inputs.first())
    {
        layer = *input;
    }
    layer
}
