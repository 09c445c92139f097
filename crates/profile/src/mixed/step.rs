//! The time of one training step (forward and backward) of a network on a device, by batch size.
//!
//! ```text
//! recorded under `step resnet18 f32`?  yes -> the measured time, with all layers
//!                                      no  -> sum over convolutions of WR's T(batch) + batch × rest
//! ```
//!
//! A measured step is stored like any other measurement: its problem is [`step_name`], its algorithm describes the way it was run, and its workspace
//! is the total memory of the step.

use std::sync::atomic::AtomicBool;

use tightfit_conv::optimize::check_samples;
use tightfit_conv::optimize::times;
use tightfit_conv::{Candidate, DivisionCost, Layout, Operation, Types};
use tightfit_network::distinct;
use tightfit_units::{Bytes, Error, Nanos};

use crate::survey::Sizes;
use crate::{Model, Recording, step_name};

/// The allowed steps of a device, and the parts of a step that they include.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOptions {
    /// Number types of data and arithmetic.
    pub types: Types,
    /// Order of the dimensions in memory.
    pub layout: Layout,
    /// The recorded sizes to use as micro-batches; `fit` allows all, because it only decides what to record.
    pub sizes: Sizes,
    /// Workspace limit of each convolution.
    pub workspace: Bytes,
    /// Time of all other layers, forward and backward, per sample; steps measured whole include it.
    pub rest: Nanos,
    /// Batches must be multiples of this power of two.
    pub multiple_of: usize,
    /// The device's memory.
    pub memory: Bytes,
}

impl Default for StepOptions {
    fn default() -> StepOptions {
        StepOptions {
            types: Types::F32,
            layout: Layout::Nchw,
            sizes: Sizes::All,
            workspace: Bytes::UNLIMITED,
            rest: Nanos::ZERO,
            multiple_of: 1,
            memory: Bytes::UNLIMITED,
        }
    }
}

/// Bytes for training a network at a batch if nothing is released early: every layer's output and its gradient, and the
/// weights with their gradients and momentum. Workspace comes on top.
///
/// An upper estimate: frameworks compute some layers in place and free gradients early. Zero for a program, whose layers
/// are not known.
pub fn training_bytes(model: &Model, batch: usize, types: Types) -> Bytes {
    let Model::Network(network) = model else { return Bytes::ZERO };
    let maps = network.layers().iter().fold(0_usize, |sum, layer| sum.saturating_add(layer.shape.len()));
    let numbers = maps.saturating_mul(2).saturating_mul(batch).saturating_add(network.parameters().saturating_mul(3));
    Bytes::of(numbers, types.storage().size())
}

/// The maximum of [`StepOptions::rest`]: an hour per sample.
const MOST_REST: Nanos = Nanos(3_600_000_000_000);

/// The allowed batches of a device up to `mini_batch`, rising, each with its step time.
///
/// Uses steps measured whole if the recording has any, the fastest for each batch, with their measured memory.
/// Otherwise divides the convolutions under the workspace limit at every batch; their memory is [`training_bytes`] plus
/// the largest workspace in use. Empty if nothing is recorded, or nothing fits.
///
/// - Cost: O(mini-batch × measurements).
/// - Source: Oyama et al. 2018, III.E.
///
/// # Errors
/// [`Error::BadOption`] if `multiple_of` is not a power of two, the memory is limited but not recorded, the rest is over an
/// hour per sample, or the mini-batch is over [`tightfit_conv::Problem::MOST_SAMPLES`]; [`Error::BadProblem`] for a mini-batch of
/// zero; [`Error::Interrupted`] soon after `stop` is set.
pub fn step_times(
    recording: &Recording,
    model: &Model,
    mini_batch: usize,
    options: &StepOptions,
    stop: &AtomicBool,
) -> Result<Vec<(usize, Nanos)>, Error> {
    check_samples(mini_batch)?;
    if !options.multiple_of.is_power_of_two() {
        let what = format!("batches must be multiples of a power of two, but {} is not one", options.multiple_of);
        return Err(Error::BadOption { what });
    }
    if options.rest > MOST_REST {
        let what = format!("the other layers take {} per sample; the maximum is {MOST_REST}", options.rest);
        return Err(Error::BadOption { what });
    }
    let measured = recording.of(&step_name(model.name(), options.types));
    let mut steps: Vec<(usize, Nanos)> = if measured.is_empty() {
        from_convolutions(recording, model, mini_batch, options, stop)?
    } else {
        // No step takes nothing at all.
        if options.memory != Bytes::UNLIMITED && measured.iter().any(|m| m.workspace == Bytes::ZERO) {
            let (name, device, memory) = (model.name(), &recording.device, options.memory);
            let what = format!(
                "the recorded steps of {name} on {device} do not say how much memory they take, so whether they fit in \
                 {memory} is unknown; give this device no memory limit (unlimited), or record its steps with their memory"
            );
            return Err(Error::BadOption { what });
        }
        measured.iter().filter(|m| m.workspace <= options.memory).map(|m| (m.micro_batch, m.time)).collect()
    };
    steps.retain(|(batch, _)| (1..=mini_batch).contains(batch) && batch.is_multiple_of(options.multiple_of));
    steps.sort_unstable();
    steps.dedup_by_key(|(batch, _)| *batch);
    Ok(steps)
}

fn from_convolutions(
    recording: &Recording,
    model: &Model,
    mini_batch: usize,
    options: &StepOptions,
    stop: &AtomicBool,
) -> Result<Vec<(usize, Nanos)>, Error> {
    let kernels = model.kernels(Some(mini_batch), &Operation::ALL, options.types, options.layout)?;
    let mut steps = vec![Some(Nanos::ZERO); mini_batch + 1];
    let mut workspace = Bytes::ZERO;
    for (problem, members) in distinct(&kernels) {
        let mut candidates: Vec<Candidate> =
            recording.of(&problem.shape()).iter().map(|measurement| measurement.candidate()).collect();
        candidates.retain(|candidate| candidate.workspace <= options.workspace);
        workspace = candidates.iter().map(|candidate| candidate.workspace).fold(workspace, Bytes::max);
        let cost = recording.division_cost(&problem.shape());
        let times = kernel_times(mini_batch, candidates, options, cost, stop)?;
        for (step, time) in steps.iter_mut().zip(times) {
            *step = step.zip(time).map(|(step, time)| step + time * members.len() as u64);
        }
    }
    let fits = |batch: usize| training_bytes(model, batch, options.types) + workspace <= options.memory;
    let step = |(batch, time): (usize, Option<Nanos>)| Some((batch, time? + options.rest * batch as u64));
    Ok(steps.into_iter().enumerate().filter(|(batch, _)| fits(*batch)).filter_map(step).collect())
}

/// The least time of one kernel at every batch, with micro-batches of the allowed sizes.
fn kernel_times(
    mini_batch: usize,
    candidates: Vec<Candidate>,
    options: &StepOptions,
    cost: DivisionCost,
    stop: &AtomicBool,
) -> Result<Vec<Option<Nanos>>, Error> {
    let admitted = |size: usize| match options.sizes {
        Sizes::Undivided => false,
        Sizes::PowerOfTwo => size.is_power_of_two(),
        Sizes::All | Sizes::Fit => true,
    };
    let (divisible, whole): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|c| admitted(c.micro_batch));
    let mut least = times(mini_batch, &divisible, options.workspace, cost, stop)?;
    for candidate in whole.iter().filter(|candidate| (1..=mini_batch).contains(&candidate.micro_batch)) {
        let least = &mut least[candidate.micro_batch];
        *least = Some(least.map_or(candidate.time, |least| least.min(candidate.time)));
    }
    Ok(least)
}
