//! Candidates from the cache alone: nothing is measured, so it costs a look into a file.

use tightfit_core::{Bytes, Device, DivisionCost, Measurement, Operation};
use tightfit_cuda::Guest;

use super::cache::{cache, read};
use super::{Known, admission, measured};
use crate::kernel::Question;
use crate::settings::Settings;

/// What the cache has for a question within a limit; none if there is no cache or nothing in it.
pub(super) fn look_up(question: &Question, limit: Bytes, settings: &Settings, device: &Device) -> Option<Known> {
    let cache = cache(settings)?;
    let found = read(cache.measurements(device, &question.problem))?;
    let problem = &question.problem;
    let admission = admission(question, settings);
    let sizes = settings.policy.sizes(problem.batch());
    let may_be_used = |measurement: &&Measurement| {
        let is_size = sizes.as_ref().is_none_or(|sizes| sizes.contains(&measurement.micro_batch));
        measurement.workspace <= limit && is_size && admission.admits(measurement.notes)
    };
    let candidates: Vec<_> = found.iter().filter(may_be_used).map(Measurement::candidate).collect();
    measured::count_cached(candidates.len());
    let is_theirs = |measurement: &&Measurement| {
        measurement.micro_batch == problem.batch() && measurement.algorithm == question.chosen.algorithm
    };
    let framework_time = found.iter().find(is_theirs).map(|measurement| measurement.time);
    // Of half-precision gradients the cost of adding up must be known, or dividing cannot be weighed.
    let cost = match read(cache.division_cost(device, problem)).flatten() {
        Some(cost) => cost,
        None if problem.operation() != Operation::BackwardFilter => DivisionCost::default(),
        None if Guest::division_workspace(problem) == Bytes::ZERO => DivisionCost::default(),
        None => DivisionCost::NEVER,
    };
    (!candidates.is_empty()).then_some(Known { candidates, cost, framework_time })
}
