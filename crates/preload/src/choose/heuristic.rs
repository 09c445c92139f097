//! Without any times: the framework's own engine on the largest equal division whose workspace fits, since a smaller batch
//! of the same engine keeps its numerics and most of its speed. Queries only; nothing runs.

use tightfit_core::{Algorithm, Bytes, Candidate, Configuration, DivisionCost, Error, Nanos, Problem};
use tightfit_cuda::Guest;

use super::admission;
use crate::kernel::Question;
use crate::settings::Settings;
use tightfit_core::optimize::Policy;

/// Engines tried where the framework's own does not fit however divided.
const OTHERS: usize = 8;

/// The configuration; none if nothing fits.
///
/// # Errors
/// [`Error::Backend`] if cuDNN cannot be asked.
pub(super) fn shrink(
    question: &Question,
    limit: Bytes,
    settings: &Settings,
    guest: &mut Guest,
) -> Result<Option<Configuration>, Error> {
    let problem = &question.problem;
    let own = &question.chosen.algorithm;
    if settings.policy != Policy::Undivided
        && let Some(divided) = divide_equally(problem, own, limit, guest)?
    {
        return Ok(Some(divided));
    }
    // In the order of the library's preference.
    let admission = admission(question, settings);
    let offers = guest.offers(problem)?;
    let admitted: Vec<_> =
        offers.into_iter().filter(|offer| admission.admits(offer.notes) && offer.algorithm != *own).collect();
    let whole = admitted.iter().find(|offer| offer.workspace.as_ref().is_ok_and(|bytes| *bytes <= limit));
    if let Some(offer) = whole {
        return of_sizes(problem, &offer.algorithm, &[problem.batch()], limit, guest);
    }
    if settings.policy == Policy::Undivided {
        return Ok(None);
    }
    for offer in admitted.iter().filter(|offer| offer.workspace.is_ok()).take(OTHERS) {
        if let Some(divided) = divide_equally(problem, &offer.algorithm, limit, guest)? {
            return Ok(Some(divided));
        }
    }
    Ok(None)
}

/// The fewest equal parts of one algorithm that fit: doubled until they do, then as few as do.
fn divide_equally(
    problem: &Problem,
    algorithm: &Algorithm,
    limit: Bytes,
    guest: &mut Guest,
) -> Result<Option<Configuration>, Error> {
    let batch = problem.batch();
    let mut too_few = 1;
    let mut parts = 2;
    while parts / 2 < batch {
        let count = parts.min(batch);
        if let Some(mut best) = of_sizes(problem, algorithm, &equal(batch, count), limit, guest)? {
            for fewer in too_few + 1..count.min(too_few + 8) {
                if let Some(found) = of_sizes(problem, algorithm, &equal(batch, fewer), limit, guest)? {
                    best = found;
                    break;
                }
            }
            return Ok(Some(best));
        }
        too_few = count;
        parts *= 2;
    }
    Ok(None)
}

/// `batch` samples in `count` parts that differ by one at most.
fn equal(batch: usize, count: usize) -> Vec<usize> {
    (0..count).map(|place| batch / count + usize::from(place < batch % count)).collect()
}

/// The configuration of these micro-batches, if it fits.
fn of_sizes(
    problem: &Problem,
    algorithm: &Algorithm,
    sizes: &[usize],
    limit: Bytes,
    guest: &mut Guest,
) -> Result<Option<Configuration>, Error> {
    let mut distinct = sizes.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    let mut workspaces = Vec::new();
    for size in distinct {
        let Some(bytes) = guest.workspace(&problem.with_batch(size)?, algorithm)? else { return Ok(None) };
        workspaces.push((size, bytes));
    }
    let part = |&size: &usize| {
        let workspace =
            workspaces.iter().find(|(known, _)| *known == size).map_or(Bytes::UNLIMITED, |(_, bytes)| *bytes);
        Candidate { micro_batch: size, algorithm: algorithm.clone(), time: Nanos::ZERO, workspace }
    };
    let cost = DivisionCost { time: Nanos::ZERO, workspace: Guest::division_workspace(problem) };
    let configuration = Configuration::new(sizes.iter().map(part).collect(), cost);
    Ok((configuration.workspace() <= limit).then_some(configuration))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_parts_add_up_and_differ_by_one_at_most() {
        for batch in 1..40 {
            for count in 1..=batch {
                let parts = equal(batch, count);
                assert_eq!(parts.iter().sum::<usize>(), batch);
                assert_eq!(parts.len(), count);
                assert!(parts[0] - parts[count - 1] <= 1, "{parts:?}");
            }
        }
    }
}
