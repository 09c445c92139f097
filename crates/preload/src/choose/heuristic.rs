//! Chooses without any times: the framework's own engine in the largest equal parts whose workspace fits, since a
//! smaller batch on the same engine keeps its numerics and most of its speed. Only queries; nothing runs.

use std::ops::RangeInclusive;

use tightfit_conv::{Algorithm, Candidate, Configuration, DivisionCost, Notes, Problem};
use tightfit_cuda::Guest;
use tightfit_profile::survey::Sizes;
use tightfit_units::{Bytes, Error, Nanos};

use super::chooser::admission;
use super::compared::notes;
use crate::judge::Errors;
use crate::kernel::Question;
use crate::session::Session;
use crate::settings::{Settings, Terms};

/// The most parts to try before any other engine: each part has its own launches, and a small batch leaves the device
/// idle.
const MAX_PARTS_FIRST: usize = 8;
/// Operations that keep any device busy for far longer than a launch takes. Parts of this size may be more than
/// `MAX_PARTS_FIRST`.
const LARGE_PART_OPERATIONS: f64 = 1e10;

/// The first configuration that fits and is not known to be inaccurate, in this order:
///
/// ```text
/// the framework's engine       in a few parts, or in large ones
/// every other proposed engine  whole, or in a few parts, in the order of the library's preference
/// the framework's engine       in any number of parts
/// legacy algorithms            whole
/// every other proposed engine  in any number of parts
/// ```
///
/// # Errors
/// [`Error::Backend`] if cuDNN cannot be queried.
pub(super) fn shrink(
    question: &Question,
    terms: Terms,
    errors: &Errors,
    settings: &Settings,
    session: &mut Session,
) -> Result<Option<Configuration>, Error> {
    let (problem, own) = (&question.problem, &question.chosen.algorithm);
    let batch = problem.batch();
    let most = if terms.micro_batches() == Sizes::Undivided { 1 } else { batch };
    let few = most.min(MAX_PARTS_FIRST);
    let large = large_parts(problem).min(most).max(few);
    let admission = admission(question, settings);
    let inaccurate = errors.inaccurate(question, terms, notes(question, session));
    let is_usable =
        |algorithm: &Algorithm, notes: Notes| admission.admits(notes) && !inaccurate.contains(algorithm, notes);
    let own_is_usable = is_usable(own, question.chosen.notes);
    let mut search = Search { question, limit: terms.limit.bytes(), session };
    if own_is_usable && let Some(found) = search.fewest_parts(own, 2..=large)? {
        return Ok(Some(found));
    }
    let offers = search.session.guest.offers(problem)?.into_iter();
    let usable = offers.filter(|offer| is_usable(&offer.algorithm, offer.notes) && offer.workspace.is_ok());
    let others = usable.map(|offer| offer.algorithm).filter(|algorithm| algorithm != own);
    let (legacy, engines): (Vec<_>, Vec<_>) = others.partition(is_legacy);
    for engine in &engines {
        if let Some(found) = search.fewest_parts(engine, 1..=few)? {
            return Ok(Some(found));
        }
    }
    if own_is_usable && let Some(found) = search.fewest_parts(own, large + 1..=most)? {
        return Ok(Some(found));
    }
    for (algorithms, parts) in [(legacy, 1..=1), (engines, MAX_PARTS_FIRST + 1..=most)] {
        for algorithm in &algorithms {
            if let Some(found) = search.fewest_parts(algorithm, parts.clone())? {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

/// How many parts of a convolution are large.
fn large_parts(problem: &Problem) -> usize {
    (problem.flops() / LARGE_PART_OPERATIONS) as usize
}

fn is_legacy(algorithm: &Algorithm) -> bool {
    algorithm.name().starts_with("legacy:")
}

/// One problem's divisions.
struct Search<'a> {
    question: &'a Question,
    limit: Bytes,
    session: &'a mut Session,
}

impl Search<'_> {
    /// Finds the fewest equal parts that fit for one algorithm: tries every count up to a few, then doubles it.
    fn fewest_parts(
        &mut self,
        algorithm: &Algorithm,
        parts: RangeInclusive<usize>,
    ) -> Result<Option<Configuration>, Error> {
        let (mut count, most) = (*parts.start(), *parts.end());
        while count <= most {
            if let Some(found) = self.of_sizes(algorithm, &equal(self.question.problem.batch(), count))? {
                return Ok(Some(found));
            }
            count = match count {
                few if few < MAX_PARTS_FIRST => few + 1,
                many if many < most => (many * 2).min(most),
                last => last + 1,
            };
        }
        Ok(None)
    }

    /// The configuration of these micro-batches, if it fits and can be set up.
    fn of_sizes(&mut self, algorithm: &Algorithm, sizes: &[usize]) -> Result<Option<Configuration>, Error> {
        let problem = &self.question.problem;
        let mut workspaces: Vec<(usize, Bytes)> = Vec::new();
        for &size in sizes {
            if workspaces.last().is_none_or(|(known, _)| *known != size) {
                let part = problem.with_batch(size)?;
                let Some(bytes) = self.session.guest.workspace(&part, algorithm)? else { return Ok(None) };
                workspaces.push((size, bytes));
            }
        }
        let part = |&size: &usize| {
            let workspace = workspaces.iter().find(|(known, _)| *known == size);
            let workspace = workspace.map_or(Bytes::UNLIMITED, |(_, bytes)| *bytes);
            Candidate { micro_batch: size, algorithm: algorithm.clone(), time: Nanos::ZERO, workspace }
        };
        let cost = DivisionCost { time: Nanos::ZERO, workspace: Guest::division_workspace(problem) };
        let configuration = Configuration::new(sizes.iter().map(part).collect(), cost);
        if configuration.workspace() > self.limit {
            return Ok(None);
        }
        let set_up = self.session.program(problem, &configuration, self.question.scale(), self.question.base);
        Ok(set_up.is_ok().then_some(configuration))
    }
}

/// `batch` samples in `count` parts that differ by one at most.
fn equal(batch: usize, count: usize) -> Vec<usize> {
    (0..count).map(|place| batch / count + usize::from(place < batch % count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_calls_have_many_large_parts() {
        for (problem, parts) in [
            ("backward-filter n256 c128 h112 w112 k128 r3 s3 pad1 f32", 94),
            ("forward n64 c64 h56 w56 k64 r3 s3 pad1 f32", 1),
            ("forward n8 c8 h8 w8 k8 r3 s3 pad1 f32", 0),
        ] {
            assert_eq!(large_parts(&problem.parse().unwrap()), parts, "{problem}");
        }
    }

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
