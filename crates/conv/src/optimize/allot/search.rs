//! The search: kernel by kernel, computes all sums of (weight, gain) that can still lead to a better answer.
//!
//! ```text
//! sums so far   (0, 0)  (4, 7)
//! next kernel   (0, 0)  (3, 6)
//! their sums    (0, 0)  (3, 6)  (4, 7)  (7, 13)    dominated and hopeless sums are dropped
//! ```
//!
//! The kernels not yet merged have a separate relaxation, a concave line over the remaining capacity. One walk along that line, in parallel with the
//! sums by rising weight, gives each sum's bound and, with whole segments only, a complete answer. So every sum is completed immediately, and the
//! best answer improves quickly. Kernels whose second-best point is closest to their best come first: their choice is uncertain, while the others
//! seldom leave their best point.

use std::cmp::Reverse;
use std::fmt;
use std::time::Instant;

use super::fix::second_best;
use super::knapsack::{Answer, Knapsack};
use super::relax::{Curve, Segment, segments};

/// Why a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The answer is proven optimal.
    Proven,
    /// The search reached the limit on states; the answer is the best found.
    StateLimit,
    /// The search reached the time limit; the answer is the best found.
    TimeLimit,
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Stop::Proven => "proven best",
            Stop::StateLimit => "ended at its limit of states",
            Stop::TimeLimit => "ended at its time limit",
        })
    }
}

/// Speed-ups of the search, all on by default. They affect the search time, not the least time found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speedups {
    /// Let kernels with equal fronts share one front and search them next to each other, so that exchanging their
    /// points gives equal sums, which merge.
    pub group: bool,
    /// Improve the first answer by single exchanges, so that later stages can drop more.
    pub exchange: bool,
    /// Drop points that cannot be part of a better answer before the search.
    pub fix: bool,
    /// Drop partial sums whose relaxation does not beat the best answer.
    pub bound: bool,
    /// Drop partial sums that others beat in both workspace and time.
    pub dominance: bool,
    /// Run narrow searches before the full one, because a better answer makes the full search far smaller.
    pub beam: bool,
}

impl Speedups {
    /// Everything off: plain enumeration.
    pub const NONE: Speedups =
        Speedups { group: false, exchange: false, fix: false, bound: false, dominance: false, beam: false };
}

impl Default for Speedups {
    fn default() -> Speedups {
        Speedups { group: true, exchange: true, fix: true, bound: true, dominance: true, beam: true }
    }
}

pub(super) struct Limits {
    /// The most sums to keep per kernel; beyond it, the sums with the least bounds are dropped.
    pub width: usize,
    /// The most sums to keep in total.
    pub states: usize,
    /// The deadline.
    pub deadline: Instant,
    /// Which speed-ups to use.
    pub speedups: Speedups,
}

/// One sum over the kernels merged so far.
#[derive(Clone, Copy)]
struct Sum {
    weight: u64,
    gain: u64,
    /// Upper bound on the gain of any completion.
    bound: u64,
    last: Origin,
}

/// The origin of a sum: the index of the previous sum in the trace, and the point of its last kernel.
#[derive(Clone, Copy)]
struct Origin {
    before: u32,
    point: u32,
}

/// The beginning of every trace: the sum over no kernels.
const START: Origin = Origin { before: 0, point: 0 };

/// The best completed sum: its last step, the number of kernels merged before that step, and the number of whole
/// segments that follow.
struct Completion {
    last: Origin,
    level: usize,
    whole: usize,
}

/// Searches `core` for more than the gain of `answer`, and improves it.
///
/// Returns an upper bound on the gain of any choice, equal to the answer's if that is proven best, and why the pass
/// ended (`Proven` even if the width dropped some sums).
pub(super) fn search(core: &Knapsack, slope: (u64, u64), answer: &mut Answer, limits: &Limits) -> (u64, Stop) {
    let mut pass = Pass::new(core, slope, answer.gain, limits);
    let mut left_out = 0;
    let mut stop = Stop::Proven;
    let mut sums = vec![Sum { weight: 0, gain: 0, bound: u64::MAX, last: START }];
    for level in 0..pass.order.len() {
        match pass.merge(level, &sums) {
            Ok(next) => sums = next,
            Err(why) => {
                stop = why;
                left_out = sums.iter().map(|sum| sum.bound).fold(left_out, u64::max);
                break;
            }
        }
        left_out = left_out.max(pass.prune(&mut sums));
        if sums.is_empty() {
            break;
        }
        pass.trace.extend(sums.iter().map(|sum| sum.last));
    }
    if let Some(better) = pass.answer() {
        *answer = better;
    }
    (left_out.max(answer.gain), stop)
}

struct Pass<'a> {
    core: &'a Knapsack,
    limits: &'a Limits,
    /// The kernels in the order in which the search merges them.
    order: Vec<usize>,
    /// The position of each kernel in that order.
    place: Vec<usize>,
    /// Least weight and its gain for the kernels from each position on.
    least: Vec<(u64, u64)>,
    /// The hulls of all kernels, steepest first.
    segments: Vec<Segment>,
    /// The last step of every sum that was kept; the latest kernel's steps are at the end.
    trace: Vec<Origin>,
    best: u64,
    found: Option<Completion>,
}

impl<'a> Pass<'a> {
    fn new(core: &'a Knapsack, slope: (u64, u64), best: u64, limits: &'a Limits) -> Pass<'a> {
        let shortfall: Vec<_> = core.fronts.iter().map(|front| second_best(front, slope)).collect();
        let mut order: Vec<usize> = (0..core.kernels.len()).collect();
        // Kernels with a single remaining point have nothing to decide and go last.
        order.sort_by_key(|&kernel| {
            let front = core.kernels[kernel];
            (shortfall[front].is_none(), shortfall[front], front)
        });
        let mut place = vec![0; order.len()];
        order.iter().enumerate().for_each(|(at, &kernel)| place[kernel] = at);
        let mut least = vec![(0, 0)];
        for &kernel in order.iter().rev() {
            let (first, (weight, gain)) = (core.front(kernel)[0], least[least.len() - 1]);
            least.push((first.weight.saturating_add(weight), first.gain + gain));
        }
        least.reverse();
        Pass { segments: segments(core), core, limits, order, place, least, trace: vec![START], best, found: None }
    }

    /// The segments of the kernels that come after `level`.
    fn rest(&self, level: usize) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(move |segment| self.place[segment.kernel] > level)
    }

    /// Combines every sum with every point of the kernel at `level`, except sums that do not fit or cannot win.
    fn merge(&mut self, level: usize, sums: &[Sum]) -> Result<Vec<Sum>, Stop> {
        let Limits { states, deadline, speedups, .. } = *self.limits;
        let curve = Curve::new(self.least[level + 1], self.rest(level), self.core.capacity);
        let first = (self.trace.len() - sums.len()) as u32;
        let mut next = Vec::new();
        for (point, taken) in (0..).zip(self.core.front(self.order[level])) {
            let mut whole = usize::MAX;
            for (before, sum) in (first..).zip(sums) {
                let (weight, gain) = (sum.weight.saturating_add(taken.weight), sum.gain + taken.gain);
                // Sums come by rising weight: once one does not fit, later ones do not either.
                let Some(left) = self.core.capacity.checked_sub(weight) else { break };
                let Some(fit) = curve.whole(left, whole) else { break };
                whole = fit;
                let last = Origin { before, point };
                if gain + curve.gain(whole) > self.best {
                    self.best = gain + curve.gain(whole);
                    self.found = Some(Completion { last, level, whole });
                }
                let bound = gain + curve.bound(left, whole);
                if bound > self.best || !speedups.bound {
                    next.push(Sum { weight, gain, bound, last });
                }
            }
            if self.trace.len() + next.len() > states.min(u32::MAX as usize) {
                return Err(Stop::StateLimit);
            }
            if Instant::now() > deadline {
                return Err(Stop::TimeLimit);
            }
        }
        Ok(next)
    }

    /// Sorts sums by weight. Drops sums that others beat or that cannot beat the latest answer, then sums beyond the width. Returns the largest bound
    /// of the latter.
    fn prune(&self, sums: &mut Vec<Sum>) -> u64 {
        let speedups = self.limits.speedups;
        sums.sort_by_key(|sum| (sum.weight, Reverse(sum.gain)));
        let mut most = None;
        sums.retain(|sum| {
            if (speedups.bound && sum.bound <= self.best) || (speedups.dominance && Some(sum.gain) <= most) {
                return false;
            }
            most = most.max(Some(sum.gain));
            true
        });
        let width = self.limits.width;
        if sums.len() <= width {
            return 0;
        }
        sums.select_nth_unstable_by_key(width, |sum| (Reverse(sum.bound), sum.weight, sum.gain));
        let left_out = sums.drain(width..).map(|sum| sum.bound).max().unwrap_or_default();
        sums.sort_by_key(|sum| sum.weight);
        left_out
    }

    /// the best completed sum, point by point; `None` if nothing better was found.
    fn answer(&self) -> Option<Answer> {
        let Completion { last, level, whole } = self.found.as_ref()?;
        let mut choice: Vec<_> = (0..self.core.kernels.len()).map(|kernel| self.core.front(kernel)[0]).collect();
        let mut step = *last;
        for &kernel in self.order[..=*level].iter().rev() {
            choice[kernel] = self.core.front(kernel)[step.point as usize];
            step = self.trace[step.before as usize];
        }
        for segment in self.rest(*level).take(*whole) {
            choice[segment.kernel] = segment.to;
        }
        Some(Answer::new(choice))
    }
}
