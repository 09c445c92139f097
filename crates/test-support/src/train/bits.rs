//! The results of training, to the bit.

use tightfit_plan::NetworkTensor;
use tightfit_train::{Engine, Error, Machine, Observation};

/// A step's loss, and every gradient of maps and parameters as bytes, in the order of computation.
pub type Step = (u64, Vec<(NetworkTensor, Vec<u8>)>);

/// Trains on these mini-batches. Returns each step, and how many copies came back in it as they had been sent.
pub fn bits<M: Machine>(
    engine: &mut Engine<M>,
    observed: &Observation,
    batches: impl IntoIterator<Item = (Vec<f32>, Vec<u32>)>,
) -> Result<(Vec<Step>, Vec<usize>), Error> {
    let (mut steps, mut copies) = (Vec::new(), Vec::new());
    for (samples, labels) in batches {
        let loss = engine.step(&samples, &labels)?.loss.to_bits();
        copies.push(observed.check_copies(engine.machine())?);
        steps.push((loss, observed.gradients(engine.machine())?));
    }
    Ok((steps, copies))
}
