//! WD: allots one total workspace to all kernels of a network so that the summed time is least.
//!
//! Each kernel takes one point of its front; this is a multiple-choice knapsack, solved exactly in whole bytes and
//! nanoseconds. Each stage has its own file:
//!
//! ```text
//! fronts -> knapsack  (points relative to the least workspace; identical kernels share one front)
//!        -> relax     (fractions of points allowed: an upper bound and, rounded down, a first answer)
//!        -> fix       (drop points too far from the relaxation to be part of anything better)
//!        -> search    (all sums of the remaining points, without dominated or hopeless ones) -> Allotment
//! ```
//!
//! The search always keeps its best answer and a proven bound. If it reaches a limit on states or time, the answer is
//! within a known gap instead of exact; [`Stop`] says which limit ended the search.

mod fix;
mod knapsack;
mod relax;
mod search;

use std::time::{Duration, Instant};

use tightfit_units::{Bytes, Error, Nanos};

use knapsack::{Answer, Knapsack};
use relax::Relaxation;
pub use search::{Speedups, Stop};

/// One point of every kernel's front, with a bound on its distance from the optimum.
#[derive(Clone, Debug, PartialEq)]
pub struct Allotment {
    /// The point of each kernel, as an index into its front.
    pub choice: Vec<usize>,
    /// Sum of the times.
    pub time: Nanos,
    /// Sum of the workspaces.
    pub workspace: Bytes,
    /// No choice within the total takes less time than this.
    pub bound: Nanos,
    /// Why the search ended.
    pub stop: Stop,
}

impl Allotment {
    /// Upper bound on the slowdown against the optimum: (time - bound) / bound; 0 if proven optimal.
    pub fn gap(&self) -> f64 {
        if self.time == self.bound { 0.0 } else { (self.time - self.bound).ratio(self.bound) }
    }
}

/// Limits and switches of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchOptions {
    /// Maximum number of partial sums in one pass of the search, up to 40 bytes each.
    pub states: usize,
    /// The time limit. It is checked between points, so the answer may be about a tenth of a second late.
    pub time: Duration,
    /// The speed-ups to use.
    pub speedups: Speedups,
}

impl Default for SearchOptions {
    fn default() -> SearchOptions {
        SearchOptions { states: 4_000_000, time: Duration::from_millis(800), speedups: Speedups::default() }
    }
}

/// Widths of the passes before the full one, in partial sums.
const BEAMS: [usize; 3] = [256, 2048, 16384];

/// Allots `total` bytes: chooses for every kernel one (workspace, time) point so that the workspaces fit together and
/// the sum of the times is least.
///
/// The points of a kernel may be in any order and may include dominated ones. Times are capped at 2^60 ns divided by
/// the number of kernels, and totals at 2^62 bytes.
///
/// - Cost: exponential in the worst case, hence the limits in `options`; milliseconds for common networks.
/// - Source: the problem is from Oyama et al. 2018, III.C; the stages follow the literature on the multiple-choice
///   knapsack (Dyer et al. 1984 for the relaxation, Pisinger 1995 for the core).
///
/// # Errors
/// [`Error::OverTotal`], with the sum of the least workspaces, if even those exceed `total`; a kernel without points
/// fits no total.
///
/// ```
/// use tightfit_units::{Bytes, Nanos};
/// use tightfit_conv::optimize::{SearchOptions, allot};
/// let conv1 = vec![(Bytes(0), Nanos(90)), (Bytes(50), Nanos(80))];
/// let conv2 = vec![(Bytes(10), Nanos(200)), (Bytes(60), Nanos(100))];
/// let best = allot(&[conv1, conv2], Bytes(70), &SearchOptions::default())?;
/// assert_eq!((best.choice.as_slice(), best.time, best.gap()), ([0, 1].as_slice(), Nanos(190), 0.0));
/// # Ok::<(), tightfit_units::Error>(())
/// ```
pub fn allot(fronts: &[Vec<(Bytes, Nanos)>], total: Bytes, options: &SearchOptions) -> Result<Allotment, Error> {
    let deadline = Instant::now() + options.time;
    let speedups = options.speedups;
    let knapsack = Knapsack::new(fronts, total, speedups.group)?;
    let relaxation = Relaxation::new(&knapsack);
    let mut answer = relaxation.rounded_down(&knapsack);
    if speedups.exchange {
        answer.exchange(&knapsack);
    }
    let mut bound = relaxation.bound();

    let mut stop = Stop::Proven;
    let beams: &[usize] = if speedups.beam { &BEAMS } else { &[] };
    for width in beams.iter().copied().chain([usize::MAX]) {
        if answer.gain >= bound || stop != Stop::Proven {
            break;
        }
        let fixed;
        let core = if speedups.fix {
            fixed = fix::fix(&knapsack, relaxation.slope(), answer.gain);
            &fixed
        } else {
            &knapsack
        };
        let limits = search::Limits { width, states: options.states, deadline, speedups };
        let (left, why) = search::search(core, relaxation.slope(), &mut answer, &limits);
        bound = bound.min(left);
        stop = why;
    }
    if answer.gain >= bound {
        stop = Stop::Proven;
    }
    Ok(describe(fronts, &knapsack, &answer, bound, stop))
}

/// Converts the answer to the caller's bytes and nanoseconds.
fn describe(fronts: &[Vec<(Bytes, Nanos)>], knapsack: &Knapsack, answer: &Answer, bound: u64, stop: Stop) -> Allotment {
    let choice = knapsack.indices(answer);
    let chosen = || fronts.iter().zip(&choice).map(|(front, &index)| front[index]);
    let time: Nanos = chosen().map(|(_, time)| time).sum();
    Allotment {
        time,
        workspace: chosen().map(|(workspace, _)| workspace).sum(),
        bound: time - Nanos(bound.saturating_sub(answer.gain)),
        stop,
        choice,
    }
}
