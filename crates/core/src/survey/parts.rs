//! Measures convolutions at further mini-batches, such as those of a plan's parts: with the algorithms that are best under
//! some limit for the whole one.

use super::bounds::Bounds;
use super::sizes::measure_size;
use crate::candidate::Candidates;
use crate::optimize::{divide, front};
use crate::profile::Profiler;
use crate::{Algorithm, Bytes, Error, Problem};

/// Adds candidates of each size in `parts`, within the limit.
///
/// # Errors
/// The errors of [`Profiler::measure`]. Completed measurements are already saved.
pub(super) fn add_parts(
    problem: &Problem,
    parts: &[usize],
    limit: Bytes,
    profiler: &mut Profiler<'_>,
    found: &mut Candidates,
) -> Result<(), Error> {
    let Ok(best) = front(problem, &found.candidates, limit, found.cost) else { return Ok(()) };
    let mut algorithms: Vec<&Algorithm> =
        best.iter().flat_map(|best| best.parts()).map(|part| &part.algorithm).collect();
    algorithms.sort();
    algorithms.dedup();
    let known = profiler.sizes(problem);
    let mut added = Vec::new();
    for &size in parts.iter().filter(|size| known.binary_search(size).is_ok()) {
        let part = problem.with_batch(size)?;
        let mut bounds = Bounds::new(&part);
        found
            .candidates
            .iter()
            .chain(&added)
            .filter(|known| known.micro_batch <= size)
            .for_each(|known| bounds.add(known));
        for algorithm in &algorithms {
            let workspace = profiler.workspace(&part, algorithm)?;
            let Some(workspace) = workspace.filter(|workspace| *workspace <= limit) else { continue };
            let rivals = bounds.rivals(size, workspace);
            if let Some(measurement) = profiler.measure_against(&part, algorithm, rivals)? {
                bounds.add(&measurement.candidate());
                added.push(measurement.candidate());
            }
        }
        // None of them may run so few samples, or those that do need more than others.
        if divide(&part, &[&found.candidates[..], &added].concat(), limit, found.cost).is_err() {
            measure_size(&part, limit, profiler, &mut added)?;
        }
    }
    found.candidates.extend(added);
    found.candidates.sort();
    found.candidates.dedup();
    Ok(())
}
