//! Decisions for which PyTorch's allocator has room, with the gaps between its blocks.
//!
//! Gaps depend on all that is given up, in no simple way: giving up one more tensor may leave more of them. So many decisions are
//! tried:
//!
//! ```text
//! close    give up what is alive where too much is reserved, until there is room; then keep again what leaves room
//! vary     change a tensor or two at random, and accept a slower step less and less often (simulated annealing)
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::allocator::There;
use super::greedy::Choices;
use super::simulate::Outcome;
use super::step::EagerStep;
use crate::plan::{TensorDecision, Treatment};
use crate::random::split_mix;

/// Decisions are varied this often in turn, by so many threads at once, in so many steps each, and at most so many for each tensor.
const ROUNDS: usize = 3;
const THREADS: usize = 8;
const STEPS: usize = 4000;
const EACH: usize = 100;
/// First temperatures of the annealing, of one thread each in turn, as shares of the step; and the time that bytes beyond the limits count
/// as, in steps a budget.
const WARMTHS: [f64; 4] = [6e-3, 2e-3, 2e-2, 6e-3];
const WORTH: f64 = 3.0;
/// Tensors of less than this part of the budget are not varied.
const PART: i64 = 2000;

/// What decisions may take.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes on the device.
    pub budget: i64,
    /// Bytes that the allocator reserves for them.
    pub reserved: i64,
    /// What it has reserved before.
    pub there: There,
    /// How long the search may take. Where that suffices, it always finds the same.
    pub time: Duration,
}

/// Decisions within the limits that take little time, from some to begin with, of which the first are given. None if none are found
/// for which the allocator reserves less of what is too much, or that take less time.
pub fn with_room(
    step: &EagerStep,
    limits: &Limits,
    bases: &[Vec<TensorDecision>],
    stop: &AtomicBool,
) -> Option<Vec<TensorDecision>> {
    let end = Instant::now() + limits.time;
    let plain = step.simulate(&[]).ok()?.time_us;
    let search = Search { step, limits, plain, stop, end };
    let given = search.found(bases.first()?.clone())?;
    let mut choices = Choices::new(step);
    let closed = bases.iter().filter_map(|base| search.close(&mut choices, base));
    let others = bases[1..].iter().filter_map(|base| search.found(base.clone()));
    let begun = std::iter::once(given.clone()).chain(others).chain(closed);
    let mut best = begun.filter(|one| search.fits(&one.outcome)).min_by(Found::compare);
    for round in 0..ROUNDS {
        if search.is_over() {
            break;
        }
        let from = best.as_ref().map_or(&given.decisions, |best| &best.decisions);
        let search = &search;
        let varied = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let from = if thread < THREADS / 2 { from } else { &given.decisions };
                    let warmth = WARMTHS[thread % WARMTHS.len()];
                    scope.spawn(move || search.vary(from, warmth, (round * THREADS + thread) as u64 + 1))
                })
                .collect();
            let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
            joined.map(|found| found.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect::<Vec<_>>()
        });
        best = best.into_iter().chain(varied.into_iter().flatten()).min_by(Found::compare);
    }
    let given_fits = search.fits(&given.outcome);
    best.filter(|best| !given_fits || best.compare(&given).is_lt()).map(|best| best.decisions)
}

/// Decisions, what they take, and how many bytes are reserved beyond what may be.
#[derive(Clone)]
struct Found {
    decisions: Vec<TensorDecision>,
    outcome: Outcome,
    over: i64,
}

impl Found {
    fn compare(&self, other: &Found) -> std::cmp::Ordering {
        self.over.cmp(&other.over).then(self.outcome.time_us.total_cmp(&other.outcome.time_us))
    }
}

struct Search<'a> {
    step: &'a EagerStep,
    limits: &'a Limits,
    /// Time of the step that keeps everything.
    plain: f64,
    stop: &'a AtomicBool,
    end: Instant,
}

impl Search<'_> {
    fn is_over(&self) -> bool {
        Instant::now() > self.end || self.stop.load(Ordering::Relaxed)
    }

    fn found(&self, decisions: Vec<TensorDecision>) -> Option<Found> {
        let outcome = self.step.simulate(&decisions).ok()?;
        let over = self.over(&outcome);
        Some(Found { decisions, outcome, over })
    }

    /// Bytes that are reserved beyond what may be.
    fn over(&self, outcome: &Outcome) -> i64 {
        let reserved = self.step.reserved(outcome, None, &self.limits.there).bytes;
        (reserved - self.limits.reserved).max(0)
    }

    fn fits(&self, outcome: &Outcome) -> bool {
        outcome.peak <= self.limits.budget && outcome.moved <= self.step.host
    }

    /// The operation at which a step needs too much; none if it does nowhere.
    fn exceeded(&self, outcome: &Outcome) -> Option<usize> {
        if outcome.peak > self.limits.budget {
            return Some(outcome.at);
        }
        self.step.reserved(outcome, Some(self.limits.reserved), &self.limits.there).at
    }

    fn has_room(&self, outcome: &Outcome) -> bool {
        self.fits(outcome) && self.exceeded(outcome).is_none()
    }

    /// What is near these decisions, and has room.
    fn close(&self, choices: &mut Choices<'_>, base: &[TensorDecision]) -> Option<Found> {
        choices.set(base);
        choices.forget_refused();
        let mut outcome = self.step.simulate(&choices.decisions()).ok()?;
        while let Some(at) = self.exceeded(&outcome) {
            let picked = choices.pick(at, 1);
            if picked.is_empty() || self.is_over() {
                return None;
            }
            choices.give_up(&picked);
            match self.step.simulate(&choices.decisions()) {
                Ok(tried) if tried.peak <= self.limits.budget.max(outcome.peak) => outcome = tried,
                _ => choices.refuse(&picked),
            }
        }
        choices.restore(outcome, |tried| self.has_room(tried), || self.is_over());
        self.found(choices.decisions())
    }

    /// Anneals these decisions; the best that are within the budget.
    fn vary(&self, base: &[TensorDecision], warmth: f64, seed: u64) -> Option<Found> {
        let mut choices = Choices::new(self.step);
        choices.set(base);
        let large = choices.large(self.limits.budget / PART);
        let mut random = Random(seed);
        let begun = self.step.simulate(&choices.decisions()).ok()?;
        let mut worth = self.worth(&begun, self.over(&begun));
        let mut best: Option<Found> = None;
        let steps = STEPS.min(EACH * large.len());
        for turn in 0..steps {
            if turn % 16 == 0 && self.is_over() {
                break;
            }
            let before = choices.fates.clone();
            for _ in 0..random.pick(&[1, 1, 2]) {
                let given: Vec<usize> =
                    large.iter().copied().filter(|&one| choices.fates[one] != Treatment::Keep).collect();
                let one =
                    if given.is_empty() || random.share() < 0.5 { random.pick(&large) } else { random.pick(&given) };
                let known = choices.fates[one];
                let ways = [Treatment::Keep, Treatment::Offload, Treatment::Recompute].into_iter();
                let ways =
                    ways.filter(|&fate| fate != known && (fate != Treatment::Recompute || choices.is_rebuildable(one)));
                choices.fates[one] = random.pick(&ways.collect::<Vec<_>>());
            }
            let warm = warmth * self.plain * (1.0 - turn as f64 / steps as f64);
            let allowed = worth - warm * (1.0 - random.share()).ln();
            let decisions = choices.decisions();
            // What it reserves takes longest to find out.
            let tried = self.step.simulate(&decisions).ok();
            let tried = tried.filter(|tried| tried.moved <= self.step.host && tried.time_us < allowed);
            let tried = tried.map(|tried| (self.over(&tried), tried));
            match tried.filter(|(over, tried)| self.worth(tried, *over) < allowed) {
                Some((over, outcome)) => {
                    worth = self.worth(&outcome, over);
                    let found = Found { decisions, outcome, over };
                    if self.fits(&found.outcome) && best.as_ref().is_none_or(|best| found.compare(best).is_lt()) {
                        best = Some(found);
                    }
                }
                None => choices.fates = before,
            }
        }
        let best = best?;
        if best.over == 0 {
            choices.set(&best.decisions);
            choices.restore(best.outcome.clone(), |tried| self.has_room(tried), || self.is_over());
            return self.found(choices.decisions()).filter(|one| one.compare(&best).is_le()).or(Some(best));
        }
        Some(best)
    }

    /// Time of a step, and more for what it needs beyond what there is.
    fn worth(&self, outcome: &Outcome, over: i64) -> f64 {
        let over = (outcome.peak - self.limits.budget).max(0) + over;
        outcome.time_us + WORTH * self.plain * over as f64 / self.limits.budget.max(1) as f64
    }
}

/// Random choices; the same seed gives the same.
struct Random(u64);

impl Random {
    /// From 0 to less than 1.
    fn share(&mut self) -> f64 {
        (split_mix(&mut self.0) >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[(split_mix(&mut self.0) % from.len() as u64) as usize]
    }
}
