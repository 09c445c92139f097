//! Finds the candidates of a whole network's kernels: each distinct problem once, over all available devices.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tightfit_conv::candidate::Candidates;
use tightfit_conv::optimize::divide;
use tightfit_conv::{Backend, Candidate, Problem};
use tightfit_units::{Bytes, Error, Nanos};

use super::ahead::ahead;
use super::devices::each_task;
use super::env::Env;
use super::fit::Screen;
use super::parts::add_parts;
use super::scope::Scope;
use super::sizes::{Sizes, candidates};
use super::slices::{add_slices, least_workspace};
use crate::{Admission, Known, Profiler, Spent};

/// The candidates of every distinct problem, and the cost of finding them.
#[derive(Debug, Default)]
pub struct Survey {
    /// By problem at its mini-batch.
    pub candidates: HashMap<Problem, Candidates>,
    /// Time, measurements, and skipped candidates.
    pub spent: Spent,
}

/// Surveys `problems`, which should be distinct. The backends share their measurements, so their devices must be of the
/// same model (Oyama et al. 2018, III.B: parallel evaluation). Sizes that are known in
/// advance are shared out one by one; after that, each free device takes the next problem, largest first.
///
/// # Errors
/// [`Error::OverLimit`] with the least sufficient workspace if nothing fits the largest limit for some kernel;
/// [`Error::NotProfiled`] if every candidate that fits failed; otherwise the first fatal error of any device. Completed
/// measurements are in the cache.
pub fn survey(
    problems: &[Problem],
    scope: &Scope,
    backends: &mut [Box<dyn Backend>],
    env: &Env<'_>,
) -> Result<Survey, Error> {
    let order = by_work(problems);
    let all: f64 = order.iter().map(|problem| problem.flops()).sum();
    // The numerical class to stay in is only known once the whole mini-batch was measured.
    let (known, mut spent) = match backends {
        [_, _, ..] if !scope.exact_class => ahead(&order, scope, backends, env)?,
        _ => (Known::default(), Spent::default()),
    };
    let found = Mutex::new((HashMap::new(), 0.0));
    let (_, rest) = each_task(
        backends,
        env,
        order.len(),
        |profiler| profiler.know(&known),
        |profiler, place| {
            let problem = order[place];
            env.progress.begin(problem, place, order.len());
            let candidates = survey_one(problem, scope, profiler)?;
            let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
            found.0.insert(*problem, candidates);
            found.1 += problem.flops();
            env.progress.done(found.1 / all);
            Ok(())
        },
    )?;
    spent.add(rest);
    let (candidates, _) = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Survey { candidates, spent })
}

/// The problems in survey order: most work first.
pub(super) fn by_work(problems: &[Problem]) -> Vec<&Problem> {
    let mut order: Vec<&Problem> = problems.iter().collect();
    order.sort_by(|a, b| b.flops().total_cmp(&a.flops()).then_with(|| a.cmp(b)));
    order
}

/// The candidates of one problem.
pub(super) fn survey_one(problem: &Problem, scope: &Scope, profiler: &mut Profiler<'_>) -> Result<Candidates, Error> {
    let limit = scope.limits.iter().copied().max().unwrap_or_default();
    let mut admission = Admission { deterministic: scope.deterministic, ..Admission::default() };
    profiler.admit(admission);
    if scope.exact_class {
        let whole = candidates(Sizes::Undivided, problem, &[limit], profiler)?.candidates;
        if let Some(best) = whole.iter().min_by_key(|candidate| (candidate.time, candidate.workspace)) {
            let offers = profiler.offers(problem)?;
            admission.class =
                offers.iter().find(|offer| offer.algorithm == best.algorithm).map(|offer| offer.notes.class());
            profiler.admit(admission);
        }
    }
    let sizes = scope.micro_batches();
    let mut found = candidates(sizes, problem, &scope.limits, profiler)?;
    if let Some(limit) = scope.baseline {
        let undivided = candidates(Sizes::Undivided, problem, &[limit], profiler)?;
        found.candidates.extend(undivided.candidates);
        found.candidates.sort();
        found.candidates.dedup();
    }
    if let (Sizes::Fit | Sizes::PowerOfTwo, Some(parts)) = (sizes, scope.parts.get(problem)) {
        add_parts(problem, parts, &scope.limits, profiler, &mut found)?;
    }
    if scope.slices() {
        add_slices(problem, &scope.limits, scope.divide, Screen::Twice, profiler, &mut found)?;
    }
    let error = match divide(problem, &found.candidates, limit, found.cost) {
        Ok(_) => return Ok(found),
        Err(Error::NotProfiled { .. }) if found.candidates.is_empty() => {
            let least = least_that_would_fit(sizes, problem, limit, &found, profiler)?;
            let reasons = reasons(problem, profiler)?;
            least.filter(Error::is_over_limit).unwrap_or(Error::NotProfiled {
                problem: problem.to_string(),
                batch: problem.batch(),
                reasons,
            })
        }
        Err(error) => least_that_would_fit(sizes, problem, limit, &found, profiler)?.unwrap_or(error),
    };
    match error {
        // Slices of the least size may fit although no micro-batch does.
        Error::OverLimit { needed, limit, .. } if scope.slices() => {
            let sliced = least_workspace(problem, scope.divide, profiler)?;
            let sliced = sliced.map(|workspace| workspace + found.cost.workspace).filter(|least| *least > limit);
            Err(Error::OverLimit {
                problem: problem.to_string(),
                needed: sliced.map_or(needed, |least| least.min(needed)),
                limit,
            })
        }
        error => Err(error),
    }
}

/// The reason why nothing could be measured: the algorithms' refusals at the whole mini-batch, and the failures of candidates.
fn reasons(problem: &Problem, profiler: &mut Profiler<'_>) -> Result<Vec<String>, Error> {
    const MOST: usize = 3;
    let refusals = profiler.offers(problem)?.iter().filter_map(|offer| offer.workspace.clone().err());
    let mut reasons: Vec<String> = refusals.collect();
    let shape = problem.shape();
    let failures = profiler.spent().skipped.iter().filter(|skipped| skipped.problem.shape() == shape);
    reasons.extend(failures.map(|skipped| skipped.reason.clone()));
    reasons.sort();
    reasons.dedup();
    reasons.truncate(MOST);
    Ok(reasons)
}

/// The error with the least sufficient workspace for a kernel that does not fit `limit`. Candidates over the limit
/// never ran, so it uses only workspaces.
fn least_that_would_fit(
    sizes: Sizes,
    problem: &Problem,
    limit: Bytes,
    found: &Candidates,
    profiler: &mut Profiler<'_>,
) -> Result<Option<Error>, Error> {
    let known = profiler.sizes(problem);
    let mut untimed = Vec::new();
    let sizes = sizes.up_to(problem.batch()).or_else(|| Sizes::PowerOfTwo.up_to(problem.batch()));
    for size in sizes.unwrap_or_default() {
        if known.binary_search(&size).is_err() {
            continue;
        }
        for offer in profiler.offers(&problem.with_batch(size)?)? {
            if let Ok(workspace) = offer.workspace {
                let algorithm = offer.algorithm.clone();
                untimed.push(Candidate { micro_batch: size, algorithm, time: Nanos::ZERO, workspace });
            }
        }
    }
    Ok(divide(problem, &untimed, limit, found.cost).err())
}
