//! The time that a candidate must beat to be useful, given the candidates known so far.
//!
//! A candidate of s samples that takes t is part of a faster division of all B samples only if
//!
//! ```text
//! t < T - (B - s) r        T  time of the fastest division known, or of the fastest whole mini-batch
//!                          r  least time per sample known: the other samples take at least that
//! ```
//!
//! Under a smaller limit, T and r come from the candidates within that limit. A candidate competes under every limit from its workspace up, so its
//! bound is the largest over those limits. A slow candidate that needs less workspace than the fast ones therefore has a chance, and is measured with
//! care. Under any limit it must also beat the fastest candidate of its size with no more workspace. This is the only bound for the whole mini-batch,
//! so that the best undivided configuration is known exactly.
//!
//! A bound only allows less careful measurements; it never excludes candidates, because later measurements may lower r, and other limits,
//! mini-batches and rules for algorithms may use the cached measurements. [`candidates`] measures a candidate again if it becomes part of an answer.
//!
//! [`candidates`]: super::candidates

use std::collections::HashMap;

use tightfit_conv::optimize::front;
use tightfit_conv::{Candidate, DivisionCost, Problem};
use tightfit_units::{Bytes, Nanos};

use crate::Rivals;

/// The bounds of one kernel's candidates.
pub(super) struct Bounds {
    problem: Problem,
    known: Vec<Candidate>,
    by_size: HashMap<usize, Vec<(Bytes, Nanos)>>,
    levels: Vec<Level>,
    /// The number of candidates that `levels` takes into account.
    leveled: usize,
}

/// The best results of the candidates within one workspace.
struct Level {
    workspace: Bytes,
    /// Time of the whole mini-batch, divided or not; `None` if no sizes add up.
    whole: Option<Nanos>,
    /// Least nanoseconds per sample.
    per_sample: f64,
}

impl Bounds {
    /// The bounds for `problem` without any known candidates.
    pub(super) fn new(problem: &Problem) -> Bounds {
        let (known, by_size, levels) = (Vec::new(), HashMap::new(), Vec::new());
        Bounds { problem: *problem, known, by_size, levels, leveled: 0 }
    }

    pub(super) fn add(&mut self, candidate: &Candidate) {
        self.by_size.entry(candidate.micro_batch).or_default().push((candidate.workspace, candidate.time));
        self.known.push(candidate.clone());
    }

    /// The times that a candidate of this size and workspace competes with.
    ///
    /// - Cost: a front each time the number of known candidates has grown by a tenth.
    pub(super) fn rivals(&mut self, size: usize, workspace: Bytes) -> Rivals {
        let same = self.by_size.get(&size).map_or(&[][..], Vec::as_slice);
        let best = same.iter().map(|&(_, time)| time).min();
        let smaller = same.iter().filter(|(bytes, _)| *bytes <= workspace).map(|&(_, time)| time).min();
        let divided = if size < self.problem.batch() { self.in_divisions(size, workspace) } else { None };
        Rivals { best, bound: smaller.into_iter().chain(divided).min() }
    }

    /// The bound from whole divisions; `None` if no sizes add up within the workspace.
    fn in_divisions(&mut self, size: usize, workspace: Bytes) -> Option<Nanos> {
        // A few more candidates hardly change the result.
        if self.known.len() * 10 > self.leveled * 11 {
            self.levels = self.levels();
            self.leveled = self.known.len();
        }
        let first = self.levels.partition_point(|level| level.workspace <= workspace).checked_sub(1)?;
        let others = (self.problem.batch() - size) as f64;
        let mut bound: f64 = 0.0;
        for level in &self.levels[first..] {
            bound = bound.max(level.whole?.0 as f64 - others * level.per_sample);
        }
        Some(Nanos(bound.round() as u64))
    }

    fn levels(&self) -> Vec<Level> {
        let mut rising: Vec<(Bytes, f64)> =
            self.known.iter().map(|c| (c.workspace, c.time.0 as f64 / c.micro_batch as f64)).collect();
        rising.sort_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.total_cmp(&b.1)));
        let points = front(&self.problem, &self.known, Bytes::UNLIMITED, DivisionCost::default()).unwrap_or_default();
        let mut per_sample = f64::INFINITY;
        let level = |same: &[(Bytes, f64)]| {
            let workspace = same[0].0;
            per_sample = per_sample.min(same[0].1);
            let whole = points.iter().rfind(|point| point.workspace() <= workspace).map(|point| point.time());
            Level { workspace, whole, per_sample }
        };
        rising.chunk_by(|a, b| a.0 == b.0).map(level).collect()
    }
}

#[cfg(test)]
mod tests {
    use tightfit_conv::Algorithm;

    use super::*;

    /// Bounds of 12 samples, of candidates given by size, time and workspace.
    fn bounds(rows: &[(usize, u64, u64)]) -> Bounds {
        let problem = "forward n12 c3 h8 w8 k4 r3 s3 f32".parse().unwrap();
        let mut bounds = Bounds::new(&problem);
        for &(micro_batch, time, workspace) in rows {
            let algorithm = Algorithm::new("a");
            bounds.add(&Candidate { micro_batch, algorithm, time: Nanos(time), workspace: Bytes(workspace) });
        }
        bounds
    }

    fn bound(rows: &[(usize, u64, u64)], size: usize, workspace: u64) -> Option<u64> {
        bounds(rows).rivals(size, Bytes(workspace)).bound.map(|bound| bound.0)
    }

    #[test]
    fn the_best_division_is_scaled_by_samples() {
        assert_eq!(bound(&[(4, 40, 0)], 6, 0), Some(60));
        // Undivided counts as well.
        assert_eq!(bound(&[(12, 60, 0)], 6, 0), Some(30));
    }

    #[test]
    fn a_remainder_may_be_slower_per_sample() {
        // 12 samples take 120, but two times 5 only 50 of them.
        assert_eq!(bound(&[(4, 40, 0), (5, 25, 0)], 2, 0), Some(70));
    }

    #[test]
    fn only_rivals_within_the_workspace_count() {
        let rows = [(4, 40, 0), (4, 10, 8)];
        assert_eq!(bound(&rows, 4, 8), Some(10));
        assert_eq!(bound(&rows, 4, 7), Some(40));
        assert_eq!(bound(&rows, 3, 7), Some(30));
        // No sizes add up without workspace, although they do with it.
        assert_eq!(bound(&[(5, 5, 0), (4, 10, 8)], 3, 7), None);
        assert_eq!(bound(&[(4, 10, 8)], 4, 7), None);
        assert_eq!(bounds(&rows).rivals(4, Bytes(0)).best, Some(Nanos(10)), "the best of its size in any workspace");
    }

    #[test]
    fn larger_limits_count_if_they_leave_more_room() {
        // Within 8 bytes, 5 samples are fast but leave a remainder of 2 without a fast candidate.
        assert_eq!(bound(&[(4, 40, 0), (5, 5, 8)], 2, 0), Some(120 - 10));
    }

    #[test]
    fn the_whole_mini_batch_competes_only_with_its_size() {
        assert_eq!(bound(&[(4, 10, 0)], 12, 0), None);
        assert_eq!(bound(&[(4, 10, 0), (12, 90, 0), (12, 50, 8)], 12, 0), Some(90));
    }
}
