//! Checks a step against its network: restates the network's rules independently of the code that lowered it.

use std::fmt;

use crate::Error;
use crate::network::{LayerId, LayerKind, PoolingMethod};
use crate::plan::step::{Access, OperationId, Residence};
use crate::plan::{LayerPass, Lowered, Mode, NetworkTensor, Pass, Role, Workload};

/// A difference between a step and its network.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fault {
    /// A pass has an operand it should not have, or accesses it the wrong way.
    WrongRole(Role),
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

/// Rejects a step that differs from its network in its tensors, its passes, their order, or their contents.
///
/// - Cost: O(layers² + operands).
///
/// # Errors
/// [`Error::BadStep`] with the first pass that is wrong.
pub(in crate::plan) fn verify(workload: &Workload<'_>, lowered: &Lowered) -> Result<(), Error> {
    let Lowered { step, tensors, passes, .. } = lowered;
    let bad = |place: usize, fault: Fault| Error::BadStep {
        step: step.name.clone(),
        operation: step.operations.get(place).map_or_else(String::new, |operation| {
            format!("{} {}", step.group_name(OperationId(place)), operation.name)
        }),
        what: fault.to_string(),
    };
    for (own, tensor) in step.tensors.iter().zip(tensors) {
        let stays = own.residence == Residence::Resident;
        let is_right = own.bytes == workload.bytes(*tensor) && stays == stays_from_step_to_step(*tensor);
        if !is_right || matches!(tensor, NetworkTensor::Workspace(_)) {
            return Err(bad(step.operations.len(), Fault::WrongTensor(*tensor)));
        }
    }
    let start = |tensor: &NetworkTensor| match tensor {
        NetworkTensor::WeightGradient(_) => Content::Nothing,
        tensor if stays_from_step_to_step(*tensor) => Content::Kept,
        _ => Content::Nothing,
    };
    let mut contents: Vec<Content> = tensors.iter().map(start).collect();
    let mut learning = Learning::of(workload);
    for (place, of) in passes.iter().enumerate() {
        let uses = step.operations[place].uses.iter().zip(&of.roles);
        let uses: Vec<Operand> =
            uses.map(|(used, role)| Operand { role: *role, place: used.tensor.0, access: used.access }).collect();
        operands(workload, of, &uses, tensors).map_err(|fault| bad(place, fault))?;
        learning.compute(workload, of, &uses, &mut contents).map_err(|fault| bad(place, fault))?;
    }
    for (own, content) in step.tensors.iter().zip(&contents) {
        if own.is_result != learning.is_result(workload, content) {
            return Err(bad(step.operations.len(), Fault::WrongResult));
        }
    }
    learning.missing(workload).map_or(Ok(()), |fault| Err(bad(step.operations.len(), fault)))
}

/// A tensor as used by a pass.
#[derive(Clone, Copy, Debug)]
struct Operand {
    role: Role,
    /// Its index among the tensors.
    place: usize,
    access: Access,
}

/// Whether a tensor keeps its content between steps.
fn stays_from_step_to_step(tensor: NetworkTensor) -> bool {
    matches!(
        tensor,
        NetworkTensor::Weights(_)
            | NetworkTensor::MasterWeights(_)
            | NetworkTensor::WeightGradient(_)
            | NetworkTensor::Momentum(_)
            | NetworkTensor::SecondMoment(_)
            | NetworkTensor::Statistics(_)
    )
}

/// The content of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Content {
    /// Nothing was written to it.
    Nothing,
    /// Its content from the end of the previous training step.
    Kept,
    /// Weights for the next training step.
    Updated,
    /// A map as this layer wrote it.
    Map(LayerId),
    /// The sum of the gradients from these layers, each for the given input.
    Gradient(Vec<(LayerId, usize)>),
    /// Data other than maps from one of this layer's passes.
    Of(LayerId),
}

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
        (_, Pass::Update) if layer.parameters > 0 => vec![(Role::W, add), (Role::Dw, read)],
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

/// Checks the operands of a pass.
fn operands(
    workload: &Workload<'_>,
    pass: &LayerPass,
    uses: &[Operand],
    tensors: &[NetworkTensor],
) -> Result<(), Fault> {
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

/// What has been computed so far, and what a training step must compute.
struct Learning {
    /// For each layer: whether the loss depends on it.
    reaches_loss: Vec<bool>,
    /// For each layer and pass: whether it has run.
    done: Vec<[bool; 4]>,
}

impl Learning {
    fn of(workload: &Workload<'_>) -> Learning {
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

    /// Runs a pass: checks the contents it reads and updates those it writes.
    fn compute(
        &mut self,
        workload: &Workload<'_>,
        of: &LayerPass,
        uses: &[Operand],
        contents: &mut [Content],
    ) -> Result<(), Fault> {
        let done = &mut self.done[of.layer.index()][of.pass as usize];
        if std::mem::replace(done, true) {
            return Err(Fault::RunTwice);
        }
        for (place, used) in uses.iter().enumerate().filter(|(_, used)| used.access != Access::Write) {
            // For a sum of a map with itself, the second gradient is added to the first.
            let mut before = uses[..place].iter();
            let just_written = before.any(|other| other.place == used.place && other.access == Access::Write);
            if !just_written && !self.is_right(workload, of.layer, used.role, &contents[used.place]) {
                return Err(Fault::WrongContent(used.role));
            }
        }
        for used in uses.iter().filter(|used| used.access != Access::Read) {
            let content = &mut contents[used.place];
            match used.role {
                Role::Y => *content = Content::Map(of.layer),
                Role::W => *content = Content::Updated,
                Role::Dw | Role::Saved | Role::Labels => *content = Content::Of(of.layer),
                Role::Dx(place) => match content {
                    // An in-place layer changes the existing content; out of place, the access is `Add`.
                    Content::Gradient(from) if used.access == Access::Add || is_in_place(workload, of.layer, place) => {
                        from.push((of.layer, place));
                    }
                    _ => *content = Content::Gradient(vec![(of.layer, place)]),
                },
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether a pass may read this content as its operand.
    fn is_right(&self, workload: &Workload<'_>, layer: LayerId, role: Role, content: &Content) -> bool {
        match (role, content) {
            (Role::X(place), Content::Map(writer)) => {
                let inputs = &workload.network.layer(layer).inputs;
                inputs.get(place).is_some_and(|input| unflattened(workload, *input) == *writer)
            }
            (Role::Y, Content::Map(writer)) => {
                // Dropout in place over a ReLU keeps the sign, and nothing but the sign is read.
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
            // A later contribution reads the partial sum that it adds to.
            (Role::Dx(_), Content::Gradient(_)) => true,
            (Role::W, Content::Kept) => true,
            (Role::Momentum | Role::SecondMoment | Role::Statistics | Role::Master, _) => true,
            (Role::Saved | Role::Dw, Content::Of(writer)) => *writer == layer,
            (Role::Labels, Content::Of(writer)) => {
                matches!(workload.network.layer(*writer).kind, LayerKind::Input { .. })
            }
            _ => false,
        }
    }

    /// The gradients that must be complete before a layer reads its output's gradient: those of all readers of the map,
    /// and of layers that work in place on it.
    fn gradients(&self, workload: &Workload<'_>, layer: LayerId) -> Vec<(LayerId, usize)> {
        let map = workload.maps.written_by(layer);
        let mut expected = Vec::new();
        for (id, of) in workload.network.iter().filter(|(id, _)| self.reaches_loss[id.index()]) {
            for (place, input) in of.inputs.iter().enumerate() {
                let reads = workload.maps.written_by(*input) == map;
                let outside = workload.maps.written_by(id) != map;
                let over = !outside && id > layer && !(is_view(&of.kind) || of.kind == LayerKind::Add);
                if reads && (outside || over) {
                    expected.push((id, place));
                }
            }
        }
        expected
    }

    /// Whether this is a result of the step: the probabilities, and in inference any map that no layer reads.
    fn is_result(&self, workload: &Workload<'_>, content: &Content) -> bool {
        let Content::Map(writer) = *content else { return false };
        let is_probabilities = workload.network.layer(writer).kind == LayerKind::SoftmaxLoss;
        let map = workload.maps.get(workload.maps.written_by(writer));
        let is_last = map.layers.last().is_some_and(|last| unflattened(workload, *last) == writer);
        is_last && (is_probabilities || workload.mode == Mode::Inference && map.readers.is_empty())
    }

    /// The first pass that has not run.
    fn missing(&self, workload: &Workload<'_>) -> Option<Fault> {
        workload.network.iter().find_map(|(id, layer)| {
            let done = |pass| self.done[id.index()][pass as usize];
            let learns = layer.parameters > 0 && self.reaches_loss[id.index()] && workload.mode == Mode::Training;
            if !is_view(&layer.kind) && !done(Pass::Forward) {
                Some(Fault::MissingPass(Pass::Forward))
            } else {
                (learns && !done(Pass::Update)).then_some(Fault::MissingPass(Pass::Update))
            }
        })
    }
}

/// Whether this input's gradient is the output's gradient, modified in place.
fn is_in_place(workload: &Workload<'_>, layer: LayerId, place: usize) -> bool {
    let inputs = &workload.network.layer(layer).inputs;
    let map = |layer| workload.maps.written_by(layer);
    workload.network.layer(layer).kind != LayerKind::SoftmaxLoss
        && inputs.get(place).is_some_and(|input| map(*input) == map(layer))
}

/// Whether a layer only gives its input another shape.
fn is_view(kind: &LayerKind) -> bool {
    matches!(kind, LayerKind::Flatten | LayerKind::Reshape { .. })
}

/// The layer that wrote a layer's output: a view writes nothing.
fn unflattened(workload: &Workload<'_>, mut layer: LayerId) -> LayerId {
    while let (true, Some(input)) =
        (is_view(&workload.network.layer(layer).kind), workload.network.layer(layer).inputs.first())
    {
        layer = *input;
    }
    layer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Types;
    use crate::network::{Builder, Filters, Network, Shape};
    use crate::plan::step::TensorId;

    fn network() -> Network {
        let mut net = Builder::new("chain");
        net.input(Shape::image(2, 8, 8)).conv("a", Filters::new(4, 3)).relu();
        net.conv("b", Filters::new(4, 1)).batch_norm().relu().flatten().fully_connected("fc", 3).softmax_loss();
        net.finish().unwrap()
    }

    /// The fault found after `spoil` has changed the network's step; `at` finds passes by layer.
    fn fault(spoil: impl FnOnce(&mut Lowered, &dyn Fn(&Lowered, &str, Pass) -> usize)) -> String {
        let network = network();
        let workload = Workload::new(&network, 4, Types::F32, Mode::Training).unwrap();
        fault_of(&workload, workload.lower().unwrap(), spoil)
    }

    fn fault_of(
        workload: &Workload<'_>,
        mut lowered: Lowered,
        spoil: impl FnOnce(&mut Lowered, &dyn Fn(&Lowered, &str, Pass) -> usize),
    ) -> String {
        let network = workload.network;
        let at = |lowered: &Lowered, layer: &str, pass: Pass| {
            let is_it = |of: &LayerPass| network.layer(of.layer).name == layer && of.pass == pass;
            lowered.passes.iter().position(is_it).unwrap()
        };
        spoil(&mut lowered, &at);
        match verify(workload, &lowered) {
            Err(Error::BadStep { what, .. }) => what,
            other => panic!("{other:?}"),
        }
    }

    fn remove(lowered: &mut Lowered, at: usize) -> (crate::plan::step::Operation, LayerPass) {
        (lowered.step.operations.remove(at), lowered.passes.remove(at))
    }

    fn insert(lowered: &mut Lowered, at: usize, (operation, of): (crate::plan::step::Operation, LayerPass)) {
        lowered.step.operations.insert(at, operation);
        lowered.passes.insert(at, of);
    }

    #[test]
    fn extra_and_missing_operands_are_rejected() {
        let missing = fault(|lowered, at| {
            let place = at(lowered, "b", Pass::BackwardFilter);
            lowered.step.operations[place].uses.remove(1);
            lowered.passes[place].roles.remove(1);
        });
        assert_eq!(missing, "MissingRole(Dy)");
        let access = fault(|lowered, at| {
            let place = at(lowered, "b", Pass::Forward);
            lowered.step.operations[place].uses[0].access = Access::Write;
        });
        assert_eq!(access, "WrongRole(X(0))");
        let other = fault(|lowered, at| {
            let place = at(lowered, "b", Pass::BackwardFilter);
            lowered.step.operations[place].uses[0].tensor = TensorId(0);
        });
        assert_eq!(other, "WrongRole(X(0))");
    }

    #[test]
    fn momentum_must_be_there_where_the_solver_has_it_and_only_there() {
        let network = network();
        let with = Workload::new(&network, 4, Types::F32, Mode::Training).unwrap();
        let without = with.clone().with_momentum(false);
        assert_eq!(fault_of(&with, without.lower().unwrap(), |_, _| {}), "MissingRole(Momentum)");
        assert_eq!(fault_of(&without, with.lower().unwrap(), |_, _| {}), "WrongRole(Momentum)");
        let adamw = with.clone().with_adamw(true);
        assert_eq!(fault_of(&adamw, with.lower().unwrap(), |_, _| {}), "MissingRole(SecondMoment)");
        assert_eq!(fault_of(&with, adamw.lower().unwrap(), |_, _| {}), "WrongRole(SecondMoment)");
    }

    #[test]
    fn missing_repeated_and_early_passes_are_rejected() {
        let skipped = fault(|lowered, at| {
            let place = at(lowered, "a.relu", Pass::Forward);
            remove(lowered, place);
        });
        assert_eq!(skipped, "WrongContent(X(0))");
        let incomplete = fault(|lowered, at| {
            let place = at(lowered, "a.relu", Pass::BackwardData);
            remove(lowered, place);
        });
        assert_eq!(incomplete, "WrongContent(Dy)");
        let missing = fault(|lowered, at| {
            let place = at(lowered, "b", Pass::Update);
            remove(lowered, place);
        });
        assert_eq!(missing, "MissingPass(Update)");
        let hasty = fault(|lowered, at| {
            let update = at(lowered, "b", Pass::Update);
            let taken = remove(lowered, update);
            let data = at(lowered, "b", Pass::BackwardData);
            insert(lowered, data, taken);
        });
        assert_eq!(hasty, "WrongContent(W)");
        let twice = fault(|lowered, at| {
            let place = at(lowered, "fc", Pass::Forward);
            let taken = remove(lowered, place);
            insert(lowered, place, taken.clone());
            insert(lowered, place, taken);
        });
        assert_eq!(twice, "RunTwice");
    }

    #[test]
    fn tensors_and_results_must_match_the_network() {
        assert!(fault(|lowered, _| lowered.step.tensors[1].bytes.0 += 4).starts_with("WrongTensor(FeatureMap"));
        let momentum = fault(|lowered, _| {
            let is_it = |tensor: &NetworkTensor| matches!(tensor, NetworkTensor::Momentum(_));
            let place = lowered.tensors.iter().position(is_it).unwrap();
            lowered.step.tensors[place].residence = Residence::Temporary;
        });
        assert!(momentum.starts_with("WrongTensor(Momentum"), "{momentum}");
        assert_eq!(fault(|lowered, _| lowered.step.tensors[1].is_result = true), "WrongResult");
    }
}
