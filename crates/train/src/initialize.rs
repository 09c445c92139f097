//! What is in memory before the first step: random weights, zeros, ones.
//!
//! Each parameter has a key of its own, so the numbers depend neither on the order of the layers in memory nor on the plan.

use tightfit_core::network::LayerId;
use tightfit_core::plan::{Parameter, ParameterKind, Workload};
use tightfit_cpu::random;

/// How wide weights spread at first; biases and shifts are 0, scales 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Initialization {
    /// Uniform with variance 2 / fan-in, for rectified units. Source: He et al. 2015.
    #[default]
    He,
    /// Uniform with variance 1 / fan-in. Source: Glorot and Bengio 2010, the form of Caffe.
    Xavier,
}

impl Initialization {
    /// The numbers of one parameter of a layer.
    pub fn numbers(self, workload: &Workload<'_>, layer: LayerId, parameter: &Parameter, seed: u64) -> Vec<f32> {
        let outputs = workload.network.layer(layer).shape.channels();
        match parameter.kind {
            ParameterKind::Weight => {
                let fan_in = (parameter.elements / outputs.max(1)).max(1) as f32;
                let variance = match self {
                    Initialization::He => 2.0 / fan_in,
                    Initialization::Xavier => 1.0 / fan_in,
                };
                // A uniform number from -1 to 1 has variance 1 / 3.
                let bound = (3.0 * variance).sqrt();
                let key = random::key(&[seed, layer.index() as u64]);
                (0..parameter.elements as u64).map(|i| bound * random::uniform(key, i)).collect()
            }
            ParameterKind::Bias | ParameterKind::Shift => vec![0.0; parameter.elements],
            ParameterKind::Scale => vec![1.0; parameter.elements],
        }
    }
}
