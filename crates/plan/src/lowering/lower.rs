//! Lowers the layers of a network to a step: every pass of every layer in order, with the tensors it accesses and their
//! roles.
//!
//! ```text
//! forward    input | conv1: X W -> Y | relu: Y | .. | loss
//! backward   loss: Y labels -> dX | .. | relu: Y dY | conv1: X dY -> dW, (dY W -> dX), update
//! ```
//!
//! The passes of a batch normalization also compute a ReLU in place over it, so that ReLU has no passes. A ReLU in place over a sum has no forward
//! pass.

use std::collections::HashMap;

use tightfit_network::{Behavior, LayerId, LayerKind, MapId, ParameterPass, Part, Placement, Saved, WithRelu, Work};
use tightfit_units::{Bytes, Error, Nanos};

use crate::lowering::terms::{LayerPass, Lowered};
use crate::lowering::verify::verify;
use crate::step::{
    Access, Again, Cost, Front, Group, GroupId, Mode, Operation, Rerun, Residence, Resource, Stage, Step, Tag, Tensor,
    TensorId, Use,
};
use crate::{NetworkTensor, Pass, Role, Workload};

impl Workload<'_> {
    /// Lowers this workload to a step without costs.
    ///
    /// Going backward, each layer runs backward-filter, then backward-data, then its update: backward-data needs the
    /// old weights. Layers that the loss does not depend on have no backward passes.
    ///
    /// # Errors
    /// [`Error::BadProblem`] if the mini-batch is too large; [`Error::BadStep`] if the step does not match the network,
    /// which would be a bug in this function.
    pub fn lower(&self) -> Result<Lowered, Error> {
        let mut passes: Vec<Uses> = self.network.iter().filter_map(|(layer, _)| forward(self, layer)).collect();
        if self.mode == Mode::Training {
            let mut reached = vec![false; self.maps.iter().count()];
            for (layer, _) in self.network.iter().rev() {
                passes.extend(backward(self, layer, &mut reached));
            }
        }
        let mut tensors: Vec<NetworkTensor> = self.maps.iter().map(|(map, _)| NetworkTensor::FeatureMap(map)).collect();
        let mut ids: HashMap<NetworkTensor, TensorId> =
            tensors.iter().enumerate().map(|(place, tensor)| (*tensor, TensorId(place))).collect();
        let mut operations = Vec::with_capacity(passes.len());
        for Uses { layer, pass, uses, .. } in &passes {
            let mut used = Vec::with_capacity(uses.len());
            for (role, tensor, access) in uses {
                let id = *ids.entry(*tensor).or_insert_with(|| {
                    tensors.push(*tensor);
                    TensorId(tensors.len() - 1)
                });
                let rerun = match role {
                    Role::Statistics | Role::Saved => Rerun::ReadOnly,
                    _ => Rerun::Same,
                };
                used.push(Use { tensor: id, access: *access, rerun });
            }
            operations.push(self.operation(*layer, *pass, used)?);
        }
        let step = Step {
            name: self.network.name().to_owned(),
            batch: self.batch,
            types: self.types,
            mode: self.mode,
            tensors: tensors.iter().map(|tensor| self.tensor(*tensor)).collect(),
            operations,
            groups: self.network.iter().map(|(layer, _)| self.group(layer)).collect(),
        };
        let role = |(role, ..): &(Role, NetworkTensor, Access)| *role;
        let passes = passes.into_iter().map(|Uses { layer, pass, relu, uses }| LayerPass {
            layer,
            pass,
            roles: uses.iter().map(role).collect(),
            relu,
        });
        let layers = self.network.iter().map(|(layer, _)| layer).collect();
        let lowered = Lowered { step, tensors, passes: passes.collect(), layers };
        verify(self, &lowered)?;
        Ok(lowered)
    }

    fn operation(&self, layer: LayerId, pass: Pass, uses: Vec<Use>) -> Result<Operation, Error> {
        let node = self.network.layer(layer);
        let (kind, behavior) = (&node.kind, node.kind.behavior());
        let problem = self.problem_of(layer, pass)?;
        // Statistics over the mini-batch, and the sums in its gradient.
        let sums =
            behavior.statistics && self.mode == Mode::Training && matches!(pass, Pass::Forward | Pass::BackwardData);
        Ok(Operation {
            group: GroupId(layer.index()),
            name: pass.name().to_owned(),
            stage: match pass {
                Pass::Forward => Stage::Forward,
                Pass::BackwardData | Pass::BackwardFilter => Stage::Backward,
                Pass::Update => Stage::Update,
            },
            tag: match kind {
                LayerKind::Convolution { .. } => Tag::Convolution,
                // Vectors without spatial extents belong to the classifier.
                _ if behavior.part == Part::Hidden && !node.shape.extents().is_empty() => Tag::Feature,
                _ => Tag::Other,
            },
            resource: match behavior.work {
                Work::Upload => Resource::Link,
                Work::Convolution | Work::Product | Work::Memory => Resource::Device,
            },
            uses,
            again: match (pass, behavior.part) {
                (Pass::Forward, Part::Hidden) => Again::Allowed,
                _ => Again::Never,
            },
            independent_samples: behavior.samples_are_independent,
            sums: sums.then_some(Nanos::ZERO),
            workspaces: Vec::new(),
            cost: problem.map_or(Cost::Fixed(Nanos::ZERO), |problem| Cost::Choice(Box::new(Front::empty(problem)))),
        })
    }

    fn tensor(&self, tensor: NetworkTensor) -> Tensor {
        let (residence, is_result, groups) = match tensor {
            NetworkTensor::FeatureMap(map) => {
                let map = self.maps.get(map);
                let is_loss = |layer: &LayerId| self.behavior(*layer).part == Part::Loss;
                // A map that no layer reads is the step's result: the probabilities, or the output of a network without
                // a loss.
                let is_result =
                    map.readers.is_empty() && (self.mode == Mode::Inference || map.layers.iter().any(is_loss));
                (Residence::Movable, is_result, map.layers.iter().map(|layer| GroupId(layer.index())).collect())
            }
            tensor if tensor.is_resident() => (Residence::Resident, false, Vec::new()),
            _ => (Residence::Temporary, false, Vec::new()),
        };
        let (name, bytes) = (self.describe(tensor), self.bytes(tensor));
        let sample_bytes = self.bytes_per_sample(tensor);
        Tensor {
            name,
            bytes,
            kind: tensor.kind(),
            residence,
            is_result,
            groups,
            alias: None,
            in_place_of: None,
            sample_bytes,
        }
    }

    fn group(&self, id: LayerId) -> Group {
        let layer = self.network.layer(id);
        let own = self.maps.written_by(id);
        let bytes = |map| self.bytes(NetworkTensor::FeatureMap(map));
        let shares = layer.inputs.iter().any(|&input| self.maps.written_by(input) == own);
        Group {
            name: layer.name.clone(),
            input: layer.inputs.iter().map(|&input| bytes(self.maps.written_by(input))).sum(),
            output: if shares || layer.kind.behavior().part == Part::View { Bytes::ZERO } else { bytes(own) },
            weights: self.bytes(NetworkTensor::Weights(id)),
        }
    }
}

/// A pass with its tensors.
struct Uses {
    layer: LayerId,
    pass: Pass,
    relu: Option<LayerId>,
    uses: Vec<(Role, NetworkTensor, Access)>,
}

impl Uses {
    fn new(layer: LayerId, pass: Pass) -> Uses {
        Uses { layer, pass, relu: None, uses: Vec::new() }
    }

    fn take(&mut self, role: Role, tensor: NetworkTensor, access: Access) {
        self.uses.push((role, tensor, access));
    }

    fn take_inputs(&mut self, workload: &Workload<'_>) {
        for (place, map) in maps_of_inputs(workload, self.layer) {
            self.take(Role::X(place), NetworkTensor::FeatureMap(map), Access::Read);
        }
    }
}

fn maps_of_inputs<'a>(workload: &'a Workload<'_>, layer: LayerId) -> impl Iterator<Item = (usize, MapId)> + 'a {
    workload.network.layer(layer).inputs.iter().map(|&input| workload.maps.written_by(input)).enumerate()
}

/// The forward pass of a layer; `None` if it computes nothing, or is computed with the layer below.
fn forward(workload: &Workload<'_>, layer: LayerId) -> Option<Uses> {
    if workload.computed_below(layer) != WithRelu::Nothing {
        return None;
    }
    let node = workload.network.layer(layer);
    let mut uses = Uses { relu: workload.relu_over(layer), ..Uses::new(layer, Pass::Forward) };
    uses.take_inputs(workload);
    uses.take(Role::Y, NetworkTensor::FeatureMap(workload.maps.written_by(layer)), Access::Write);
    if node.parameters > 0 {
        uses.take(Role::W, NetworkTensor::Weights(layer), Access::Read);
    }
    let Behavior { part, statistics, saved, .. } = node.kind.behavior();
    match part {
        Part::View => return None,
        Part::Input => uses.take(Role::Labels, NetworkTensor::Labels, Access::Write),
        Part::Hidden | Part::Loss => {}
    }
    if statistics {
        let learned = if workload.mode == Mode::Inference { Access::Read } else { Access::Add };
        uses.take(Role::Statistics, NetworkTensor::Statistics(layer), learned);
    }
    if saved != Saved::Nothing && workload.mode == Mode::Training {
        uses.take(Role::Saved, NetworkTensor::Saved(layer), Access::Write);
    }
    Some(uses)
}

/// The backward passes of a layer; `reached` records for each map whether its gradient has been written.
fn backward(workload: &Workload<'_>, layer: LayerId, reached: &mut [bool]) -> Vec<Uses> {
    let node = workload.network.layer(layer);
    let own = workload.maps.written_by(layer);
    let Behavior { part, backward: reads, placement, parameter_pass, with_relu, .. } = node.kind.behavior();
    let is_loss = part == Part::Loss;
    let computes = !matches!(part, Part::Input | Part::View) && workload.computed_below(layer) != WithRelu::Both;
    if !computes || !(is_loss || reached[own.index()]) {
        return Vec::new();
    }
    let has_own_pass = node.parameters > 0 && parameter_pass == ParameterPass::Own;
    let with_data = node.parameters > 0 && parameter_pass == ParameterPass::WithData;
    let trains = workload.trains(layer);
    let mut passes = Vec::new();
    let dy = |uses: &mut Uses| {
        if !is_loss {
            uses.take(Role::Dy, NetworkTensor::Gradient(own), Access::Read);
        }
    };
    if has_own_pass && trains {
        let mut uses = Uses::new(layer, Pass::BackwardFilter);
        uses.take_inputs(workload);
        dy(&mut uses);
        uses.take(Role::Dw, NetworkTensor::WeightGradient(layer), Access::Write);
        passes.push(uses);
    }

    let mut gradients = Vec::new();
    for (place, map) in maps_of_inputs(workload, layer) {
        let in_place = map == own;
        // A sum in place shares its gradient with the input whose map it took over.
        if !workload.maps.get(map).gradient || (in_place && placement == Placement::OverInputSharingGradient) {
            continue;
        }
        let first = in_place || !reached[map.index()];
        let access = if first { Access::Write } else { Access::Add };
        gradients.push((Role::Dx(place), NetworkTensor::Gradient(map), access));
        reached[map.index()] = true;
    }
    if !gradients.is_empty() || with_data && trains {
        let relu = workload.relu_over(layer).filter(|_| with_relu == WithRelu::Both);
        let mut uses = Uses { relu, ..Uses::new(layer, Pass::BackwardData) };
        if reads.inputs && !has_own_pass {
            uses.take_inputs(workload);
        }
        if reads.output {
            uses.take(Role::Y, NetworkTensor::FeatureMap(own), Access::Read);
        }
        if reads.saved {
            uses.take(Role::Saved, NetworkTensor::Saved(layer), Access::Read);
        }
        if is_loss {
            uses.take(Role::Labels, NetworkTensor::Labels, Access::Read);
        }
        dy(&mut uses);
        if node.parameters > 0 {
            uses.take(Role::W, NetworkTensor::Weights(layer), Access::Read);
        }
        // If the layer is frozen, the gradients of its parameters are still sums that the gradients of its inputs need.
        if with_data {
            uses.take(Role::Dw, NetworkTensor::WeightGradient(layer), Access::Write);
        }
        uses.uses.extend(gradients);
        passes.push(uses);
    }

    if trains {
        let mut uses = Uses::new(layer, Pass::Update);
        uses.take(Role::W, NetworkTensor::Weights(layer), Access::Add);
        uses.take(Role::Dw, NetworkTensor::WeightGradient(layer), Access::Read);
        if workload.momentum {
            uses.take(Role::Momentum, NetworkTensor::Momentum(layer), Access::Add);
        }
        if workload.second_moment {
            uses.take(Role::SecondMoment, NetworkTensor::SecondMoment(layer), Access::Add);
        }
        if workload.has_master_weights(layer) {
            uses.take(Role::Master, NetworkTensor::MasterWeights(layer), Access::Add);
        }
        passes.push(uses);
    }
    passes
}

#[cfg(test)]
mod tests {
    use tightfit_conv::Types;
    use tightfit_network::{Builder, Filters, Network, Other, Shape};

    use super::*;

    /// Layer, pass and roles of every operation.
    fn text(network: &Network, mode: Mode) -> Vec<String> {
        let workload = Workload::new(network, 2, Types::F32, mode).unwrap();
        let lowered = workload.lower().unwrap();
        lowered.step.check().unwrap();
        let operation = |(operation, pass): (&Operation, &LayerPass)| {
            let access = |access| match access {
                Access::Read => "",
                Access::Write => "=",
                Access::Add => "+",
            };
            let uses = operation.uses.iter().zip(&pass.roles);
            let uses: Vec<String> = uses.map(|(used, role)| format!("{role:?}{}", access(used.access))).collect();
            let relu = pass.relu.map_or(String::new(), |relu| format!(", with {}", network.layer(relu).name));
            format!("{} {:?}: {}{relu}", network.layer(pass.layer).name, pass.pass, uses.join(" "))
        };
        lowered.step.operations.iter().zip(&lowered.passes).map(operation).collect()
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
            "sum Forward: X(0) X(1) Y=, with sum.relu",
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
        assert_eq!(text(&network, Mode::Training), expected);
        assert_eq!(text(&network, Mode::Inference).len(), 7);
        assert_eq!(text(&network, Mode::Inference)[3], "b.bn Forward: X(0) Y= W Statistics");
    }

    #[test]
    fn a_relu_over_a_normalization_has_no_passes_unless_something_else_reads_its_input() {
        let relus = |mut net: Builder| {
            net.flatten().fully_connected("fc", 3).softmax_loss();
            let operations = text(&net.finish().unwrap(), Mode::Training);
            let of = |line: &&String| line.contains("relu") || line.contains("bn Backward");
            operations.iter().filter(of).cloned().collect::<Vec<_>>()
        };
        let image = Shape::image(2, 4, 4);
        let normalized = |net: &mut Builder| net.input(image).conv("conv", Filters::new(2, 1)).batch_norm().here();
        let mut net = Builder::new("alone");
        normalized(&mut net);
        net.relu().dropout(0.5);
        let expected = [
            "conv.bn Forward: X(0) Y= W Statistics+ Saved=, with conv.relu",
            "conv.bn BackwardData: X(0) Saved Dy W Dw= Dx(0)=, with conv.relu",
        ];
        assert_eq!(relus(net), expected);
        // Another layer reads the normalized map, so the ReLU writes a separate map.
        let mut net = Builder::new("read twice");
        let bn = normalized(&mut net);
        let relu = net.relu().here();
        net.add("sum", &[relu, bn]);
        let expected = [
            "conv.relu Forward: X(0) Y=",
            "conv.relu BackwardData: Y Dy Dx(0)+",
            "conv.bn BackwardData: X(0) Saved Dy W Dw= Dx(0)=",
        ];
        assert_eq!(relus(net), expected);
    }

    #[test]
    fn a_relu_over_a_sum_is_computed_with_it_going_forward() {
        let image = Shape::image(2, 4, 4);
        // Sums of a map with itself, over a view of a map (which has no passes), and as the output of a network.
        let mut net = Builder::new("twice");
        let map = net.input(image).conv("conv", Filters::new(2, 1)).here();
        net.add("sum", &[map, map]).relu().flatten().fully_connected("fc", 3).softmax_loss();
        let operations = text(&net.finish().unwrap(), Mode::Training);
        for expected in ["sum Forward: X(0) X(1) Y=, with sum.relu", "sum.relu BackwardData: Y Dy Dx(0)="] {
            assert!(operations.contains(&expected.to_owned()), "{expected} is not in {operations:#?}");
        }
        let mut net = Builder::new("view");
        let map = net.input(image).conv("conv", Filters::new(2, 1)).here();
        net.add("sum", &[map, map]).flatten().relu().fully_connected("fc", 3).softmax_loss();
        assert!(text(&net.finish().unwrap(), Mode::Training).iter().all(|line| !line.contains("with")));
        let mut net = Builder::new("output");
        net.input(image).conv("conv", Filters::new(2, 1)).batch_norm().relu();
        let operations = text(&net.finish().unwrap(), Mode::Inference);
        assert_eq!(
            operations.last().map(String::as_str),
            Some("conv.bn Forward: X(0) Y= W Statistics, with conv.relu")
        );
    }

    #[test]
    fn without_momentum_nothing_holds_the_last_changes() {
        let network = Network::open("lenet").unwrap();
        let workload = Workload::new(&network, 2, Types::F32, Mode::Training).unwrap().with_momentum(false);
        let lowered = workload.lower().unwrap();
        assert!(!lowered.tensors.iter().any(|tensor| matches!(tensor, NetworkTensor::Momentum(_))));
        let updates: Vec<&LayerPass> = lowered.passes.iter().filter(|pass| pass.pass == Pass::Update).collect();
        assert!(!updates.is_empty() && updates.iter().all(|update| update.roles == [Role::W, Role::Dw]));
    }

    #[test]
    fn layers_that_do_not_affect_the_loss_have_no_backward_passes() {
        let mut net = Builder::new("dangling");
        let fork = net.input(Shape::flat(4)).fully_connected("a", 4).here();
        net.fully_connected("unused", 2);
        net.at(fork).fully_connected("b", 2).softmax_loss();
        let operations = text(&net.finish().unwrap(), Mode::Training);
        assert!(
            operations.iter().all(|line| !line.starts_with("unused") || line.contains("Forward")),
            "{operations:?}"
        );
    }

    #[test]
    fn other_layers_use_their_stated_reads() {
        let mut net = Builder::new("other");
        let a = net.input(Shape::image(2, 4, 4)).conv("a", Filters::new(2, 1)).here();
        let shape = Shape::image(2, 4, 4);
        let silu = Other { reads_inputs: true, parameters: 3, ..Other::new("Silu", shape) };
        let gate = Other { reads_output: true, in_place: true, ..Other::new("Sigmoid", shape) };
        let b = net.layer("b", LayerKind::Other(Box::new(silu)), &[a]).here();
        let c = net.layer("c", LayerKind::Other(Box::new(gate)), &[b]).here();
        let view = LayerKind::Reshape { shape: Shape::volume(4, 2, 2, 2) };
        net.layer("view", view, &[c]).fully_connected("fc", 3).softmax_loss();
        let network = net.finish().unwrap();
        let operations = text(&network, Mode::Training);
        for expected in [
            "b Forward: X(0) Y= W",
            "c Forward: X(0) Y=",
            "fc Forward: X(0) Y= W",
            "c BackwardData: Y Dy Dx(0)=",
            "b BackwardData: X(0) Dy W Dw= Dx(0)=",
            "b Update: W+ Dw Momentum+",
        ] {
            assert!(operations.iter().any(|operation| operation == expected), "{expected}: {operations:?}");
        }
        assert!(!operations.iter().any(|operation| operation.starts_with("view")), "{operations:?}");
        let workload = Workload::new(&network, 2, Types::F32, Mode::Training).unwrap();
        let map = |place: usize| workload.maps.written_by(network.iter().nth(place).unwrap().0);
        assert_eq!(map(2), map(3), "in place");
        assert_eq!(map(3), map(4), "a view");
        assert_ne!(map(1), map(2));
    }

    #[test]
    fn average_pooling_reads_no_maps_backward() {
        let network = Network::open("cifar10-quick").unwrap();
        let operations = text(&network, Mode::Training);
        assert!(operations.contains(&"pool2 BackwardData: Dy Dx(0)=".to_owned()), "{operations:?}");
    }
}
