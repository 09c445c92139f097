//! Searches for decisions that fit in PyTorch's allocator, including its fragmentation.
//!
//! Fragmentation depends on all evicted tensors in no simple way: evicting one more may increase it. The search therefore tries many decisions:
//!
//! ```text
//! close    evict tensors that are live where too much is reserved, until the step fits; then restore tensors while it fits
//! vary     change a tensor or two at random, and accept slower steps less and less often (simulated annealing)
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tightfit_units::random::split_mix;

use crate::eager::greedy::Choices;
use crate::eager::simulate::Prediction;
use crate::eager::step::EagerStep;
use crate::memory::caching::InitialReservation;
use crate::{TensorDecision, Treatment};

/// The search runs this many rounds on this many threads. Each thread makes at most `MAX_STEPS` changes, and at most
/// `MAX_STEPS_PER_TENSOR` per tensor.
const ROUNDS: usize = 3;
const THREADS: usize = 8;
const MAX_STEPS: usize = 4000;
const MAX_STEPS_PER_TENSOR: usize = 100;
/// Initial temperatures of the threads, as shares of the step time. `EXCESS_PENALTY` is the penalty for bytes beyond the
/// limits, in step times per budget.
const TEMPERATURES: [f64; 4] = [6e-3, 2e-3, 2e-2, 6e-3];
const EXCESS_PENALTY: f64 = 3.0;
/// Tensors smaller than 1/`MIN_TENSOR_DIVISOR` of the budget are not varied.
const MIN_TENSOR_DIVISOR: i64 = 2000;

/// The limits of a search.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Bytes on the device.
    pub budget: i64,
    /// Bytes that the allocator reserves for them.
    pub reserved: i64,
    /// Memory that the allocator has reserved before.
    pub initial: InitialReservation,
    /// The longest time of the search. If it suffices, the result is always the same.
    pub time: Duration,
}

/// Searches from `bases` for faster decisions within the limits. Returns `None` if no decisions beat `bases[0]`: by fewer bytes over the limits, or
/// by less time.
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
    let mut best = begun.filter(|one| search.fits(&one.prediction)).min_by(Found::compare);
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
                    let warmth = TEMPERATURES[thread % TEMPERATURES.len()];
                    scope.spawn(move || search.vary(from, warmth, (round * THREADS + thread) as u64 + 1))
                })
                .collect();
            let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
            joined.map(|found| found.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect::<Vec<_>>()
        });
        best = best.into_iter().chain(varied.into_iter().flatten()).min_by(Found::compare);
    }
    let given_fits = search.fits(&given.prediction);
    best.filter(|best| !given_fits || best.compare(&given).is_lt()).map(|best| best.decisions)
}

/// Decisions, their prediction, and the bytes reserved beyond the limit.
#[derive(Clone)]
struct Found {
    decisions: Vec<TensorDecision>,
    prediction: Prediction,
    over: i64,
}

impl Found {
    fn compare(&self, other: &Found) -> std::cmp::Ordering {
        self.over.cmp(&other.over).then(self.prediction.time_us.total_cmp(&other.prediction.time_us))
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
        let prediction = self.step.simulate(&decisions).ok()?;
        let over = self.over(&prediction);
        Some(Found { decisions, prediction, over })
    }

    /// Bytes reserved beyond the limit.
    fn over(&self, prediction: &Prediction) -> i64 {
        let reserved = self.step.reserved(prediction, None, &self.limits.initial).bytes;
        (reserved - self.limits.reserved).max(0)
    }

    fn fits(&self, prediction: &Prediction) -> bool {
        prediction.peak <= self.limits.budget && prediction.moved <= self.step.host
    }

    /// The operation at which a step needs too much; none if it does nowhere.
    fn exceeded(&self, prediction: &Prediction) -> Option<usize> {
        if prediction.peak > self.limits.budget {
            return Some(prediction.at);
        }
        self.step.reserved(prediction, Some(self.limits.reserved), &self.limits.initial).at
    }

    fn has_room(&self, prediction: &Prediction) -> bool {
        self.fits(prediction) && self.exceeded(prediction).is_none()
    }

    /// Searches near these decisions for decisions that fit.
    fn close(&self, choices: &mut Choices<'_>, base: &[TensorDecision]) -> Option<Found> {
        choices.set(base);
        choices.forget_refused();
        let mut prediction = self.step.simulate(&choices.decisions()).ok()?;
        while let Some(at) = self.exceeded(&prediction) {
            let picked = choices.pick(at, 1);
            if picked.is_empty() || self.is_over() {
                return None;
            }
            choices.give_up(&picked);
            match self.step.simulate(&choices.decisions()) {
                Ok(tried) if tried.peak <= self.limits.budget.max(prediction.peak) => prediction = tried,
                _ => choices.refuse(&picked),
            }
        }
        choices.restore(prediction, |tried| self.has_room(tried), || self.is_over());
        self.found(choices.decisions())
    }

    /// Anneals these decisions; returns the best decisions within the budget.
    fn vary(&self, base: &[TensorDecision], warmth: f64, seed: u64) -> Option<Found> {
        let mut choices = Choices::new(self.step);
        choices.set(base);
        let large = choices.large(self.limits.budget / MIN_TENSOR_DIVISOR);
        let mut random = Random(seed);
        let begun = self.step.simulate(&choices.decisions()).ok()?;
        let mut worth = self.worth(&begun, self.over(&begun));
        let mut best: Option<Found> = None;
        let steps = MAX_STEPS.min(MAX_STEPS_PER_TENSOR * large.len());
        for iteration in 0..steps {
            if iteration % 16 == 0 && self.is_over() {
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
            let warm = warmth * self.plain * (1.0 - iteration as f64 / steps as f64);
            let allowed = worth - warm * (1.0 - random.share()).ln();
            let decisions = choices.decisions();
            // The allocator's prediction takes longest, so it comes last.
            let tried = self.step.simulate(&decisions).ok();
            let tried = tried.filter(|tried| tried.moved <= self.step.host && tried.time_us < allowed);
            let tried = tried.map(|tried| (self.over(&tried), tried));
            match tried.filter(|(over, tried)| self.worth(tried, *over) < allowed) {
                Some((over, prediction)) => {
                    worth = self.worth(&prediction, over);
                    let found = Found { decisions, prediction, over };
                    if self.fits(&found.prediction) && best.as_ref().is_none_or(|best| found.compare(best).is_lt()) {
                        best = Some(found);
                    }
                }
                None => choices.fates = before,
            }
        }
        let best = best?;
        if best.over == 0 {
            choices.set(&best.decisions);
            choices.restore(best.prediction.clone(), |tried| self.has_room(tried), || self.is_over());
            return self.found(choices.decisions()).filter(|one| one.compare(&best).is_le()).or(Some(best));
        }
        Some(best)
    }

    /// Time of a step, plus a penalty for bytes beyond the limits.
    fn worth(&self, prediction: &Prediction, over: i64) -> f64 {
        let over = (prediction.peak - self.limits.budget).max(0) + over;
        prediction.time_us + EXCESS_PENALTY * self.plain * over as f64 / self.limits.budget.max(1) as f64
    }
}

/// A generator of random choices; equal seeds give equal choices.
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
