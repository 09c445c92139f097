//! Checks a step against its network: restates the network's rules independently of the code that lowered it. `operands` has the operands of each
//! pass, and `learning` follows the contents of tensors.

mod fault;
mod learning;
mod operands;

use tightfit_units::Error;

use crate::lowering::terms::{Lowered, NetworkTensor};
use crate::lowering::workload::Workload;
use crate::step::{OperationId, Residence};
use fault::{Fault, Operand};
use learning::{Content, Learning};
use operands::operands;

/// Rejects a step that differs from its network in its tensors, its passes, their order, or their contents.
///
/// - Cost: O(layers² + operands).
///
/// # Errors
/// [`Error::BadStep`] with the first pass that is wrong.
pub(crate) fn verify(workload: &Workload<'_>, lowered: &Lowered) -> Result<(), Error> {
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

#[cfg(test)]
mod tests {
    use tightfit_conv::Types;
    use tightfit_network::{Builder, Filters, Network, Shape};

    use super::*;
    use crate::step::{Access, TensorId};
    use crate::{LayerPass, Mode, Pass};

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

    fn remove(lowered: &mut Lowered, at: usize) -> (crate::step::Operation, LayerPass) {
        (lowered.step.operations.remove(at), lowered.passes.remove(at))
    }

    fn insert(lowered: &mut Lowered, at: usize, (operation, of): (crate::step::Operation, LayerPass)) {
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
    fn frozen_layers_must_have_no_filter_passes_and_no_updates_and_others_both() {
        let network = network();
        let whole = Workload::new(&network, 4, Types::F32, Mode::Training).unwrap();
        let frozen = whole.clone().with_frozen(&["b".to_owned()]).unwrap();
        assert_eq!(fault_of(&frozen, whole.lower().unwrap(), |_, _| {}), "WrongRole(W)");
        assert_eq!(fault_of(&whole, frozen.lower().unwrap(), |_, _| {}), "MissingPass(Update)");
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
    fn a_pass_computes_a_relu_once_and_only_where_it_can() {
        let relu = |lowered: &Lowered, at: &dyn Fn(&Lowered, &str, Pass) -> usize, of: &str| {
            lowered.passes[at(lowered, of, Pass::Forward)].layer
        };
        let elsewhere = fault(|lowered, at| {
            let (relu, place) = (relu(lowered, at, "a.relu"), at(lowered, "b.bn", Pass::Forward));
            lowered.passes[place].relu = Some(relu);
        });
        assert!(elsewhere.starts_with("WrongRelu"), "{elsewhere}");
        let by_a_convolution = fault(|lowered, at| {
            let (relu, place) = (relu(lowered, at, "a.relu"), at(lowered, "a", Pass::Forward));
            lowered.passes[place].relu = Some(relu);
        });
        assert!(by_a_convolution.starts_with("WrongRelu"), "{by_a_convolution}");
        let nowhere = fault(|lowered, at| {
            let place = at(lowered, "b.bn", Pass::Forward);
            lowered.passes[place].relu = None;
        });
        assert_eq!(nowhere, "WrongContent(X(0))");
        let forward_alone = fault(|lowered, at| {
            let place = at(lowered, "b.bn", Pass::BackwardData);
            lowered.passes[place].relu = None;
        });
        assert_eq!(forward_alone, "WrongContent(Dy)");
        let mut net = Builder::new("sum");
        let fork = net.input(Shape::image(2, 4, 4)).conv("a", Filters::new(2, 1)).here();
        let left = net.conv("b", Filters::new(2, 1)).here();
        net.add("sum", &[left, fork]).relu().flatten().fully_connected("fc", 3).softmax_loss();
        let network = net.finish().unwrap();
        let workload = Workload::new(&network, 4, Types::F32, Mode::Training).unwrap();
        let backward_of_a_sum = fault_of(&workload, workload.lower().unwrap(), |lowered, at| {
            let relu = lowered.passes[at(lowered, "sum.relu", Pass::BackwardData)].layer;
            let place = at(lowered, "sum", Pass::BackwardData);
            lowered.passes[place].relu = Some(relu);
        });
        assert!(backward_of_a_sum.starts_with("WrongRelu"), "{backward_of_a_sum}");
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
