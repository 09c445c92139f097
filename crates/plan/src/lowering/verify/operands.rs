//! The operands that each pass of a layer must have.

use tightfit_network::{LayerId, LayerKind, PoolingMethod};

use crate::lowering::verify::fault::{Fault, Operand, is_view};
use crate::step::Access;
use crate::{LayerPass, Mode, NetworkTensor, Pass, Role, Workload};

/// The tensor required for this role.
fn tensor(workload: &Workload<'_>, layer: LayerId, role: Role) -> Option<NetworkTensor> {
    let input = |place: usize| {
        let input = workload.network.layer(layer).inputs.get(place)?;
        Some(workload.maps.written_by(*input))
    };
    let own = workload.maps.written_by(layer);
    Some(match role {
        Role::X(place) => NetworkTensor::FeatureMap(input(place)?),
        Role::Dx(place) => NetworkTensor::Gradient(input(place)?),
        Role::Y => NetworkTensor::FeatureMap(own),
        Role::Dy => NetworkTensor::Gradient(own),
        Role::W => NetworkTensor::Weights(layer),
        Role::Master => NetworkTensor::MasterWeights(layer),
        Role::Dw => NetworkTensor::WeightGradient(layer),
        Role::Momentum => NetworkTensor::Momentum(layer),
        Role::SecondMoment => NetworkTensor::SecondMoment(layer),
        Role::Statistics => NetworkTensor::Statistics(layer),
        Role::Saved => NetworkTensor::Saved(layer),
        Role::Labels => NetworkTensor::Labels,
        Role::Workspace => return None,
    })
}

/// The required operands of a pass, apart from input gradients, with their accesses; `None` if the layer has no such
/// pass.
fn needed(workload: &Workload<'_>, compute: &LayerPass) -> Option<Vec<(Role, Access)>> {
    let layer = workload.network.layer(compute.layer);
    let (read, write, add) = (Access::Read, Access::Write, Access::Add);
    let inputs = || (0..layer.inputs.len()).map(|place| (Role::X(place), Access::Read));
    let is_norm = matches!(layer.kind, LayerKind::BatchNorm { .. });
    let trains = workload.mode == Mode::Training;
    let mut roles: Vec<(Role, Access)> = match (&layer.kind, compute.pass) {
        (kind, _) if is_view(kind) => return None,
        (LayerKind::Input { .. }, Pass::Forward) => vec![(Role::Y, write), (Role::Labels, write)],
        (_, Pass::Forward) => inputs().chain([(Role::Y, write)]).collect(),
        (_, Pass::Update | Pass::BackwardFilter) if !workload.trains(compute.layer) => return None,
        (_, Pass::Update) => vec![(Role::W, add), (Role::Dw, read)],
        (LayerKind::Convolution { .. } | LayerKind::FullyConnected { .. }, Pass::BackwardFilter) => {
            vec![(Role::X(0), read), (Role::Dy, read), (Role::Dw, write)]
        }
        (LayerKind::Convolution { .. } | LayerKind::FullyConnected { .. }, Pass::BackwardData) => {
            vec![(Role::Dy, read), (Role::W, read)]
        }
        (LayerKind::Relu, Pass::BackwardData) => vec![(Role::Y, read), (Role::Dy, read)],
        (LayerKind::Pooling(pooling), Pass::BackwardData) if pooling.method == PoolingMethod::Average => {
            vec![(Role::Dy, read)]
        }
        (LayerKind::Pooling(_) | LayerKind::Lrn { .. }, Pass::BackwardData) => {
            vec![(Role::X(0), read), (Role::Y, read), (Role::Dy, read)]
        }
        (LayerKind::BatchNorm { .. }, Pass::BackwardData) => {
            vec![(Role::X(0), read), (Role::Saved, read), (Role::Dy, read), (Role::W, read), (Role::Dw, write)]
        }
        (LayerKind::Dropout { .. }, Pass::BackwardData) => vec![(Role::Saved, read), (Role::Dy, read)],
        (LayerKind::Concat | LayerKind::Add, Pass::BackwardData) => vec![(Role::Dy, read)],
        (LayerKind::SoftmaxLoss, Pass::BackwardData) => vec![(Role::Y, read), (Role::Labels, read)],
        (LayerKind::Other(other), Pass::BackwardData) => {
            let mut roles: Vec<(Role, Access)> = if other.reads_inputs { inputs().collect() } else { Vec::new() };
            roles.extend(other.reads_output.then_some((Role::Y, read)));
            roles.push((Role::Dy, read));
            if other.parameters > 0 {
                roles.extend([(Role::W, read), (Role::Dw, write)]);
            }
            roles
        }
        _ => return None,
    };
    if compute.pass == Pass::Forward {
        if layer.parameters > 0 {
            roles.push((Role::W, read));
        }
        if is_norm {
            roles.push((Role::Statistics, if trains { add } else { read }));
        }
        if trains && (is_norm || matches!(layer.kind, LayerKind::Dropout { .. })) {
            roles.push((Role::Saved, write));
        }
    } else if !trains {
        return None;
    }
    if compute.pass == Pass::Update {
        if workload.momentum {
            roles.push((Role::Momentum, add));
        }
        if workload.second_moment {
            roles.push((Role::SecondMoment, add));
        }
        if workload.has_master_weights(compute.layer) {
            roles.push((Role::Master, add));
        }
    }
    Some(roles)
}

/// Whether a pass of a layer can compute a ReLU over its output as well. Batch normalization's backward pass finds from its
/// inputs what the ReLU cut; a sum does not keep its inputs.
fn may_compute(workload: &Workload<'_>, pass: &LayerPass, relu: LayerId) -> bool {
    let of = workload.network.layer(relu);
    let in_place = workload.maps.written_by(relu) == workload.maps.written_by(pass.layer);
    let can = match workload.network.layer(pass.layer).kind {
        LayerKind::BatchNorm { .. } => matches!(pass.pass, Pass::Forward | Pass::BackwardData),
        LayerKind::Add => pass.pass == Pass::Forward,
        _ => false,
    };
    can && in_place && of.kind == LayerKind::Relu && of.inputs == [pass.layer]
}

/// Checks the operands of a pass.
pub(crate) fn operands(
    workload: &Workload<'_>,
    pass: &LayerPass,
    uses: &[Operand],
    tensors: &[NetworkTensor],
) -> Result<(), Fault> {
    if let Some(relu) = pass.relu.filter(|&relu| !may_compute(workload, pass, relu)) {
        return Err(Fault::WrongRelu(relu));
    }
    let needed = needed(workload, pass);
    let takes_gradients = pass.pass == Pass::BackwardData;
    for used in uses {
        let role = used.role;
        let is_known = match role {
            Role::Dx(_) => takes_gradients && used.access != Access::Read,
            _ => needed.iter().flatten().any(|needed| *needed == (role, used.access)),
        };
        if !is_known || tensor(workload, pass.layer, role) != Some(tensors[used.place]) {
            return Err(Fault::WrongRole(role));
        }
    }
    let missing = needed.iter().flatten().find(|(role, _)| !pass.roles.contains(role));
    missing.map_or(Ok(()), |(role, _)| Err(Fault::MissingRole(*role)))
}
