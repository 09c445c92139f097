//! Candidates from the cache alone. Nothing is measured, so the only cost is reading a file.

use tightfit_conv::optimize::{divide, front};
use tightfit_conv::{Candidate, Configuration, DivisionCost, Measurement, Operation};
use tightfit_cuda::Guest;
use tightfit_units::Bytes;

use super::chooser::{Chooser, Knowledge, admission};
use crate::kernel::Question;
use crate::settings::{Limit, Settings, Terms};

/// The cache's answer.
pub(super) struct Lookup {
    /// The part that can be used.
    pub known: Knowledge,
    /// Whether entries were ignored because the library now asks for other workspaces.
    pub is_stale: bool,
}

impl Chooser {
    /// The cache's answer to a question on these terms, if there is a cache with an entry.
    ///
    /// Asks the library only for the workspaces of candidates that would be chosen.
    pub(super) fn look_up(
        &self,
        question: &Question,
        terms: Terms,
        settings: &Settings,
        guest: &mut Guest,
    ) -> Option<Lookup> {
        let (cache, limit) = (self.cache.open(settings, terms.tune)?, terms.limit.bytes());
        let found = self.cache.read(cache.measurements(guest.device(), &question.problem))?;
        let problem = &question.problem;
        let admission = admission(question, settings);
        let sizes = terms.sizes.up_to(problem.batch());
        let may_be_used = |measurement: &&Measurement| {
            let is_size = sizes.as_ref().is_none_or(|sizes| sizes.contains(&measurement.micro_batch));
            measurement.workspace <= limit && is_size && admission.admits(measurement.notes)
        };
        let mut candidates: Vec<_> = found.iter().filter(may_be_used).map(Measurement::candidate).collect();
        let is_theirs = |measurement: &&Measurement| {
            measurement.micro_batch == problem.batch() && measurement.algorithm == question.chosen.algorithm
        };
        let framework_time = found.iter().find(is_theirs).map(|measurement| measurement.time);
        // For half-precision gradients, dividing cannot be judged without the cost of adding up.
        let cost = match self.cache.read(cache.division_cost(guest.device(), problem)).flatten() {
            Some(cost) => cost,
            None if problem.operation() != Operation::BackwardFilter => DivisionCost::default(),
            None if Guest::division_workspace(problem) == Bytes::ZERO => DivisionCost::default(),
            None => DivisionCost::NEVER,
        };
        let kept = candidates.len();
        let chosen = |candidates: &[Candidate]| -> Vec<Configuration> {
            match terms.limit {
                Limit::PerKernel(_) | Limit::Auto => divide(problem, candidates, limit, cost).into_iter().collect(),
                Limit::Total(_) => front(problem, candidates, limit, cost).unwrap_or_default(),
            }
        };
        leave_out_stale(question, &mut candidates, chosen, guest);
        self.spending.add_cached(candidates.len());
        let is_stale = candidates.len() < kept;
        let known = Knowledge { candidates, cost, framework_time };
        (!known.candidates.is_empty() || is_stale).then_some(Lookup { known, is_stale })
    }
}

/// Drops candidates whose workspace differs from the library's answer now, until none of them would be chosen.
/// Each round drops at least one, or is the last.
fn leave_out_stale(
    question: &Question,
    candidates: &mut Vec<Candidate>,
    chosen: impl Fn(&[Candidate]) -> Vec<Configuration>,
    guest: &mut Guest,
) {
    let mut asked: Vec<(Candidate, bool)> = Vec::new();
    loop {
        let before = candidates.len();
        for part in chosen(candidates).iter().flat_map(Configuration::parts) {
            if asked.iter().any(|(known, _)| known == part) {
                continue;
            }
            let today =
                question.problem.with_batch(part.micro_batch).and_then(|p| guest.workspace(&p, &part.algorithm));
            // If the library cannot be queried, setting the candidate up decides.
            let is_stale = today.is_ok_and(|today| today != Some(part.workspace));
            asked.push((part.clone(), is_stale));
        }
        candidates.retain(|candidate| !asked.iter().any(|(known, is_stale)| *is_stale && known == candidate));
        if candidates.len() == before {
            return;
        }
    }
}
