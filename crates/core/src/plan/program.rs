//! What a training step computes, in order, whatever the policy: every pass of every layer with the tensors it touches.
//!
//! ```text
//! forward    input | conv1: X W -> Y | relu: Y | .. | loss
//! backward   loss: Y labels -> dX | .. | relu: Y dY | conv1: X dY -> dW, (dY W -> dX), update
//! ```
//!
//! A policy only decides where tensors are in between; it changes nothing here.

use std::collections::HashMap;

use super::{Access, Kernels, Pass, Role, Tensor, Workload};
use crate::network::{LayerId, LayerKind, MapId};
use crate::{Error, Problem};

/// A tensor as a pass uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) role: Role,
    pub(super) tensor: Tensor,
    pub(super) access: Access,
}

/// One pass of one layer, without its workspace.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Operation {
    pub(super) layer: LayerId,
    pub(super) pass: Pass,
    pub(super) uses: Vec<Use>,
}

impl Operation {
    /// The problem of a convolution's pass; none for anything else.
    ///
    /// # Errors
    /// As [`Kernels::problem`].
    pub(super) fn problem(&self, workload: &Workload<'_>) -> Result<Option<Problem>, Error> {
        let operation = match (&workload.network.layer(self.layer).kind, self.pass) {
            (LayerKind::Convolution { .. }, Pass::Forward) => crate::Operation::Forward,
            (LayerKind::Convolution { .. }, Pass::BackwardData) => crate::Operation::BackwardData,
            (LayerKind::Convolution { .. }, Pass::BackwardFilter) => crate::Operation::BackwardFilter,
            _ => return Ok(None),
        };
        Kernels::problem(workload, self.layer, operation).map(Some)
    }
}

/// When a tensor is used, as places in [`Program::operations`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Uses {
    pub(super) first: usize,
    pub(super) last_forward: Option<usize>,
    pub(super) first_backward: Option<usize>,
    /// The last place of all; the end of the step for what is read after it.
    pub(super) last: usize,
}

/// Every pass of a step in the order of computation.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) operations: Vec<Operation>,
    /// How many of them are forward passes.
    pub(super) forward: usize,
    uses: HashMap<Tensor, Uses>,
}

/// Whether a tensor stays in the arena from step to step.
pub(super) fn is_resident(tensor: Tensor) -> bool {
    matches!(
        tensor,
        Tensor::Weights(_)
            | Tensor::MasterWeights(_)
            | Tensor::WeightGradient(_)
            | Tensor::Momentum(_)
            | Tensor::Statistics(_)
    )
}

impl Program {
    /// The passes of a workload.
    ///
    /// Backward through the network, a layer's filters come before its data, and its update last: the data needs the
    /// weights as they were. What the loss does not depend on has no backward passes.
    pub(super) fn of(workload: &Workload<'_>) -> Program {
        let mut operations: Vec<Operation> =
            workload.network.iter().filter_map(|(layer, _)| forward(workload, layer)).collect();
        let forward = operations.len();
        if !workload.inference {
            let mut reached = vec![false; workload.maps.iter().count()];
            for (layer, _) in workload.network.iter().rev() {
                operations.extend(backward(workload, layer, &mut reached));
            }
        }
        let uses = uses(workload, &operations, forward);
        Program { operations, forward, uses }
    }

    /// When a tensor is used; none for one that no pass touches.
    pub(super) fn uses(&self, tensor: Tensor) -> Option<Uses> {
        self.uses.get(&tensor).copied()
    }

    /// The places of the passes of one layer that follow one another, at the first of which `at` is.
    pub(super) fn group(&self, at: usize) -> std::ops::Range<usize> {
        let layer = self.operations[at].layer;
        let same = self.operations[at..].iter().take_while(|operation| operation.layer == layer).count();
        at..at + same
    }
}

fn uses(workload: &Workload<'_>, operations: &[Operation], forward: usize) -> HashMap<Tensor, Uses> {
    let mut uses: HashMap<Tensor, Uses> = HashMap::new();
    for (at, operation) in operations.iter().enumerate() {
        for used in &operation.uses {
            let first = Uses { first: at, last_forward: None, first_backward: None, last: at };
            let known = uses.entry(used.tensor).or_insert(first);
            known.last = at;
            if at < forward {
                known.last_forward = Some(at);
            } else {
                known.first_backward.get_or_insert(at);
            }
        }
    }
    // What no layer reads is what the step is for: the probabilities, or the output of a network without a loss.
    for (map, of) in workload.maps.iter().filter(|(_, of)| of.readers.is_empty()) {
        let probabilities = of.layers.iter().any(|&layer| workload.network.layer(layer).kind == LayerKind::SoftmaxLoss);
        if let Some(uses) = uses.get_mut(&Tensor::FeatureMap(map)).filter(|_| probabilities || workload.inference) {
            uses.last = operations.len().saturating_sub(1);
        }
    }
    uses
}

/// Collects the tensors of a pass.
struct Collector(Vec<Use>);

impl Collector {
    fn take(&mut self, role: Role, tensor: Tensor, access: Access) {
        self.0.push(Use { role, tensor, access });
    }
}

fn maps_of_inputs<'a>(workload: &'a Workload<'_>, layer: LayerId) -> impl Iterator<Item = (usize, MapId)> + 'a {
    workload.network.layer(layer).inputs.iter().map(|&input| workload.maps.written_by(input)).enumerate()
}

fn forward(workload: &Workload<'_>, layer: LayerId) -> Option<Operation> {
    let of = workload.network.layer(layer);
    let mut uses = Collector(Vec::new());
    for (place, map) in maps_of_inputs(workload, layer) {
        uses.take(Role::X(place), Tensor::FeatureMap(map), Access::Read);
    }
    uses.take(Role::Y, Tensor::FeatureMap(workload.maps.written_by(layer)), Access::Write);
    if of.parameters > 0 {
        uses.take(Role::W, Tensor::Weights(layer), Access::Read);
    }
    match &of.kind {
        LayerKind::Flatten => return None,
        LayerKind::Input { .. } => uses.take(Role::Labels, Tensor::Labels, Access::Write),
        LayerKind::BatchNorm { .. } => {
            let learned = if workload.inference { Access::Read } else { Access::Add };
            uses.take(Role::Statistics, Tensor::Statistics(layer), learned);
        }
        _ => {}
    }
    if of.kind.backward_reads().saved && !workload.inference {
        uses.take(Role::Saved, Tensor::Saved(layer), Access::Write);
    }
    Some(Operation { layer, pass: Pass::Forward, uses: uses.0 })
}

/// The backward passes of a layer; `reached` tells of each map whether its gradient has been written.
fn backward(workload: &Workload<'_>, layer: LayerId, reached: &mut [bool]) -> Vec<Operation> {
    let of = workload.network.layer(layer);
    let own = workload.maps.written_by(layer);
    let is_loss = of.kind == LayerKind::SoftmaxLoss;
    if matches!(of.kind, LayerKind::Input { .. } | LayerKind::Flatten) || !(is_loss || reached[own.index()]) {
        return Vec::new();
    }
    let has_filters = matches!(of.kind, LayerKind::Convolution { .. } | LayerKind::FullyConnected { .. });
    let mut passes = Vec::new();
    let mut pass = |pass, uses: Collector| passes.push(Operation { layer, pass, uses: uses.0 });

    let dy = |uses: &mut Collector| {
        if !is_loss {
            uses.take(Role::Dy, Tensor::Gradient(own), Access::Read);
        }
    };
    if has_filters {
        let mut uses = Collector(Vec::new());
        for (place, map) in maps_of_inputs(workload, layer) {
            uses.take(Role::X(place), Tensor::FeatureMap(map), Access::Read);
        }
        dy(&mut uses);
        uses.take(Role::Dw, Tensor::WeightGradient(layer), Access::Write);
        pass(Pass::BackwardFilter, uses);
    }

    let mut gradients = Collector(Vec::new());
    for (place, map) in maps_of_inputs(workload, layer) {
        let in_place = map == own;
        // The sum's gradient is that of the input whose map it took.
        if !workload.maps.get(map).gradient || (in_place && of.kind == LayerKind::Add) {
            continue;
        }
        let first = in_place || !reached[map.index()];
        let access = if first { Access::Write } else { Access::Add };
        gradients.take(Role::Dx(place), Tensor::Gradient(map), access);
        reached[map.index()] = true;
    }
    let is_norm = matches!(of.kind, LayerKind::BatchNorm { .. });
    if !gradients.0.is_empty() || is_norm {
        let reads = of.kind.backward_reads();
        let mut uses = Collector(Vec::new());
        if reads.inputs && !has_filters {
            for (place, map) in maps_of_inputs(workload, layer) {
                uses.take(Role::X(place), Tensor::FeatureMap(map), Access::Read);
            }
        }
        if reads.output {
            uses.take(Role::Y, Tensor::FeatureMap(own), Access::Read);
        }
        if reads.saved {
            uses.take(Role::Saved, Tensor::Saved(layer), Access::Read);
        }
        if is_loss {
            uses.take(Role::Labels, Tensor::Labels, Access::Read);
        }
        dy(&mut uses);
        if of.parameters > 0 {
            uses.take(Role::W, Tensor::Weights(layer), Access::Read);
        }
        if is_norm {
            uses.take(Role::Dw, Tensor::WeightGradient(layer), Access::Write);
        }
        uses.0.extend(gradients.0);
        pass(Pass::BackwardData, uses);
    }

    if of.parameters > 0 {
        let mut uses = Collector(Vec::new());
        uses.take(Role::W, Tensor::Weights(layer), Access::Add);
        uses.take(Role::Dw, Tensor::WeightGradient(layer), Access::Read);
        uses.take(Role::Momentum, Tensor::Momentum(layer), Access::Add);
        if workload.has_master_weights(layer) {
            uses.take(Role::Master, Tensor::MasterWeights(layer), Access::Add);
        }
        pass(Pass::Update, uses);
    }
    passes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Types;
    use crate::network::{Builder, Filters, Network, Shape};

    /// Layer, pass and roles of every operation.
    fn text(network: &Network, inference: bool) -> Vec<String> {
        let workload = Workload::new(network, 2, Types::F32, inference).unwrap();
        let operation = |operation: &Operation| {
            let access = |access| match access {
                Access::Read => "",
                Access::Write => "=",
                Access::Add => "+",
            };
            let uses: Vec<String> =
                operation.uses.iter().map(|used| format!("{:?}{}", used.role, access(used.access))).collect();
            format!("{} {:?}: {}", network.layer(operation.layer).name, operation.pass, uses.join(" "))
        };
        Program::of(&workload).operations.iter().map(operation).collect()
    }

    #[test]
    fn a_fork_adds_up_its_gradients() {
        let mut net = Builder::new("fork");
        let fork = net.input(Shape::image(2, 4, 4)).conv("a", Filters::new(2, 1)).here();
        let left = net.conv("b", Filters::new(2, 1).no_bias()).batch_norm().here();
        net.add("sum", &[left, fork]).relu().flatten().fully_connected("fc", 3).softmax_loss();
        let network = net.finish().unwrap();
        let expected = [
            "input Forward: Y= Labels=",
            "a Forward: X(0) Y= W",
            "b Forward: X(0) Y= W",
            "b.bn Forward: X(0) Y= W Statistics+ Saved=",
            "sum Forward: X(0) X(1) Y=",
            "sum.relu Forward: X(0) Y=",
            "fc Forward: X(0) Y= W",
            "loss Forward: X(0) Y=",
            "loss BackwardData: Y Labels Dx(0)=",
            "fc BackwardFilter: X(0) Dy Dw=",
            "fc BackwardData: Dy W Dx(0)=",
            "fc Update: W+ Dw Momentum+",
            "sum.relu BackwardData: Y Dy Dx(0)=",
            "sum BackwardData: Dy Dx(1)=",
            "b.bn BackwardData: X(0) Saved Dy W Dw= Dx(0)=",
            "b.bn Update: W+ Dw Momentum+",
            "b BackwardFilter: X(0) Dy Dw=",
            "b BackwardData: Dy W Dx(0)+",
            "b Update: W+ Dw Momentum+",
            "a BackwardFilter: X(0) Dy Dw=",
            "a Update: W+ Dw Momentum+",
        ];
        assert_eq!(text(&network, false), expected);
        assert_eq!(text(&network, true).len(), 8);
        assert_eq!(text(&network, true)[3], "b.bn Forward: X(0) Y= W Statistics");
    }

    #[test]
    fn what_the_loss_does_not_depend_on_learns_nothing() {
        let mut net = Builder::new("dangling");
        let fork = net.input(Shape::flat(4)).fully_connected("a", 4).here();
        net.fully_connected("unused", 2);
        net.at(fork).fully_connected("b", 2).softmax_loss();
        let operations = text(&net.finish().unwrap(), false);
        assert!(
            operations.iter().all(|line| !line.starts_with("unused") || line.contains("Forward")),
            "{operations:?}"
        );
    }

    #[test]
    fn averages_keep_no_maps() {
        let network = Network::open("cifar10-quick").unwrap();
        let operations = text(&network, false);
        assert!(operations.contains(&"pool2 BackwardData: Dy Dx(0)=".to_owned()), "{operations:?}");
    }
}
