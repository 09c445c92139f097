//! Bounds on measurements, networks and devices, for all imported, saved and read data.
//!
//! Data within these bounds can be written to a cache or a profile and read again unchanged: every number fits SQLite's signed 64 bits, and is exact
//! as a double in other JSON readers.

use tightfit_conv::{Device, DivisionCost, Measurement, Problem};
use tightfit_units::{Bytes, Error, Nanos};

#[cfg(feature = "cache")]
use super::Comparison;
use super::is_step_name;
use super::{Decision, Owner, RecordedNetwork};

/// The longest time: 104 days.
pub(super) const MOST_TIME: Nanos = Nanos(1 << 53);
/// The largest workspace, and the largest memory of a training step: 8 PiB.
pub(super) const MOST_WORKSPACE: Bytes = Bytes(1 << 53);
/// The largest spread; a spread of 1 is already useless.
pub(super) const MOST_SPREAD: f64 = 1e9;
/// The largest error of a configuration; a result with an error over 1 is useless.
#[cfg(feature = "cache")]
pub(super) const MOST_ERROR: f64 = 1e9;
/// The longest question that a decision answers, in bytes.
const MOST_QUESTION: usize = 4096;
/// The most threads of a device.
pub(super) const MOST_THREADS: usize = 1 << 20;

/// The fault of a shape, which may also be the name of a training step.
pub(super) fn shape_fault(shape: &str) -> Option<String> {
    let parsed = || format!("{shape} n1").parse::<Problem>();
    if is_step_name(shape) { None } else { parsed().err().map(|error| error.to_string()) }
}

pub(super) fn samples_fault(field: &str, samples: usize) -> Option<String> {
    let is_possible = (1..=Problem::MOST_SAMPLES).contains(&samples);
    (!is_possible).then(|| format!("{field} is {samples}, must be 1 to {}", Problem::MOST_SAMPLES))
}

/// The fault of a device's number of threads.
pub(super) fn device_fault(device: &Device) -> Option<String> {
    let threads = device.threads;
    (threads > MOST_THREADS).then(|| format!("threads is {threads}, must be at most {MOST_THREADS}"))
}

pub(super) fn workspace_fault(workspace: Bytes) -> Option<String> {
    let Bytes(bytes) = workspace;
    (workspace > MOST_WORKSPACE).then(|| format!("workspace_bytes is {bytes}, must be at most {}", MOST_WORKSPACE.0))
}

/// The fault of a measurement's numbers.
pub(super) fn measurement_fault(m: &Measurement) -> Option<String> {
    let time = |field: &str, time: Nanos| {
        let is_possible = (Nanos(1)..=MOST_TIME).contains(&time);
        (!is_possible).then(|| format!("{field} is {}, must be 1 to {}", time.0, MOST_TIME.0))
    };
    samples_fault("micro_batch", m.micro_batch)
        .or_else(|| time("time_ns", m.time))
        .or_else(|| m.single.and_then(|single| time("single_ns", single)))
        .or_else(|| workspace_fault(m.workspace))
        .or_else(|| {
            let is_possible = (0.0..=MOST_SPREAD).contains(&m.spread);
            (!is_possible).then(|| format!("spread is {:?}, must be 0 to {MOST_SPREAD:?}", m.spread))
        })
}

/// The fault of a network: its mini-batch, a layer's shape or a layer's mini-batch.
pub(super) fn network_fault(network: &RecordedNetwork) -> Option<String> {
    let batch = match network.owner {
        Owner::Network { batch: Some(batch) } => samples_fault("batch", batch),
        Owner::Network { batch: None } | Owner::Program => None,
    };
    let layer = |(name, shape, mini_batch): &(String, String, usize)| {
        let fault = match shape_fault(shape) {
            None if is_step_name(shape) => Some(format!("`{shape}` is not a convolution")),
            fault => fault,
        };
        fault.or_else(|| samples_fault("mini_batch", *mini_batch)).map(|fault| format!("layer `{name}`: {fault}"))
    };
    let fault = batch.or_else(|| network.layers.iter().find_map(layer));
    fault.map(|fault| format!("network `{}`: {fault}", network.name))
}

/// The fault of a decision: its problem, question, times and workspaces, and whether the configuration adds up to the
/// problem's mini-batch.
pub(super) fn decision_fault(problem: &str, question: &str, decision: &Decision) -> Option<String> {
    let time = |field: &str, Nanos(time): Nanos| {
        (time > MOST_TIME.0).then(|| format!("{field} is {time}, must be at most {}", MOST_TIME.0))
    };
    let workspace = |field: &str, Bytes(bytes): Bytes| {
        (bytes > MOST_WORKSPACE.0).then(|| format!("{field} is {bytes}, must be at most {}", MOST_WORKSPACE.0))
    };
    let parsed = match problem.parse::<Problem>() {
        Ok(problem) => problem,
        Err(error) => return Some(format!("decision: {error}")),
    };
    let mini_batch = parsed.batch();
    let length = question.len();
    let is_question = (1..=MOST_QUESTION).contains(&length);
    let fault = (!is_question).then(|| format!("question has {length} bytes, must have 1 to {MOST_QUESTION}"));
    let configuration = decision.configuration.as_ref();
    fault
        .or_else(|| time("framework_ns", decision.framework_time.unwrap_or_default()))
        .or_else(|| {
            let parts = configuration?.parts().iter();
            parts
                .map(|part| {
                    samples_fault("micro_batch", part.micro_batch)
                        .or_else(|| time("time", part.time))
                        .or_else(|| workspace("workspace", part.workspace))
                        .or_else(|| part.algorithm.slices().and_then(|slices| slices.fault(&parsed)))
                })
                .find_map(|fault| fault)
        })
        .or_else(|| {
            let cost = configuration?.cost();
            time("cost.time", cost.time).or_else(|| workspace("cost.workspace", cost.workspace))
        })
        .or_else(|| {
            let sum = configuration?.batch();
            (sum != mini_batch).then(|| {
                format!("configuration has micro-batches that add up to {sum}, not to the mini-batch of {mini_batch}")
            })
        })
        .map(|fault| format!("decision `{problem}`: {fault}"))
}

/// The fault of a comparison: of its configuration, as in a decision, or of its errors.
#[cfg(feature = "cache")]
pub(super) fn comparison_fault(problem: &str, comparison: &Comparison) -> Option<String> {
    let Comparison { configuration, error, own } = comparison;
    let decision = Decision { configuration: Some(configuration.clone()), framework_time: None, is_final: true };
    decision_fault(problem, "comparison", &decision).or_else(|| {
        let mut errors = [*error].into_iter().chain(own.as_ref().map(|(_, error)| *error));
        let impossible = errors.find(|error| !(0.0..=MOST_ERROR).contains(error))?;
        Some(format!("an error of `{configuration}` is {impossible:?}, must be 0 to {MOST_ERROR:?}"))
    })
}

/// Replaces numbers over the bounds by the numbers of [`DivisionCost::NEVER`], since no limit allows either.
pub(super) fn division(cost: DivisionCost) -> DivisionCost {
    let DivisionCost { time, workspace } = DivisionCost::NEVER;
    DivisionCost {
        time: if cost.time > MOST_TIME { time } else { cost.time },
        workspace: if cost.workspace > MOST_WORKSPACE { workspace } else { cost.workspace },
    }
}

/// Turns a fault into the error of saving `what`.
#[cfg(feature = "cache")]
pub(super) fn refuse(what: &str, fault: Option<String>) -> Result<(), Error> {
    fault.map_or(Ok(()), |fault| Err(Error::BadOption { what: format!("cannot save {what}: {fault}") }))
}
