//! WR: the fastest division of one mini-batch such that every micro-batch fits a workspace limit.
//!
//! Micro-batches run one after another, so times add up and the order does not matter: choosing them is an unbounded
//! knapsack over the samples. Candidates are added one by one, and each improves every sum it can be part of:
//!
//! ```text
//! samples       1    2    3    4    5    6
//! with 1 in 5   5   10   15   20   25   30
//! + 3 in 9      5   10    9   14   19   18     6 = 3 + 3
//! + 4 in 10     5   10    9   10   15   18     5 = 4 + 1, and 6 stays: 4 + 1 + 1 takes 20
//! ```

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use tightfit_units::{Bytes, Error, Nanos};

use super::split::check_stop;
use crate::{Candidate, Configuration, DivisionCost, Problem};

/// The fastest candidate for the whole mini-batch within the limit, if any; among equally fast ones, the one with the
/// least workspace.
pub fn undivided(problem: &Problem, candidates: &[Candidate], limit: Bytes) -> Option<Configuration> {
    candidates
        .iter()
        .filter(|candidate| is_whole(problem, candidate) && candidate.workspace <= limit)
        .min_by(|a, b| faster(a, b))
        .map(|candidate| Configuration::new(vec![candidate.clone()], DivisionCost::default()))
}

/// Whether a candidate computes the whole mini-batch in one call.
pub(super) fn is_whole(problem: &Problem, candidate: &Candidate) -> bool {
    candidate.micro_batch == problem.batch() && candidate.calls() == 1
}

/// Divides the mini-batch of `problem` into micro-batches so that the summed time is minimal and the workspace stays
/// within `limit`.
///
/// The candidates run one after another in one workspace, so the limit applies to each of them, not to their sum. Two
/// or more pay `cost` once: its time, and its bytes on top of the workspace. Among equally fast configurations, the
/// fewest micro-batches win, then the least workspace. The order of the candidates does not matter.
///
/// - Cost: O(candidates + mini-batch × sizes).
/// - Source: Oyama et al. 2018, III.B.
///
/// # Errors
/// [`Error::OverLimit`], with the least workspace of any configuration, if none is within the limit;
/// [`Error::NotProfiled`] if no sizes add up to the mini-batch.
///
/// ```
/// use tightfit_units::{Bytes, Nanos};
/// use tightfit_conv::{Algorithm, Candidate, DivisionCost, Problem, optimize::divide};
/// let problem: Problem = "forward n256 c96 h27 w27 k256 r5 s5 pad2 f32".parse()?;
/// let candidate = |name, micro_batch, us: u64, mib| Candidate {
///     algorithm: Algorithm::new(name), micro_batch, time: Nanos(us * 1000), workspace: Bytes::mib(mib),
/// };
/// let candidates = [candidate("fft", 256, 2400, 213), candidate("fft", 64, 650, 58), candidate("gemm", 256, 5100, 4)];
/// let divided = divide(&problem, &candidates, Bytes::mib(64), DivisionCost::default())?;
/// assert_eq!(divided.to_string(), "4 x 64 fft");
/// # Ok::<(), tightfit_units::Error>(())
/// ```
pub fn divide(
    problem: &Problem,
    candidates: &[Candidate],
    limit: Bytes,
    cost: DivisionCost,
) -> Result<Configuration, Error> {
    let whole = undivided(problem, candidates, limit);
    let mut fastest: Vec<Option<&Candidate>> = vec![None; problem.batch() + 1];
    for candidate in parts(problem, candidates, limit, cost) {
        let best = &mut fastest[candidate.micro_batch];
        if best.is_none_or(|best| faster(candidate, best).is_lt()) {
            *best = Some(candidate);
        }
    }
    let mut sums = Sums::new(problem.batch());
    fastest.into_iter().flatten().for_each(|candidate| sums.add(candidate));
    match (whole, sums.configuration(cost)) {
        (Some(whole), Some(divided)) => Ok(if divided.time() < whole.time() { divided } else { whole }),
        (Some(only), None) | (None, Some(only)) => Ok(only),
        (None, None) => Err(too_little(problem, candidates, limit, cost)),
    }
}

/// The least time of every batch up to `mini_batch`, divided or not; `None` for batches that no sizes add up to.
///
/// One recurrence covers all batches, so this costs no more than one WR.
///
/// - Cost: O(candidates + mini-batch × sizes).
/// - Source: Oyama et al. 2018, III.B: T(0), T(1), .., T(B).
///
/// # Errors
/// [`Error::Interrupted`] soon after `stop` is set.
pub fn times(
    mini_batch: usize,
    candidates: &[Candidate],
    limit: Bytes,
    cost: DivisionCost,
    stop: &AtomicBool,
) -> Result<Vec<Option<Nanos>>, Error> {
    let mut sums = Sums::new(mini_batch);
    let mut fastest: BTreeMap<usize, &Candidate> = BTreeMap::new();
    let usable = candidates.iter().filter(|candidate| (1..=mini_batch).contains(&candidate.micro_batch));
    for candidate in usable.clone().filter(|candidate| candidate.workspace + cost.workspace <= limit) {
        let best = fastest.entry(candidate.micro_batch).or_insert(candidate);
        if faster(candidate, best).is_lt() {
            *best = candidate;
        }
    }
    for candidate in fastest.into_values() {
        check_stop(stop)?;
        sums.add(candidate);
    }
    let divided = |sum: Option<Sum<'_>>| sum.map(|sum| sum.value.0 + cost.time);
    let mut least: Vec<Option<Nanos>> = sums.best.into_iter().map(divided).collect();
    least[0] = Some(Nanos::ZERO);
    for candidate in usable.filter(|candidate| candidate.workspace <= limit && candidate.calls() == 1) {
        let least = &mut least[candidate.micro_batch];
        *least = Some(least.map_or(candidate.time, |least| least.min(candidate.time)));
    }
    Ok(least)
}

/// The candidates that may be part of a division: smaller than the mini-batch or in slices, and within the limit less
/// the scratch of dividing.
pub(super) fn parts<'a>(
    problem: &Problem,
    candidates: &'a [Candidate],
    limit: Bytes,
    cost: DivisionCost,
) -> impl Iterator<Item = &'a Candidate> + use<'a> {
    let left = limit.0.checked_sub(cost.workspace.0).map(Bytes);
    let batch = problem.batch();
    candidates.iter().filter(move |candidate| {
        let size = candidate.micro_batch;
        let divides = (1..batch).contains(&size) || size == batch && candidate.calls() > 1;
        divides && Some(candidate.workspace) <= left
    })
}

/// The error that explains why no configuration is within the limit.
pub(super) fn too_little(problem: &Problem, candidates: &[Candidate], limit: Bytes, cost: DivisionCost) -> Error {
    let whole = candidates.iter().filter(|candidate| is_whole(problem, candidate));
    let whole = whole.map(|candidate| candidate.workspace).min();
    let mut rising: Vec<_> = parts(problem, candidates, Bytes::UNLIMITED, cost).collect();
    rising.sort_by_key(|candidate| candidate.workspace);
    let mut sums = Sums::new(problem.batch());
    let divided = rising.into_iter().find_map(|candidate| {
        sums.add(candidate);
        sums.time().map(|_| candidate.workspace + cost.workspace)
    });
    match whole.into_iter().chain(divided).min() {
        Some(needed) => Error::OverLimit { problem: problem.to_string(), needed, limit },
        None => Error::NotProfiled { problem: problem.to_string(), batch: problem.batch(), reasons: Vec::new() },
    }
}

/// Orders candidates of one size: the faster first, then the smaller, then by name.
fn faster(a: &Candidate, b: &Candidate) -> Ordering {
    (a.time, a.workspace, &a.algorithm).cmp(&(b.time, b.workspace, &b.algorithm))
}

/// The best sum of candidates for every number of samples up to a mini-batch, over the candidates added so far.
pub(super) struct Sums<'a> {
    /// Indexed by samples; `None` if nothing adds up.
    best: Vec<Option<Sum<'a>>>,
}

#[derive(Clone, Copy)]
struct Sum<'a> {
    /// Compared in this order: less time, then fewer micro-batches, then less workspace.
    value: (Nanos, usize, Bytes),
    /// One of its candidates; the sum without it has the others. The empty sum has none.
    last: Option<&'a Candidate>,
}

impl<'a> Sums<'a> {
    /// Sums of no candidates: zero samples take no time, and nothing else adds up.
    pub(super) fn new(batch: usize) -> Sums<'a> {
        let mut best = vec![None; batch + 1];
        best[0] = Some(Sum { value: (Nanos::ZERO, 0, Bytes::ZERO), last: None });
        Sums { best }
    }

    /// Adds one more candidate, which may be used any number of times.
    ///
    /// Rising order lets a sum contain the candidate repeatedly. A candidate no better than a known sum of its size
    /// cannot improve anything.
    pub(super) fn add(&mut self, candidate: &'a Candidate) {
        let size = candidate.micro_batch;
        for samples in size..self.best.len() {
            let Some(Sum { value: (time, parts, workspace), .. }) = self.best[samples - size] else { continue };
            let value = (time + candidate.time, parts + 1, workspace.max(candidate.workspace));
            if self.best[samples].is_none_or(|best| value < best.value) {
                self.best[samples] = Some(Sum { value, last: Some(candidate) });
            } else if samples == size {
                return;
            }
        }
    }

    /// The least time of the whole mini-batch, without the cost of dividing.
    pub(super) fn time(&self) -> Option<Nanos> {
        self.best.last().copied().flatten().map(|sum| sum.value.0)
    }

    /// The configuration with this least time.
    pub(super) fn configuration(&self, cost: DivisionCost) -> Option<Configuration> {
        let mut samples = self.best.len() - 1;
        self.best[samples]?;
        let mut parts = Vec::new();
        while let Some(candidate) = self.best[samples].and_then(|sum| sum.last) {
            parts.push(candidate.clone());
            samples -= candidate.micro_batch;
        }
        Some(Configuration::new(parts, cost))
    }
}
