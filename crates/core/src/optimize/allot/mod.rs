//! WD: one total of workspace allotted to all kernels of a network so that the summed time is least.
//!
//! Each kernel takes one point of its front; this is a multiple-choice knapsack, solved exactly in whole bytes and
//! nanoseconds. One stage, one file:
//!
//! ```text
//! fronts -> knapsack  (points relative to the least workspace; identical kernels share one front)
//!        -> relax     (the best points in fractions: an upper bound, and by rounding down a first answer)
//!        -> fix       (drop points too far from the relaxation to be part of anything better)
//!        -> search    (all sums of what is left, those beaten or without hope dropped) -> Allotment
//! ```
//!
//! The search always keeps the best answer found and a proven bound. Limits on states and time turn "exact" into
//! "within a known gap", and [`Stop`] tells which limit ended the search.

mod fix;
mod knapsack;
mod relax;
mod search;

use std::fmt;
use std::time::{Duration, Instant};

use crate::{Bytes, Error, Nanos};
use knapsack::{Answer, Knapsack};
use relax::Relaxation;

/// One point of every kernel's front, and how far from the best it can be.
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
    /// How much slower than the best this can be: (time - bound) / bound; 0 where it is proven best.
    pub fn gap(&self) -> f64 {
        if self.time == self.bound { 0.0 } else { (self.time - self.bound).ratio(self.bound) }
    }
}

/// Why a search ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The answer is proven best.
    Proven,
    /// More states were needed than allowed; the answer is the best found.
    StateLimit,
    /// More time was needed than allowed; the answer is the best found.
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

/// How far a search may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchOptions {
    /// Most partial sums kept by one pass of the search, up to 40 bytes each.
    pub states: usize,
    /// The time limit; it is checked between points, so the answer may come about a tenth of a second late.
    pub time: Duration,
    /// Which speed-ups are in use.
    pub speedups: Speedups,
}

impl Default for SearchOptions {
    fn default() -> SearchOptions {
        SearchOptions { states: 4_000_000, time: Duration::from_millis(800), speedups: Speedups::default() }
    }
}

/// Speed-ups of the search, all on by default. None can change the least time, only how soon it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speedups {
    /// Kernels with equal fronts share one front and are searched next to each other, so that exchanging their points
    /// gives equal sums, which merge.
    pub group: bool,
    /// The first answer is improved by single exchanges, so that the later stages can drop more.
    pub exchange: bool,
    /// Points that cannot be part of a better answer are dropped before the search.
    pub fix: bool,
    /// Partial sums whose relaxation is no better than the best answer are dropped.
    pub bound: bool,
    /// Partial sums that others beat in both workspace and time are dropped.
    pub dominance: bool,
    /// Narrow searches go before the full one, since a better answer makes that one far smaller.
    pub beam: bool,
}

impl Speedups {
    /// Everything off: plain enumeration of what fits.
    pub const NONE: Speedups =
        Speedups { group: false, exchange: false, fix: false, bound: false, dominance: false, beam: false };
}

impl Default for Speedups {
    fn default() -> Speedups {
        Speedups { group: true, exchange: true, fix: true, bound: true, dominance: true, beam: true }
    }
}

/// Partial sums kept by the passes before the full one.
const BEAMS: [usize; 3] = [256, 2048, 16384];

/// Allots `total` bytes: chooses for every kernel one (workspace, time) point so that the workspaces fit together and
/// the sum of the times is least.
///
/// The points of a kernel may come in any order and hold beaten ones. Times above 2^60 ns divided by the number of
/// kernels count as that, and totals above 2^62 bytes as that.
///
/// - Cost: exponential at worst, hence the limits in `options`; milliseconds for the networks in use.
/// - Source: the program is that of Oyama et al. 2018, III.C; the stages follow the literature on the multiple-choice
///   knapsack (Dyer et al. 1984 for the relaxation, Pisinger 1995 for the core).
///
/// # Errors
/// [`Error::OverTotal`], with the sum of the least workspaces, if even those exceed `total`; a kernel without points
/// fits no total.
///
/// ```
/// use tightfit_core::{Bytes, Nanos, optimize::{SearchOptions, allot}};
/// let conv1 = vec![(Bytes(0), Nanos(90)), (Bytes(50), Nanos(80))];
/// let conv2 = vec![(Bytes(10), Nanos(200)), (Bytes(60), Nanos(100))];
/// let best = allot(&[conv1, conv2], Bytes(70), &SearchOptions::default())?;
/// assert_eq!((best.choice.as_slice(), best.time, best.gap()), ([0, 1].as_slice(), Nanos(190), 0.0));
/// # Ok::<(), tightfit_core::Error>(())
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

/// The answer in the caller's bytes and nanoseconds.
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
