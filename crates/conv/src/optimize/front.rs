//! The Pareto front of one kernel: the configurations that no other beats in both time and workspace (the paper's
//! "desirable set").
//!
//! ```text
//! time
//!  |  a                 a  gemm, no workspace
//!  |      b             b  4 x 64 fft
//!  |          x         x  beaten by c: slower in the same workspace
//!  |          c    d    c  2 x 128 fft      d  256 fft
//!  +------------------- workspace
//! ```
//!
//! A configuration's workspace is the largest of its candidates' workspaces, so running WR with each candidate's workspace as the limit finds every
//! point. Rising limits only add candidates, and [`Sums`] adds them one by one, so the whole front costs no more than one WR over all candidates.

use tightfit_units::{Bytes, Error, Nanos};

use super::divide::{Sums, is_whole, parts, too_little};
use crate::{Candidate, Configuration, DivisionCost, Problem};

/// The configurations within `limit` that no other beats in both time and workspace, by rising workspace and falling time. Of equal points, only the
/// one with the fewest micro-batches remains.
///
/// The (time, workspace) points equal the points of the paper's recurrence over sets of configurations, at far less cost. (The paper's pruning as
/// printed would remove every point, because none beats itself; one of several equal points must stay.)
///
/// - Cost: O(candidates × mini-batch).
/// - Source: Oyama et al. 2018, III.C.
///
/// # Errors
/// [`Error::OverLimit`] or [`Error::NotProfiled`], as in [`divide`](super::divide), if the front is empty.
pub fn front(
    problem: &Problem,
    candidates: &[Candidate],
    limit: Bytes,
    cost: DivisionCost,
) -> Result<Vec<Configuration>, Error> {
    let whole = |candidate: &&Candidate| is_whole(problem, candidate) && candidate.workspace <= limit;
    let mut found: Vec<Configuration> = candidates
        .iter()
        .filter(whole)
        .map(|candidate| Configuration::new(vec![candidate.clone()], DivisionCost::default()))
        .collect();
    found.sort_by(|a, b| a.parts().cmp(b.parts()));

    let mut rising: Vec<&Candidate> = parts(problem, candidates, limit, cost).collect();
    rising.sort_by(|a, b| a.workspace.cmp(&b.workspace).then_with(|| a.cmp(b)));
    let mut sums = Sums::new(problem.batch());
    let mut fastest = None;
    for same in rising.chunk_by(|a, b| a.workspace == b.workspace) {
        same.iter().for_each(|candidate| sums.add(candidate));
        if sums.time().is_some_and(|time| fastest.is_none_or(|fastest| time < fastest)) {
            fastest = sums.time();
            found.extend(sums.configuration(cost));
        }
    }

    found.sort_by_cached_key(|found| {
        (found.workspace(), found.time(), found.parts().iter().map(Candidate::calls).sum::<usize>())
    });
    let mut fastest = None;
    found.retain(|point| {
        let faster = fastest.is_none_or(|fastest| point.time() < fastest);
        if faster {
            fastest = Some(point.time());
        }
        faster
    });
    if found.is_empty() { Err(too_little(problem, candidates, limit, cost)) } else { Ok(found) }
}

/// The (workspace, time) points of configurations, the input of [`allot`](super::allot()).
pub fn points(front: &[Configuration]) -> Vec<(Bytes, Nanos)> {
    front.iter().map(|point| (point.workspace(), point.time())).collect()
}
