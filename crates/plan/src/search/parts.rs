//! Stretches in parts of the mini-batch. A step with a stretch in parts is a separate step that is planned like any other.

use std::time::Duration;

use tightfit_place::Effort;
use tightfit_units::{Error, Nanos};

use crate::attempts::LowerBound;
use crate::attempts::{Attempts, PolicyResult};
use crate::memory::arena::{Draft, Drafter};
use crate::schedule::parts::{StepInParts, Stretch};
use crate::search::least::{Least, least};
use crate::search::model::Model;
use crate::{Bounded, InParts};

/// Steps in parts with at most this number of operations are planned even without time to spare.
const MAX_QUICK_OPERATIONS: usize = 2000;

/// The time per pair of operations that a search needs to find good plans. The search shares its time with whole mini-batches and must not get less
/// than they do.
const SEARCH_TIME_PER_PAIR: Duration = Duration::from_nanos(400);

/// A stretch must reduce the bytes needed by over this much to be worth the time.
const MIN_SAVING_PERCENT: u64 = 1;

/// Limits in percent of the budget on the largest operation of a stretch in parts. The remainder is for kept tensors.
const ROOM_PERCENTS: [u64; 2] = [100, 60];

/// A plan of the step with a stretch in parts.
#[derive(Clone)]
pub(crate) struct DraftInParts {
    /// A draft of the step itself.
    pub(crate) draft: Draft,
    /// A lower bound for plans with the same parts.
    pub(super) bound: LowerBound,
}

impl DraftInParts {
    /// Adds this plan to the attempts of the whole step.
    pub(super) fn join(self, attempts: &mut Attempts<'_>, attempt: &str) {
        attempts.add_bound(self.bound);
        attempts.consider(attempt, self.draft);
    }

    /// Converts a draft of the step in parts, and its bound, into a draft and a bound of the whole step.
    fn of(drafter: &Drafter<'_>, in_parts: &StepInParts, mut draft: Draft, bound: LowerBound) -> DraftInParts {
        draft.schedule = in_parts.schedule(drafter.step, draft.schedule);
        let in_parts = InParts::of(drafter.step, &draft.schedule);
        DraftInParts { draft, bound: LowerBound { in_parts, ..bound } }
    }
}

/// The stretches that need fewer bytes in parts than whole, by over `percent` if given. Empty if parts are not allowed.
fn needing_less(drafter: &Drafter<'_>, percent: Option<u64>) -> Vec<Stretch> {
    if !drafter.options.divide {
        return Vec::new();
    }
    let (floor, _) = Model::of(drafter).floor();
    let most = floor - percent.map_or(0, |percent| floor * percent / 100);
    drafter.stretches().iter().filter(|stretch| stretch.needs < most).cloned().collect()
}

/// The stretches that are worth planning.
fn useful(drafter: &Drafter<'_>) -> Vec<Stretch> {
    needing_less(drafter, Some(MIN_SAVING_PERCENT))
}

/// Whether planning the step with a stretch in parts takes no longer than a user waits.
fn is_quick(drafter: &Drafter<'_>, stretch: &Stretch) -> bool {
    stretch.operations(drafter.step) <= MAX_QUICK_OPERATIONS || drafter.end.is_timed() && has_time(drafter, stretch, 1)
}

/// Whether one of `shares` equal shares of the remaining time is enough to plan the step with a stretch in parts.
fn has_time(drafter: &Drafter<'_>, stretch: &Stretch, shares: usize) -> bool {
    let pairs = stretch.operations(drafter.step).saturating_pow(2);
    drafter.end.part(shares).leaves(SEARCH_TIME_PER_PAIR.saturating_mul(u32::try_from(pairs).unwrap_or(u32::MAX)))
}

/// The stretches that may pay off under the budget: first the stretches whose parts go both ways, fewest parts first; then the shortest stretches
/// with the fewest parts that leave room.
fn worth(drafter: &Drafter<'_>) -> Vec<Stretch> {
    let budget = drafter.options.budget.0;
    let fitting = useful(drafter).into_iter().filter(|of| of.needs <= budget && is_quick(drafter, of));
    let (mut worth, others): (Vec<Stretch>, Vec<Stretch>) = fitting.partition(|of| of.goes_both_ways);
    worth.sort_by_key(|of| of.parts);
    for room in ROOM_PERCENTS {
        let fits = |of: &&Stretch| of.needs <= budget / 100 * room;
        worth.extend(others.iter().filter(fits).min_by_key(|of| (of.forward.len(), of.parts)).cloned());
    }
    worth.dedup();
    // A few stretches with enough time are worth more than many without.
    while let Some(largest) = worth.iter().max_by_key(|of| of.operations(drafter.step))
        && !has_time(drafter, largest, 1 + worth.len())
    {
        let operations = largest.operations(drafter.step);
        worth.retain(|of| of.operations(drafter.step) < operations);
    }
    worth
}

/// A step with a stretch in parts.
pub(super) struct Division {
    stretch: Stretch,
    in_parts: StepInParts,
    /// The time of all its operations with the fastest algorithms, a lower bound for its plans.
    pub(super) fastest: Nanos,
}

impl Division {
    /// The divisions that may pay off under the budget, fastest first.
    pub(super) fn all(drafter: &Drafter<'_>) -> Vec<Division> {
        let divided = |stretch: Stretch| {
            let in_parts = StepInParts::of(drafter.step, &stretch, drafter.costs.launch)?;
            let fastest = Drafter::until(&in_parts.step, drafter.costs, drafter.options, drafter.end).ok()?.fastest();
            Some(Division { stretch, in_parts, fastest })
        };
        let mut all: Vec<Division> = worth(drafter).into_iter().filter_map(divided).collect();
        all.sort_by_key(|division| division.fastest);
        all
    }

    /// # Errors
    /// Same as [`Drafter::until`].
    pub(super) fn drafter<'a>(&'a self, whole: &Drafter<'a>) -> Result<Drafter<'a>, Error> {
        Drafter::until(&self.in_parts.step, whole.costs, whole.options, whole.end)
    }

    /// The best trial of its step as a draft of the whole step; `None` if none fits.
    pub(super) fn outcome(
        &self,
        whole: &Drafter<'_>,
        parts: &Drafter<'_>,
        attempts: Attempts<'_>,
    ) -> Option<DraftInParts> {
        let PolicyResult { draft, bound, .. } = attempts.outcome().ok()?;
        // The forward pass of one part comes after the backward pass of another. So a bound covers recomputing plans only if it covers any plan.
        let covers = |bound: &LowerBound| bound.bounded == Bounded::Any || !self.stretch.goes_both_ways;
        let bound = bound.filter(covers).unwrap_or(LowerBound::whole(self.fastest, Bounded::Any));
        Some(DraftInParts::of(whole, &self.in_parts, parts.tightened(draft, Effort::Plan, parts.end), bound))
    }
}

/// The stretches that need the fewest bytes at once: one that goes forward as a whole before it goes backward, and one whose parts go both ways.
fn smallest(all: &[Stretch]) -> Vec<Stretch> {
    let best = |both_ways| {
        let own = all.iter().filter(move |stretch| stretch.goes_both_ways == both_ways);
        own.min_by_key(|stretch| (stretch.needs, stretch.parts, stretch.forward.len())).cloned()
    };
    [best(false), best(true)].into_iter().flatten().collect()
}

/// The plan with the smallest arena among the quickly planned stretches in parts.
pub(super) fn least_in_parts(drafter: &Drafter<'_>) -> Option<DraftInParts> {
    let mut quick = useful(drafter);
    quick.retain(|stretch| is_quick(drafter, stretch));
    least_of(drafter, smallest(&quick))
}

/// A plan with a stretch that takes long to plan, for budgets that nothing else fits. Takes the fewest operations if these suffice, otherwise the
/// smallest arena found.
pub(super) fn least_in_parts_slowly(drafter: &Drafter<'_>) -> Option<DraftInParts> {
    let budget = drafter.options.budget;
    let mut slow = useful(drafter);
    slow.retain(|of| of.needs <= budget.0 && !is_quick(drafter, of));
    let shortest = slow.iter().min_by_key(|of| (of.operations(drafter.step), of.needs)).cloned()?;
    let others: Vec<Stretch> = smallest(&slow).into_iter().filter(|of| *of != shortest).collect();
    let first = least_of(drafter, vec![shortest]);
    if first.as_ref().is_some_and(|found| found.draft.peak <= budget) {
        return first;
    }
    first.into_iter().chain(least_of(drafter, others)).min_by_key(|found| found.draft.peak)
}

/// The plan with the smallest arena among these stretches in parts.
fn least_of(drafter: &Drafter<'_>, stretches: Vec<Stretch>) -> Option<DraftInParts> {
    let count = stretches.len();
    let drafts = stretches.into_iter().enumerate().filter_map(|(place, stretch)| {
        let in_parts = StepInParts::of(drafter.step, &stretch, drafter.costs.launch)?;
        // Together they take at most as long as whole mini-batches.
        let end = drafter.end.part(count - place);
        let parts = Drafter::until(&in_parts.step, drafter.costs, drafter.options, end).ok()?;
        let Least { draft, .. } = least(&parts)?;
        let bound = LowerBound::whole(parts.fastest(), Bounded::Any);
        Some(DraftInParts::of(drafter, &in_parts, draft, bound))
    });
    drafts.min_by_key(|found| found.draft.peak)
}

/// The least bytes at once that any plan with a stretch in parts needs, and the operation that needs them.
pub(super) fn proven(drafter: &Drafter<'_>) -> Option<(u64, usize)> {
    smallest(&needing_less(drafter, None)).into_iter().map(|stretch| (stretch.needs, stretch.at)).min()
}
