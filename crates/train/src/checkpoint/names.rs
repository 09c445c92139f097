//! The tensors of a file, by name, and where the engine keeps their numbers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use tightfit_network::{Function, LayerId, LayerKind, Network};
use tightfit_onnx::{Model, Slot};
use tightfit_plan::{NetworkTensor, Parameter, ParameterKind, Workload, channel_stride};

use super::torchvision;
use crate::Learned;

/// The first part of the names of all solver state.
pub const SOLVER: &str = "solver.";

/// The names of a network's layers in a file: as in torchvision for its ResNets and VGGs, as in the model for an ONNX
/// model, and otherwise by their own names.
#[derive(Clone, Debug, Default)]
pub struct Names {
    layers: HashMap<LayerId, String>,
    slots: BTreeMap<(LayerId, Slot), String>,
}

impl Names {
    /// The names for a built-in network or one from a network file.
    pub fn of(network: &Network) -> Names {
        Names { layers: torchvision::names(network), slots: BTreeMap::new() }
    }

    /// The names for an ONNX model: the names of its initializers, if they have any. A parameter that layers share and
    /// train as one has one name, so that it is one tensor in a file; what they use in different ways has a name for
    /// each.
    pub fn of_model(model: &Model) -> Names {
        let mut uses: HashMap<&str, BTreeSet<(Slot, &str)>> = HashMap::new();
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for (layer, slot, name) in model.names() {
            uses.entry(name).or_default().insert((slot, model.network().layer(layer).kind.name()));
            *counts.entry(name).or_default() += 1;
        }
        let is_shared = model.shared().is_ok();
        let is_one =
            |name: &str| counts.get(name) == Some(&1) || is_shared && uses.get(name).is_some_and(|all| all.len() == 1);
        // Exporters make up names such as onnx::Conv_497 for weights that they changed.
        let is_name = |name: &str| is_one(name) && !name.contains("::") && !name.starts_with(SOLVER);
        let named = model.names().filter(|(_, _, name)| is_name(name));
        let slots = named.map(|(layer, slot, name)| ((layer, slot), name.to_owned())).collect();
        Names { layers: HashMap::new(), slots }
    }

    /// The name of a slot, whose own word is `word`.
    fn name(&self, workload: &Workload<'_>, layer: LayerId, slot: Slot, word: &str) -> String {
        self.slots.get(&(layer, slot)).cloned().unwrap_or_else(|| {
            let own = &workload.network.layer(layer).name;
            format!("{}.{word}", self.layers.get(&layer).unwrap_or(own))
        })
    }
}

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

    /// Its elements among the block's.
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
pub fn weight_slices(workload: &Workload<'_>, names: &Names) -> Vec<Slice> {
    let mut slices = Vec::new();
    for (id, layer) in workload.network.iter() {
        slices.extend(parameter_slices(workload, names, id, "", NetworkTensor::Weights(id)));
        if layer.kind.behavior().statistics {
            let channels = layer.shape.channels();
            let second = channel_stride(channels);
            for (slot, word, offset) in [(Slot::Mean, "running_mean", 0), (Slot::Variance, "running_var", second)] {
                let tensor = NetworkTensor::Statistics(id);
                let name = names.name(workload, id, slot, word);
                slices.push(Slice { name, shape: vec![channels], tensor, offset });
            }
        }
    }
    slices
}

/// The solver's state for all parameters, in network order.
pub fn solver_slices(workload: &Workload<'_>, names: &Names) -> Vec<Slice> {
    let mut slices = Vec::new();
    for (id, _) in workload.network.iter().filter(|(id, _)| workload.trains(*id)) {
        if workload.momentum {
            slices.extend(parameter_slices(workload, names, id, "solver.momentum/", NetworkTensor::Momentum(id)));
        }
        if workload.second_moment {
            slices.extend(parameter_slices(
                workload,
                names,
                id,
                "solver.second-moment/",
                NetworkTensor::SecondMoment(id),
            ));
        }
    }
    slices
}

/// One slice per parameter of a layer, in a block of all its parameters.
fn parameter_slices(
    workload: &Workload<'_>,
    names: &Names,
    id: LayerId,
    prefix: &str,
    tensor: NetworkTensor,
) -> Vec<Slice> {
    let slice = |parameter: Parameter| {
        let vector = || vec![parameter.elements];
        let (slot, word, shape) = match parameter.kind {
            ParameterKind::Weight => (Slot::Weight, "weight", weight_shape(workload, id, parameter.elements)),
            ParameterKind::Scale => (Slot::Scale, "weight", scale_shape(workload, id, parameter.elements)),
            ParameterKind::Bias => (Slot::Bias, "bias", vector()),
            ParameterKind::Shift => (Slot::Shift, "bias", vector()),
        };
        let name = format!("{prefix}{}", names.name(workload, id, slot, word));
        Slice { name, shape, tensor, offset: parameter.offset }
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
        LayerKind::Other(other) => match other.function {
            Some(Function::Linear { outputs, .. }) => vec![outputs, elements / outputs],
            _ => vec![elements],
        },
        _ => vec![elements],
    }
}

/// The shape of a layer's factors: one for each channel, with extents of 1 where the layer is nothing but these factors.
fn scale_shape(workload: &Workload<'_>, id: LayerId, elements: usize) -> Vec<usize> {
    let layer = workload.network.layer(id);
    let mut shape = vec![elements];
    if let LayerKind::Other(other) = &layer.kind
        && other.function == Some(Function::Scale)
    {
        shape.extend(layer.shape.extents().iter().map(|_| 1));
    }
    shape
}
