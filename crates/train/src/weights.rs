//! Weights from elsewhere: puts the numbers of a file where the engine keeps its layers' numbers.

use std::collections::BTreeMap;

use tightfit_onnx::{Numbers, Slot};
use tightfit_plan::{NetworkTensor, ParameterKind, Workload, channel_stride};

use crate::Error;

/// Everything a network has learned: parameters and running statistics, by tensor.
pub type Learned = BTreeMap<NetworkTensor, Vec<f32>>;

/// Overwrites the learned numbers of an engine with the given ones. Tensors that are not given stay.
///
/// # Errors
/// [`Error::Batch`] for a layer whose parameters have another length, or that has no such parameters.
pub fn replace_weights(workload: &Workload<'_>, learned: &mut Learned, given: &[Numbers]) -> Result<(), Error> {
    for Numbers { layer, slot, numbers } in given {
        let node = workload.network.layer(*layer);
        let channels = node.shape.channels();
        let kind = match slot {
            Slot::Weight => Some(ParameterKind::Weight),
            Slot::Bias => Some(ParameterKind::Bias),
            Slot::Scale => Some(ParameterKind::Scale),
            Slot::Shift => Some(ParameterKind::Shift),
            Slot::Mean | Slot::Variance => None,
        };
        let place = match kind {
            Some(kind) => {
                let parameters = workload.parameters(*layer);
                parameters.iter().find(|one| one.kind == kind).map(|one| (one.offset, one.elements))
            }
            None if *slot == Slot::Mean => Some((0, channels)),
            None => Some((channel_stride(channels), channels)),
        };
        let tensors = match kind {
            Some(_) => [NetworkTensor::Weights(*layer), NetworkTensor::MasterWeights(*layer)].to_vec(),
            None => vec![NetworkTensor::Statistics(*layer)],
        };
        let wrong = |wanted: String| Error::Batch {
            what: format!("{} numbers for {slot:?} of layer {}", numbers.len(), node.name),
            wanted,
        };
        let Some((first, elements)) = place else { return Err(wrong("none".to_owned())) };
        if elements != numbers.len() {
            return Err(wrong(elements.to_string()));
        }
        for tensor in tensors {
            if let Some(own) = learned.get_mut(&tensor).and_then(|all| all.get_mut(first..first + elements)) {
                own.copy_from_slice(numbers);
            }
        }
    }
    Ok(())
}
