//! The tensors of a file, by name, and where the engine keeps their numbers.

use std::ops::Range;

use tightfit_core::network::{LayerId, LayerKind};
use tightfit_core::plan::{NetworkTensor, Parameter, ParameterKind, Workload, channel_stride};

use crate::Learned;

/// The first part of the names of all solver state.
pub const SOLVER: &str = "solver.";

/// A tensor of a file, and the part of a layer's block that it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// Its name in the file.
    pub name: String,
    /// Its shape, as PyTorch orders it.
    pub shape: Vec<usize>,
    tensor: NetworkTensor,
    offset: usize,
}

impl Slice {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Its elements among those of the block.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.elements()
    }

    /// The tensors that hold it: weights may be there in 16 and in 32 bits.
    pub fn tensors(&self) -> Vec<NetworkTensor> {
        match self.tensor {
            NetworkTensor::Weights(layer) => vec![NetworkTensor::MasterWeights(layer), self.tensor],
            tensor => vec![tensor],
        }
    }

    /// Its numbers, in the most exact form kept.
    pub fn of<'a>(&self, kept: &'a Learned) -> Option<&'a [f32]> {
        let held = self.tensors().into_iter().find_map(|tensor| kept.get(&tensor))?;
        held.get(self.range())
    }
}

/// Parameters and running statistics of all layers, in network order.
pub fn weight_slices(workload: &Workload<'_>) -> Vec<Slice> {
    let mut slices = Vec::new();
    for (id, layer) in workload.network.iter() {
        slices.extend(parameter_slices(workload, id, "", NetworkTensor::Weights(id)));
        if layer.kind.behavior().statistics {
            let channels = layer.shape.channels();
            for (word, offset) in [("running_mean", 0), ("running_var", channel_stride(channels))] {
                let tensor = NetworkTensor::Statistics(id);
                slices.push(Slice { name: format!("{}.{word}", layer.name), shape: vec![channels], tensor, offset });
            }
        }
    }
    slices
}

/// The solver's state for all parameters, in network order.
pub fn solver_slices(workload: &Workload<'_>) -> Vec<Slice> {
    let mut slices = Vec::new();
    for (id, _) in workload.network.iter() {
        if workload.momentum {
            slices.extend(parameter_slices(workload, id, "solver.momentum/", NetworkTensor::Momentum(id)));
        }
        if workload.second_moment {
            slices.extend(parameter_slices(workload, id, "solver.second-moment/", NetworkTensor::SecondMoment(id)));
        }
    }
    slices
}

/// One slice per parameter of a layer, in a block of all its parameters.
fn parameter_slices(workload: &Workload<'_>, id: LayerId, prefix: &str, tensor: NetworkTensor) -> Vec<Slice> {
    let layer = workload.network.layer(id);
    let slice = |parameter: Parameter| {
        let (word, shape) = match parameter.kind {
            ParameterKind::Weight => ("weight", weight_shape(workload, id, parameter.elements)),
            ParameterKind::Scale => ("weight", vec![parameter.elements]),
            ParameterKind::Bias | ParameterKind::Shift => ("bias", vec![parameter.elements]),
        };
        Slice { name: format!("{prefix}{}.{word}", layer.name), shape, tensor, offset: parameter.offset }
    };
    workload.parameters(id).into_iter().map(slice).collect()
}

/// The shape of a layer's weights: filters by channels per group by window, or outputs by inputs.
fn weight_shape(workload: &Workload<'_>, id: LayerId, elements: usize) -> Vec<usize> {
    match &workload.network.layer(id).kind {
        LayerKind::Convolution { convolution, .. } => {
            let mut shape = vec![convolution.filters(), convolution.channels() / convolution.groups()];
            shape.extend(convolution.axes().iter().map(|axis| axis.filter));
            shape
        }
        LayerKind::FullyConnected { outputs, .. } => vec![*outputs, elements / outputs],
        _ => vec![elements],
    }
}
