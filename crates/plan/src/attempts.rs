//! The attempts of one policy, and the draft that it chose.

use tightfit_place::Effort;
use tightfit_units::Nanos;

use crate::memory::arena::{Draft, Drafter};
use crate::schedule::script::Script;
use crate::{Algorithms, Attempt, Bounded, InParts, simulate};

/// The draft that a policy chose, and all its attempts.
pub(crate) struct PolicyResult {
    pub(crate) draft: Draft,
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) bound: Option<LowerBound>,
}

/// A lower bound on the time of a step under a budget, with the plans that it covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LowerBound {
    pub(crate) time: Nanos,
    pub(crate) bounded: Bounded,
    /// The stretch that these plans compute in parts; `None` for whole mini-batches.
    pub(crate) in_parts: Option<InParts>,
}

impl LowerBound {
    /// A bound for plans with whole mini-batches.
    pub(crate) fn whole(time: Nanos, bounded: Bounded) -> LowerBound {
        LowerBound { time, bounded, in_parts: None }
    }

    /// Whether it holds for a plan with these parts and this time. A faster plan is not of the covered class.
    pub(crate) fn covers(&self, in_parts: Option<&InParts>, time: Nanos) -> bool {
        self.in_parts.as_ref() == in_parts && self.time <= time
    }
}

/// Attempts, and the fastest attempt that fits.
pub(crate) struct Attempts<'a> {
    drafter: &'a Drafter<'a>,
    attempts: Vec<Attempt>,
    best: Option<Best>,
    bounds: Vec<LowerBound>,
    /// The time of the best plan of another variant or limit, which these attempts have to beat.
    to_beat: Option<Nanos>,
}

/// The fastest attempt; among equally fast ones a tight placement, then the smallest arena.
pub(crate) struct Best {
    pub(crate) time: Nanos,
    /// Whether its placement wastes more than a little.
    pub(crate) wasteful: bool,
    draft: Draft,
    /// Its index among the attempts.
    place: usize,
}

impl<'a> Attempts<'a> {
    pub(crate) fn new(drafter: &'a Drafter<'a>) -> Attempts<'a> {
        Attempts { drafter, attempts: Vec::new(), best: None, bounds: Vec::new(), to_beat: None }
    }

    /// Attempts that have to beat the time of a plan of another variant or limit.
    pub(crate) fn against(drafter: &'a Drafter<'a>, to_beat: Option<Nanos>) -> Attempts<'a> {
        Attempts { to_beat, ..Attempts::new(drafter) }
    }

    /// Whether anything was attempted.
    pub(crate) fn has_any(&self) -> bool {
        !self.attempts.is_empty()
    }

    /// The fastest attempt so far that fits.
    pub(crate) fn best(&self) -> Option<&Best> {
        self.best.as_ref()
    }

    /// The time to beat: of the fastest attempt so far that fits, or of the other variant's plan.
    pub(crate) fn time(&self) -> Option<Nanos> {
        self.best.as_ref().map(|best| best.time).into_iter().chain(self.to_beat).min()
    }

    /// Records an attempt; returns whether it fits.
    pub(crate) fn consider(&mut self, name: &str, draft: Draft) -> bool {
        let mut attempt = draft.attempt(name, &self.drafter.options);
        let fits = attempt.fits;
        if fits {
            let time = simulate(self.drafter.step, &draft.schedule, self.drafter.costs).time;
            attempt.time = Some(time);
            let wasteful = !draft.is_tight();
            let rank = (time, wasteful, draft.peak);
            if self.best.as_ref().is_none_or(|best| rank < (best.time, best.wasteful, best.draft.peak)) {
                self.best = Some(Best { time, wasteful, draft, place: self.attempts.len() });
            }
        }
        self.attempts.push(attempt);
        fits
    }

    /// Tries everything resident with the fastest algorithms. Returns whether that fits: then no plan of the same operations is faster.
    pub(crate) fn keep_everything(&mut self) -> bool {
        let drafter = self.drafter;
        if drafter.options.algorithms != Algorithms::Memory {
            self.consider(
                "none(p)",
                drafter.draft(&Script::new(drafter.step.operations.len()), Algorithms::Performance, Effort::Plan),
            );
        }
        let fastest = drafter.fastest();
        let fits = self.best.as_ref().is_some_and(|best| best.time <= fastest);
        if fits {
            self.add_bound(LowerBound::whole(fastest, Bounded::Any));
        }
        fits
    }

    pub(crate) fn add_bound(&mut self, bound: LowerBound) {
        self.bounds.push(bound);
    }

    /// The excess of the fastest attempt over the lowest bound of any class of plans, as a share of it; `None` without a bound.
    pub(crate) fn gap(&self) -> Option<f64> {
        let best = self.best.as_ref()?;
        let alike =
            |of: &LowerBound| self.bounds.iter().filter(|other| other.in_parts == of.in_parts).map(|of| of.time).max();
        let lowest = self.bounds.iter().filter_map(alike).min()?;
        Some(best.time.ratio(lowest) - 1.0)
    }

    /// The fastest attempt, all attempts, and the highest bound that covers it.
    ///
    /// # Errors
    /// All attempts if none fits.
    pub(crate) fn outcome(mut self) -> Result<PolicyResult, Vec<Attempt>> {
        let Some(Best { draft, place, time, .. }) = self.best.take() else { return Err(self.attempts) };
        let in_parts = InParts::of(self.drafter.step, &draft.schedule);
        let bounds = self.bounds.into_iter().filter(|bound| bound.covers(in_parts.as_ref(), time));
        let bound = bounds.max_by_key(|bound| bound.time);
        self.attempts[place].taken = true;
        Ok(PolicyResult { draft, attempts: self.attempts, bound })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_covers_plans_of_its_own_parts_that_are_no_faster() {
        let parts = |parts| InParts { first: "conv1".to_owned(), last: "conv2".to_owned(), parts };
        let (two, four) = (parts(2), parts(4));
        let bound = LowerBound { in_parts: Some(two.clone()), ..LowerBound::whole(Nanos(100), Bounded::Any) };
        assert!(bound.covers(Some(&two), Nanos(100)) && bound.covers(Some(&two), Nanos(101)));
        assert!(!bound.covers(Some(&two), Nanos(99)), "a faster one");
        assert!(!bound.covers(Some(&four), Nanos(100)) && !bound.covers(None, Nanos(100)), "other parts");
        assert!(LowerBound::whole(Nanos(100), Bounded::Any).covers(None, Nanos(100)));
    }
}
