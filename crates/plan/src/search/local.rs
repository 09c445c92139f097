//! Improves decisions by local search: repairs decisions that do not fit, restores needlessly evicted tensors, and retries around random intervals.
//!
//! ```text
//! repair            at the worst moment, evict the tensor that frees the most bytes for its time, until everything fits
//! restore           keep tensors again, the most expensive first, while everything fits
//! improve           undo a few decisions around a random moment, repair, restore; continue from the better decisions
//! ```

mod repair;

use crate::search::decisions::{Choice, Decisions};
use crate::search::evaluate::{Cutoff, Evaluation, Evaluator};
use crate::search::model::Model;
use crate::stop::End;

/// Changes are first tried together if trying each alone would visit more slots than this in total.
const MIN_VISITS_TOGETHER: usize = 400_000;

/// Attempts without improvement before a search ends, in addition to a few per decision.
const MAX_FAILURES: usize = 40;

/// A new attempt is compared with the decisions accepted this number of attempts ago.
const ACCEPTANCE_LAG: usize = 30;

/// Changes that are tried to compensate for a random one.
const MAX_COMPENSATIONS: usize = 10;

/// The choices to draw from. `Keep` appears twice, because it is usually best.
const CHOICES: [Choice; 5] = [Choice::Keep, Choice::Rebuild, Choice::Again, Choice::Move, Choice::Keep];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    IdleInterval(usize, Choice),
    Point(usize, usize),
}

/// The remaining work of a search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work<'e> {
    /// Operations and reruns that may still be visited.
    pub(super) visits: u64,
    pub(super) end: End<'e>,
}

impl Work<'_> {
    pub(super) fn is_spent(&self) -> bool {
        self.visits == 0 || self.end.is_over()
    }
}

/// The preferences of a repair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefer {
    pub(super) may_move: bool,
    /// Whether only bytes at the worst moment count, rather than bytes at all moments over the limit.
    pub(super) worst_alone: bool,
}

impl Default for Prefer {
    fn default() -> Prefer {
        Prefer { may_move: true, worst_alone: false }
    }
}

/// A search within one limit.
pub(super) struct Search<'m, 'a> {
    pub(super) model: &'m Model<'a>,
    evaluator: Evaluator<'m, 'a>,
    /// No decisions are faster than this, in ns.
    least: u64,
    pub(super) prefer: Prefer,
    random: u64,
}

impl<'m, 'a> Search<'m, 'a> {
    pub(super) fn new(model: &'m Model<'a>, limit: u64, least: u64) -> Search<'m, 'a> {
        Search { model, evaluator: Evaluator::new(model, limit), least, prefer: Prefer::default(), random: 1 }
    }

    /// Leaves this many bytes free at each operation.
    pub(super) fn with_reserve(self, reserve: &[u64]) -> Search<'m, 'a> {
        Search { evaluator: self.evaluator.with_reserve(reserve), ..self }
    }

    /// Sets the seed of the random numbers.
    pub(super) fn with_seed(mut self, seed: u64) -> Search<'m, 'a> {
        self.random = seed;
        self
    }

    pub(super) fn evaluate(&mut self, decisions: &Decisions, work: &mut Work<'_>) -> Option<Evaluation> {
        let outcome = self.evaluator.evaluate(decisions);
        work.visits = work.visits.saturating_sub(self.evaluator.visits());
        outcome
    }

    /// Like `evaluate`, but returns `None` as soon as the outcome is certain to exceed `most`.
    fn evaluate_within(&mut self, decisions: &Decisions, most: Cutoff, work: &mut Work<'_>) -> Option<Evaluation> {
        let outcome = self.evaluator.evaluate_within(decisions, most);
        work.visits = work.visits.saturating_sub(self.evaluator.visits());
        outcome
    }

    /// The evaluator, after the last evaluation.
    pub(super) fn evaluator(&mut self) -> &mut Evaluator<'m, 'a> {
        &mut self.evaluator
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.random >> 33) % bound.max(1) as u64) as usize
    }

    /// Whether a choice is possible for an idle interval, judged by the interval alone.
    pub(super) fn is_open(&self, interval: usize, choice: Choice) -> bool {
        let of = &self.model.intervals[interval];
        match choice {
            Choice::Keep => true,
            Choice::Move => !of.is_tail,
            Choice::Rebuild | Choice::Again => of.is_tail || !of.producers.is_empty(),
        }
    }

    /// Restores tensors, or evicts them more cheaply, wherever the step becomes faster and still fits.
    pub(super) fn restore(
        &mut self,
        decisions: &mut Decisions,
        mut now: Evaluation,
        work: &mut Work<'_>,
    ) -> Evaluation {
        for _ in 0..3 {
            let before = now.rank();
            let mut order: Vec<(u64, Change)> = Vec::new();
            for interval in (0..decisions.intervals.len()).filter(|interval| !self.model.intervals[*interval].is_tail) {
                if decisions.intervals[interval] != Choice::Keep {
                    let of = &self.model.intervals[interval];
                    let saved = match decisions.intervals[interval] {
                        Choice::Move => self.model.copies[interval].0 / 6,
                        _ => self.model.least_again(&of.producers),
                    };
                    order.push((saved, Change::IdleInterval(interval, Choice::Keep)));
                }
            }
            for (at, points) in self.model.points.iter().enumerate() {
                for higher in decisions.points[at] + 1..points.len() {
                    let saved = points[decisions.points[at]].time - points[higher].time;
                    order.push((saved, Change::Point(at, higher)));
                }
            }
            order.sort_by_key(|(saved, _)| std::cmp::Reverse(*saved));
            if order.len() * self.model.slots.len() > MIN_VISITS_TOGETHER {
                let changes: Vec<Change> = order.iter().map(|(_, change)| *change).collect();
                self.restore_together(decisions, &changes, &mut now, work);
            }
            for (_, change) in order {
                if work.is_spent() {
                    return now;
                }
                self.accept(decisions, change, &mut now, work);
                if let Change::IdleInterval(interval, _) = change {
                    for other in [Choice::Rebuild, Choice::Again, Choice::Move] {
                        if decisions.intervals[interval] != Choice::Keep
                            && decisions.intervals[interval] != other
                            && self.is_open(interval, other)
                        {
                            self.accept(decisions, Change::IdleInterval(interval, other), &mut now, work);
                        }
                    }
                }
            }
            if now.rank() == before {
                break;
            }
        }
        now
    }

    /// Makes all changes if they rank better together; otherwise tries each half.
    fn restore_together(
        &mut self,
        decisions: &mut Decisions,
        changes: &[Change],
        now: &mut Evaluation,
        work: &mut Work<'_>,
    ) {
        if work.is_spent() || changes.is_empty() {
            return;
        }
        let undo: Vec<Change> = changes.iter().map(|change| apply(decisions, *change)).collect();
        match self.evaluate_within(decisions, Cutoff::before(now), work) {
            Some(outcome) if outcome.rank() < now.rank() => *now = outcome,
            _ => {
                undo.into_iter().rev().for_each(|undo| _ = apply(decisions, undo));
                if changes.len() > 1 {
                    let (one, other) = changes.split_at(changes.len() / 2);
                    self.restore_together(decisions, one, now, work);
                    self.restore_together(decisions, other, now, work);
                }
            }
        }
    }

    /// Makes a change if it ranks better.
    fn accept(&mut self, decisions: &mut Decisions, change: Change, now: &mut Evaluation, work: &mut Work<'_>) -> bool {
        let undo = apply(decisions, change);
        if undo == change {
            return false;
        }
        match self.evaluate_within(decisions, Cutoff::before(now), work) {
            Some(outcome) if outcome.rank() < now.rank() => {
                *now = outcome;
                true
            }
            _ => {
                apply(decisions, undo);
                false
            }
        }
    }

    /// Undoes a few decisions around a random interval and decides them again, while work is left.
    pub(super) fn improve(
        &mut self,
        decisions: &mut Decisions,
        mut now: Evaluation,
        work: &mut Work<'_>,
    ) -> Evaluation {
        let open: Vec<usize> =
            (0..decisions.intervals.len()).filter(|interval| !self.model.intervals[*interval].is_tail).collect();
        if open.is_empty() {
            return now;
        }
        // Slower decisions than the current ones are accepted if they beat the decisions of some attempts ago: the search escapes a local minimum
        // this way.
        let (mut current, mut at) = (decisions.clone(), now.clone());
        let mut before = vec![now.rank(); ACCEPTANCE_LAG];
        let mut failed = 0;
        let mut round = 0;
        while !work.is_spent() && failed < MAX_FAILURES + 12 * open.len() && now.time > self.least {
            // This also counts attempts that change nothing.
            work.visits -= 1;
            failed += 1;
            round = (round + 1) % ACCEPTANCE_LAG;
            let mut other = current.clone();
            let center = self.below(open.len());
            for _ in 0..1 + self.below(4) {
                let near = (center + 4 * open.len() + self.below(9) - 4) % open.len();
                let interval = open[if self.below(3) == 0 { self.below(open.len()) } else { near }];
                let choice = CHOICES[self.below(CHOICES.len())];
                if self.is_open(interval, choice) {
                    other.intervals[interval] = choice;
                }
            }
            if other == current {
                continue;
            }
            let Some(mut outcome) = self.repair(&mut other, work) else { continue };
            if outcome.time > at.time + at.time / 100 {
                continue;
            }
            for _ in 0..MAX_COMPENSATIONS {
                let interval = open[self.below(open.len())];
                let choice = CHOICES[self.below(CHOICES.len())];
                if other.intervals[interval] != Choice::Keep && self.is_open(interval, choice) {
                    self.accept(&mut other, Change::IdleInterval(interval, choice), &mut outcome, work);
                }
            }
            if outcome.rank() <= at.rank() || outcome.rank() < before[round] {
                (current, at) = (other, outcome);
                if at.rank() < now.rank() {
                    (*decisions, now) = (current.clone(), at.clone());
                    failed = 0;
                }
            }
            before[round] = at.rank();
        }
        self.restore(decisions, now, work)
    }
}

/// Makes a change; returns the change that undoes it.
fn apply(decisions: &mut Decisions, change: Change) -> Change {
    match change {
        Change::IdleInterval(interval, choice) => {
            Change::IdleInterval(interval, std::mem::replace(&mut decisions.intervals[interval], choice))
        }
        Change::Point(at, point) => Change::Point(at, std::mem::replace(&mut decisions.points[at], point)),
    }
}
