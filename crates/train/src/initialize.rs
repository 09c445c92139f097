//! The initial content of memory: random weights, zeros, ones.
//!
//! Each parameter has its own key, so the numbers depend neither on the order of the layers in memory nor on the plan.

use tightfit_cpu::random;
use tightfit_network::{Function, LayerId, LayerKind};
use tightfit_plan::{Parameter, ParameterKind, Workload};

/// The initial values of one parameter of a layer: weights uniform with variance 2 / fan-in, suited to ReLU; biases and
/// shifts 0, scales 1.
///
/// Source: He et al. 2015.
pub fn first_numbers(workload: &Workload<'_>, layer: LayerId, parameter: &Parameter, seed: u64) -> Vec<f32> {
    let node = workload.network.layer(layer);
    let outputs = match &node.kind {
        LayerKind::Other(other) => match other.function {
            Some(Function::Linear { outputs, .. }) => outputs,
            _ => node.shape.channels(),
        },
        _ => node.shape.channels(),
    };
    match parameter.kind {
        ParameterKind::Weight => {
            let fan_in = (parameter.elements / outputs.max(1)).max(1) as f32;
            // A uniform number from -1 to 1 has variance 1 / 3.
            let bound = (3.0 * (2.0 / fan_in)).sqrt();
            let key = random::key(&[seed, layer.index() as u64]);
            (0..parameter.elements as u64).map(|i| bound * random::uniform(key, i)).collect()
        }
        ParameterKind::Bias | ParameterKind::Shift => vec![0.0; parameter.elements],
        ParameterKind::Scale => vec![1.0; parameter.elements],
    }
}
