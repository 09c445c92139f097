//! Measures convolutions at further mini-batches, such as the sizes of a plan's parts, with the algorithms that are best under some limit for the
//! whole mini-batch.

use tightfit_conv::candidate::Candidates;
use tightfit_conv::optimize::{divide, front};
use tightfit_conv::{Algorithm, Problem};
use tightfit_units::{Bytes, Error};

use super::bounds::Bounds;
use super::sizes::{measure_size, settle};
use crate::Profiler;

/// Adds candidates of each size in `parts`, within the largest of the limits.
///
/// # Errors
/// The errors of [`Profiler::measure`]. Completed measurements are already saved.
pub(super) fn add_parts(
    problem: &Problem,
    parts: &[usize],
    limits: &[Bytes],
    profiler: &mut Profiler<'_>,
    found: &mut Candidates,
) -> Result<(), Error> {
    let limit = limits.iter().copied().max().unwrap_or_default();
    let best = front(problem, &found.candidates, limit, found.cost).unwrap_or_default();
    let mut algorithms: Vec<Algorithm> =
        best.iter().flat_map(|best| best.parts()).map(|part| part.algorithm.clone()).collect();
    algorithms.sort();
    algorithms.dedup();
    let known = profiler.sizes(problem);
    for &size in parts.iter().filter(|size| known.binary_search(size).is_ok()) {
        let part = problem.with_batch(size)?;
        let mut bounds = Bounds::new(&part);
        found.candidates.iter().filter(|known| known.micro_batch <= size).for_each(|known| bounds.add(known));
        for algorithm in &algorithms {
            let workspace = profiler.workspace(&part, algorithm)?;
            let Some(workspace) = workspace.filter(|workspace| *workspace <= limit) else { continue };
            let rivals = bounds.rivals(size, workspace);
            if let Some(measurement) = profiler.measure_against(&part, algorithm, rivals)? {
                bounds.add(&measurement.candidate());
                found.candidates.push(measurement.candidate());
            }
        }
        // Perhaps none of these algorithms can run a mini-batch this small, or they need more workspace than others.
        if divide(&part, &found.candidates, limit, found.cost).is_err() {
            measure_size(&part, limit, profiler, &mut found.candidates)?;
        }
        found.candidates.sort();
        found.candidates.dedup();
        settle(&part, limits, found.cost, profiler, &mut found.candidates)?;
    }
    settle(problem, limits, found.cost, profiler, &mut found.candidates)
}
