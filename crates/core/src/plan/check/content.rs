//! What blocks hold, and whether that is what a pass has to read: the network's own rules, said once more.

use crate::network::{LayerId, LayerKind, PoolingMethod};
use crate::plan::{Access, Block, BlockId, Compute, Pass, Role, StepId, Tensor, Workload};
use crate::{Bytes, Configuration};

use super::Violation;

/// What a block holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Nothing that was written.
    Nothing,
    /// What it held at the end of the last training step.
    Kept,
    /// Weights of the next training step.
    Updated,
    /// A map as this layer left it.
    Map(LayerId),
    /// The sum of the gradients that these layers gave of these inputs of theirs.
    Gradient(Vec<(LayerId, usize)>),
    /// What one of this layer's passes wrote beside maps.
    Of(LayerId),
}

/// Bytes of a tensor of this many samples; workspaces have any size.
pub(super) fn bytes(workload: &Workload<'_>, tensor: Tensor, samples: usize) -> Bytes {
    let whole = workload.bytes(tensor).0;
    let has_samples = match tensor {
        Tensor::FeatureMap(_) | Tensor::Gradient(_) | Tensor::Labels => true,
        Tensor::Saved(layer) => matches!(workload.network.layer(layer).kind, LayerKind::Dropout { .. }),
        _ => false,
    };
    Bytes(if has_samples { whole / workload.batch as u64 * samples as u64 } else { whole })
}

/// What a tensor is of that the network does not have.
pub(super) fn unknown(workload: &Workload<'_>, tensor: Tensor) -> Option<String> {
    let maps = workload.maps.iter().count();
    let layers = workload.network.layers().len();
    match tensor {
        Tensor::FeatureMap(map) | Tensor::Gradient(map) => {
            (map.index() >= maps).then(|| format!("map {}", map.index()))
        }
        Tensor::Labels => None,
        Tensor::Weights(layer)
        | Tensor::MasterWeights(layer)
        | Tensor::WeightGradient(layer)
        | Tensor::Momentum(layer)
        | Tensor::Statistics(layer)
        | Tensor::Saved(layer)
        | Tensor::Workspace(layer) => (layer.index() >= layers).then(|| format!("layer {}", layer.index())),
    }
}

/// The tensor that an operand of this role has to be.
fn tensor(workload: &Workload<'_>, layer: LayerId, role: Role) -> Option<Tensor> {
    let input = |place: usize| {
        let input = workload.network.layer(layer).inputs.get(place)?;
        Some(workload.maps.written_by(*input))
    };
    let own = workload.maps.written_by(layer);
    Some(match role {
        Role::X(place) => Tensor::FeatureMap(input(place)?),
        Role::Dx(place) => Tensor::Gradient(input(place)?),
        Role::Y => Tensor::FeatureMap(own),
        Role::Dy => Tensor::Gradient(own),
        Role::W => Tensor::Weights(layer),
        Role::Master => Tensor::MasterWeights(layer),
        Role::Dw => Tensor::WeightGradient(layer),
        Role::Momentum => Tensor::Momentum(layer),
        Role::Statistics => Tensor::Statistics(layer),
        Role::Saved => Tensor::Saved(layer),
        Role::Labels => Tensor::Labels,
        Role::Workspace => Tensor::Workspace(layer),
    })
}

/// The operands that a pass must have besides gradients of inputs, each with how it is accessed; none if the layer has no
/// such pass.
fn needed(workload: &Workload<'_>, compute: &Compute) -> Option<Vec<(Role, Access)>> {
    let layer = workload.network.layer(compute.layer);
    let (read, write, add) = (Access::Read, Access::Write, Access::Add);
    let inputs = || (0..layer.inputs.len()).map(|place| (Role::X(place), Access::Read));
    let is_norm = matches!(layer.kind, LayerKind::BatchNorm { .. });
    let trains = !workload.inference;
    let mut roles: Vec<(Role, Access)> = match (&layer.kind, compute.pass) {
        (LayerKind::Flatten, _) => return None,
        (LayerKind::Input { .. }, Pass::Forward) => vec![(Role::Y, write), (Role::Labels, write)],
        (_, Pass::Forward) => inputs().chain([(Role::Y, write)]).collect(),
        (_, Pass::Update) if layer.parameters > 0 => vec![(Role::W, add), (Role::Dw, read), (Role::Momentum, add)],
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
        _ => return None,
    };
    if compute.pass == Pass::Forward {
        if layer.parameters > 0 {
            roles.push((Role::W, read));
        }
        if is_norm {
            roles.push((Role::Statistics, if trains && !compute.again { add } else { read }));
        }
        if trains && (is_norm || matches!(layer.kind, LayerKind::Dropout { .. })) {
            roles.push((Role::Saved, if compute.again { read } else { write }));
        }
    } else if !trains {
        return None;
    }
    if compute.pass == Pass::Update && workload.has_master_weights(compute.layer) {
        roles.push((Role::Master, add));
    }
    Some(roles)
}

/// What is wrong with the operands and the configuration of a pass.
pub(super) fn roles<'a>(
    workload: &Workload<'_>,
    compute: &Compute,
    block: &dyn Fn(BlockId) -> &'a Block,
    step: StepId,
) -> Vec<Violation> {
    let Compute { layer, pass, .. } = *compute;
    let mut found = Vec::new();
    if compute.samples != (0..workload.batch) {
        found.push(Violation::PartOfBatch { step });
    }
    let needed = needed(workload, compute);
    let takes_gradients = pass == Pass::BackwardData;
    for operand in &compute.operands {
        let role = operand.role;
        let of = block(operand.block);
        let is_known = match role {
            Role::Workspace => operand.access == Access::Write,
            Role::Dx(_) => takes_gradients && operand.access != Access::Read,
            _ => needed.iter().flatten().any(|needed| *needed == (role, operand.access)),
        };
        if !is_known || tensor(workload, layer, role) != Some(of.tensor) {
            found.push(Violation::WrongRole { layer, pass, role, tensor: of.tensor, step });
        }
    }
    let has = |role: Role| compute.operands.iter().any(|operand| operand.role == role);
    for (role, _) in needed.iter().flatten().filter(|(role, _)| !has(*role)) {
        found.push(Violation::MissingRole { layer, pass, role: *role, step });
    }
    let scratch = compute.operands.iter().find(|operand| operand.role == Role::Workspace);
    let scratch = scratch.map_or(Bytes::ZERO, |operand| Bytes(block(operand.block).bytes));
    let convolves = matches!(workload.network.layer(layer).kind, LayerKind::Convolution { .. }) && pass != Pass::Update;
    let configured = match &compute.configuration {
        Some(configuration) => {
            let enough = Configuration::workspace(configuration) <= scratch;
            convolves && enough && configuration.batch() == workload.batch
        }
        None => !convolves && scratch == Bytes::ZERO,
    };
    if !configured {
        found.push(Violation::WrongConfiguration { layer, pass, step });
    }
    found
}

/// What has been computed so far, and what a step of training has to compute.
pub(super) struct Learning {
    /// By layer: whether the loss depends on it.
    reaches_loss: Vec<bool>,
    /// By layer and pass.
    done: Vec<[bool; 4]>,
}

impl Learning {
    pub(super) fn of(workload: &Workload<'_>) -> Learning {
        let layers = workload.network.layers();
        let mut reaches_loss = vec![false; layers.len()];
        for (id, layer) in workload.network.iter().rev() {
            reaches_loss[id.index()] |= layer.kind == LayerKind::SoftmaxLoss;
            if reaches_loss[id.index()] {
                layer.inputs.iter().for_each(|input| reaches_loss[input.index()] = true);
            }
        }
        Learning { reaches_loss, done: vec![[false; 4]; layers.len()] }
    }

    /// A pass runs: what is wrong with what it reads, and what it leaves.
    pub(super) fn compute(
        &mut self,
        workload: &Workload<'_>,
        compute: &Compute,
        contents: &mut [Content],
        step: StepId,
    ) -> Vec<Violation> {
        let Compute { layer, pass, again, .. } = *compute;
        let mut found = Vec::new();
        let done = &mut self.done[layer.index()][pass as usize];
        if *done != again {
            found.push(Violation::RunTwice { layer, pass, step });
        }
        *done = true;
        for operand in compute.operands.iter().filter(|operand| operand.access != Access::Write) {
            let content = &contents[operand.block.0];
            // An empty block has been refused already.
            if *content != Content::Nothing && !self.is_right(workload, compute, operand.role, content) {
                found.push(Violation::WrongContent { layer, pass, role: operand.role, step });
            }
        }
        for operand in compute.operands.iter().filter(|operand| operand.access != Access::Read) {
            let content = &mut contents[operand.block.0];
            match operand.role {
                Role::Y => *content = Content::Map(layer),
                Role::W => *content = Content::Updated,
                Role::Dw | Role::Saved | Role::Labels => *content = Content::Of(layer),
                Role::Dx(place) => match content {
                    // In place a layer changes what is there, and out of place `Add` says so.
                    Content::Gradient(from) if operand.access == Access::Add || is_in_place(workload, layer, place) => {
                        from.push((layer, place));
                    }
                    _ => *content = Content::Gradient(vec![(layer, place)]),
                },
                _ => {}
            }
        }
        found
    }

    /// Whether a pass may read this as its operand.
    fn is_right(&self, workload: &Workload<'_>, compute: &Compute, role: Role, content: &Content) -> bool {
        let layer = compute.layer;
        match (role, content) {
            (Role::X(place), Content::Map(writer)) => {
                let inputs = &workload.network.layer(layer).inputs;
                inputs.get(place).is_some_and(|input| unflattened(workload, *input) == *writer)
            }
            (Role::Y, Content::Map(writer)) => {
                // A dropout over a rectified unit keeps the sign, which is all that is read.
                let kind = |layer| &workload.network.layer(layer).kind;
                let kept = *kind(layer) == LayerKind::Relu && matches!(kind(*writer), LayerKind::Dropout { .. });
                *writer == layer || kept
            }
            (Role::Dy, Content::Gradient(from)) => {
                let mut expected = self.gradients(workload, layer);
                let mut from = from.clone();
                expected.sort_unstable();
                from.sort_unstable();
                from == expected
            }
            // A later contribution reads what is there to add to it.
            (Role::Dx(_), Content::Gradient(_)) => true,
            (Role::W, Content::Kept) => true,
            (Role::Momentum | Role::Statistics | Role::Master, _) => true,
            (Role::Saved | Role::Dw, Content::Of(writer)) => *writer == layer,
            (Role::Labels, Content::Of(writer)) => {
                matches!(workload.network.layer(*writer).kind, LayerKind::Input { .. })
            }
            _ => false,
        }
    }

    /// The gradients that must have been given before a layer reads that of its output: those of all readers of the map,
    /// and of the layers that worked over this one's output.
    fn gradients(&self, workload: &Workload<'_>, layer: LayerId) -> Vec<(LayerId, usize)> {
        let map = workload.maps.written_by(layer);
        let mut expected = Vec::new();
        for (id, of) in workload.network.iter().filter(|(id, _)| self.reaches_loss[id.index()]) {
            for (place, input) in of.inputs.iter().enumerate() {
                let reads = workload.maps.written_by(*input) == map;
                let outside = workload.maps.written_by(id) != map;
                let over = !outside && id > layer && !matches!(of.kind, LayerKind::Flatten | LayerKind::Add);
                if reads && (outside || over) {
                    expected.push((id, place));
                }
            }
        }
        expected
    }

    /// Whether this is read after the end of the step: the probabilities, and in inference whatever no layer reads.
    pub(super) fn is_result(&self, workload: &Workload<'_>, content: &Content) -> bool {
        let Content::Map(writer) = *content else { return false };
        let is_probabilities = workload.network.layer(writer).kind == LayerKind::SoftmaxLoss;
        let map = workload.maps.get(workload.maps.written_by(writer));
        let is_last = map.layers.last().is_some_and(|last| unflattened(workload, *last) == writer);
        is_last && (is_probabilities || workload.inference && map.readers.is_empty())
    }

    /// Passes that did not run.
    pub(super) fn missing(&self, workload: &Workload<'_>) -> Vec<Violation> {
        let mut missing = Vec::new();
        for (id, layer) in workload.network.iter() {
            let done = |pass| self.done[id.index()][pass as usize];
            if layer.kind != LayerKind::Flatten && !done(Pass::Forward) {
                missing.push(Violation::MissingPass { layer: id, pass: Pass::Forward });
            }
            let learns = layer.parameters > 0 && self.reaches_loss[id.index()] && !workload.inference;
            if learns && !done(Pass::Update) {
                missing.push(Violation::MissingPass { layer: id, pass: Pass::Update });
            }
        }
        missing
    }
}

/// Whether the gradient of this input is that of the output, changed in place.
fn is_in_place(workload: &Workload<'_>, layer: LayerId, place: usize) -> bool {
    let inputs = &workload.network.layer(layer).inputs;
    let of = |layer| workload.maps.written_by(layer);
    workload.network.layer(layer).kind != LayerKind::SoftmaxLoss
        && inputs.get(place).is_some_and(|input| of(*input) == of(layer))
}

/// The layer that wrote what a layer gives: flattening writes nothing.
fn unflattened(workload: &Workload<'_>, mut layer: LayerId) -> LayerId {
    while let (LayerKind::Flatten, Some(input)) =
        (&workload.network.layer(layer).kind, workload.network.layer(layer).inputs.first())
    {
        layer = *input;
    }
    layer
}
