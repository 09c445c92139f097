//! Decides for every idle interval of every movable tensor whether it stays, moves or is computed again, and for every
//! operation its point between time and workspace, so that a step takes the least time.

mod bound;
mod evaluate;
mod least;
mod min_cut;
mod model;
mod search;
mod slices;
mod slots;
mod starts;

use std::sync::{Mutex, PoisonError};

use bound::{Bound, Relaxation};
use evaluate::{Choice, Decisions};
pub(super) use least::{Least, least};
use model::Model;
use search::{Prefer, Search, Work};
use starts::{cheapest, checkpoints, everything};

use super::vdnn::{self, Offloads};
use super::{Floors, Outcome, Trials, baseline, overlap};
use crate::plan::draft::{Draft, Drafter};
use crate::plan::place::Effort;
use crate::plan::side_by_side::side_by_side;
use crate::plan::stop::End;
use crate::plan::{Algorithms, Bounded, Direction};
use crate::{Error, Nanos};
pub(super) use slices::{Found as InParts, least as least_in_parts, proven as proven_in_parts};

/// Bytes that every plan needs at once, and the operation that does.
pub(super) fn floor(drafter: &Drafter<'_>) -> (u64, usize) {
    Model::of(drafter).floor()
}

/// A time that no plan is below that fits by copies to the host alone: what is too much at an operation has left before.
fn moving_alone(model: &Model<'_>, budget: u64) -> Nanos {
    let live = model.drafter.live();
    let times = model.drafter.fastest_times();
    let rate = model.drafter.costs.copy_rate(Direction::ToHost);
    let mut left: u64 = times.iter().map(|time| time.0).sum();
    let mut least = left;
    for (live, time) in live.into_iter().zip(times) {
        let copying = live.saturating_sub(budget) as f64 / rate * 1e9;
        least = least.max(left + copying as u64);
        left -= time.0;
    }
    Nanos(least)
}

/// Visits of operations and reruns that a search may take: a third of a second for usual networks, a few for large steps.
fn visits(model: &Model<'_>) -> u64 {
    8_000_000 + 40_000 * model.slots.len().saturating_sub(600).min(2500) as u64
}

/// Where time limits a search, so many times the work: the limit is what ends it.
const TIMED: u64 = 16;

/// Parts of the time that is left: before the placements, each step takes one of these.
const PARTS: usize = 4;

/// Attempts to leave room for what the placement wastes. Each leaves so many more parts in this many free.
const PLACINGS: usize = 6;
const ROOM: u64 = 400;

/// A plan whose time is above that of everything resident by one of so many parts needs no stretch in parts.
const NEAR: u64 = 100;

/// Rounds of prices before the search, and after it, for usual networks; fewer for large steps.
const ROUNDS: [usize; 2] = [120, 160];

/// Rounds for large steps, at least.
const LEAST_ROUNDS: usize = 60;

/// Operations of a step above which nothing is computed again for the forward pass, where it hardly ever pays, unless
/// nothing else fits.
const LARGE: usize = 200;

pub(super) fn choose(drafter: &Drafter<'_>, floors: &Floors) -> Result<Outcome, Error> {
    let options = &drafter.options;
    let mut trials = Trials::new(drafter);
    let floor = floors.of_policy(options.policy);
    let end = drafter.end;
    if floor.peak > options.budget {
        if end.is_stopped() {
            return Err(Error::Interrupted);
        }
        let decision = floor.decision("least", options);
        return Err(drafter.too_large(floor, &[decision], floors.least()));
    }
    trials.consider("least", floors.whole().clone());
    // If everything fits with the fastest algorithms, no plan is faster.
    let fastest: Nanos = drafter.fastest_times().into_iter().sum();
    if options.algorithms != Algorithms::Memory {
        let kept = vdnn::script(drafter, Offloads::None, None);
        trials.consider("none(p)", drafter.draft(&kept, Algorithms::Performance, Effort::Plan));
    }
    if trials.best().is_some_and(|best| best.time == fastest) {
        return trials
            .outcome(Some((fastest, Bounded::Any)))
            .map_err(|decisions| drafter.too_large(floor, &decisions, floors.least()));
    }
    // Parts of the mini-batch pay where memory is short; what fits well needs none.
    let stretches = slices::worth(drafter);
    let mut bound = None;
    if floors.whole().peak <= options.budget {
        let end = end.part(1 + stretches.len());
        bound = search(drafter, floors.optimal.as_ref(), Some(floors), &mut trials, end)?;
    }
    let mut consider = |found: slices::Found, trials: &mut Trials<'_>| {
        let before = trials.best().map(|best| best.time);
        trials.consider(&found.name, found.draft);
        // A bound covers only plans of the same parts.
        if trials.best().map(|best| best.time) != before {
            bound = Some(found.bound);
        }
    };
    if let Some(least) = &floors.in_parts {
        consider(least.clone(), &mut trials);
    }
    for (place, stretch) in stretches.iter().enumerate() {
        let best = trials.best().map_or(Nanos(u64::MAX), |best| best.time);
        if best.0 <= fastest.0 + fastest.0 / NEAR {
            break;
        }
        if let Some(found) = slices::plan(drafter, stretch, best, end.part(stretches.len() - place)) {
            consider(found, &mut trials);
        }
        end.proceed()?;
    }
    let too_large = |decisions: Vec<_>| drafter.too_large(floors.of_policy(options.policy), &decisions, floors.least());
    // A plan that is faster is not of those that the bound covers.
    let bound = bound.filter(|(bound, _)| trials.best().is_some_and(|best| *bound <= best.time));
    trials.outcome(bound).map_err(too_large)
}

/// Searches for decisions, beginning with `least` among others, and places what it finds. Returns a time that no plan of
/// a kind is below. With `floors`, the policies that only move tensors compete.
///
/// # Errors
/// [`Error::Interrupted`] if the flag is set and nobody waits for a plan.
fn search(
    drafter: &Drafter<'_>,
    least: Option<&Least>,
    floors: Option<&Floors>,
    trials: &mut Trials<'_>,
    end: End<'_>,
) -> Result<Option<(Nanos, Bounded)>, Error> {
    let options = &drafter.options;
    let visits = |model: &Model<'_>| if end.is_timed() { TIMED * visits(model) } else { visits(model) };
    let started = |model| {
        let mut planner = Planner { model, known: Vec::new(), least: 0, visits: visits(model), end };
        planner.start(options.budget.0, least);
        planner
    };
    let whole = Model::of(drafter);
    let mut late = None;
    if drafter.step.operations.len() > LARGE {
        late.insert(Model::of(drafter)).compute_again_late();
    }
    end.proceed()?;
    let planner = late.as_ref().map(started).filter(|planner| !planner.known.is_empty());
    let bounded = if planner.is_some() { Bounded::ForwardOnce } else { Bounded::Any };
    let mut planner = planner.unwrap_or_else(|| started(&whole));
    end.proceed()?;
    let model = planner.model;
    let mut relaxation = Relaxation::new(model, options.budget.0);
    let rounds = ROUNDS.map(|rounds| (rounds * 600 / model.touches.len().max(600)).max(LEAST_ROUNDS));
    let target = |trials: &Trials<'_>, planner: &Planner<'_, '_>| {
        let drafts = trials.best().map(|best| best.time.0).into_iter();
        drafts.chain(planner.known.iter().map(|known| known.0.time)).min().unwrap_or(u64::MAX >> 8)
    };
    let mut bound = relaxation.improve(target(trials, &planner), rounds[0], end.part(PARTS));
    planner.least = bound.time;
    planner.round(options.budget.0, &bound);
    end.proceed()?;
    planner.place(trials);
    end.proceed()?;
    // What only moves tensors takes long to place; where it cannot be faster, or time is over, it need not be tried.
    let moving = moving_alone(model, options.budget.0);
    let may_be_faster = trials.best().is_none_or(|best| !end.is_over() && best.time > moving);
    let others: &[&str] = match floors.is_some() && may_be_faster {
        true => &["overlap", "vdnn-all", "vdnn-conv", "baseline"],
        false => &[],
    };
    let target = target(trials, &planner);
    let last = Mutex::new(None);
    let relaxation = Mutex::new(relaxation);
    let drafts = side_by_side(1 + others.len(), |place| {
        let script = match place.checked_sub(1).map(|other| others[other]) {
            None => {
                let mut relaxation = relaxation.lock().unwrap_or_else(PoisonError::into_inner);
                *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(relaxation.improve(target, rounds[1], end));
                return None;
            }
            Some("overlap") => return Some(overlap::choose(drafter, floors?).ok()?.draft),
            Some("vdnn-all") => vdnn::script(drafter, Offloads::All, None),
            Some("vdnn-conv") => vdnn::script(drafter, Offloads::Convolutions, None),
            Some(_) => baseline::script(drafter.step),
        };
        Some(drafter.draft(&script, options.algorithms, Effort::Plan))
    });
    for (name, draft) in others.iter().zip(drafts.into_iter().skip(1)) {
        draft.into_iter().for_each(|draft| _ = trials.consider(name, draft));
    }
    let last = last.into_inner().unwrap_or_else(PoisonError::into_inner);
    bound.time = bound.time.max(last.map_or(0, |last: Bound| last.time));
    end.proceed()?;
    Ok(Some((Nanos(bound.time), bounded)).filter(|(bound, _)| *bound > Nanos::ZERO))
}

/// What decisions lead to, the decisions, and what the search began with.
type Known = (evaluate::Outcome, Decisions, String);

/// Decisions from all searches so far, each found within its own limit.
struct Planner<'m, 'a> {
    model: &'m Model<'a>,
    known: Vec<Known>,
    /// No decisions are faster than this, in ns.
    least: u64,
    /// Visits for a whole search.
    visits: u64,
    end: End<'a>,
}

/// Decisions that a search continues with.
const KNOWN: usize = 4;

impl Planner<'_, '_> {
    /// Tries what needs no prices: keeping everything, and checkpoints.
    fn start(&mut self, limit: u64, least: Option<&Least>) {
        let mut starts = vec![("keep".to_owned(), everything(self.model))];
        for segments in [1, 2, 3, 4, 6, 8, 12, 16, 24] {
            starts.push((format!("{segments} segments"), checkpoints(self.model, segments)));
        }
        for percent in [40, 60, 80, 95] {
            starts.push((format!("cheapest {percent}%"), cheapest(self.model, percent)));
        }
        starts.extend(least.map(|least| ("least".to_owned(), least.decisions.clone())));
        self.try_all(limit, starts, Prefer::default());
        // A link that is too slow for what is missing misleads a repair that may use it.
        let starts = vec![
            ("recompute alone".to_owned(), everything(self.model)),
            ("recompute alone, from 4 segments".to_owned(), checkpoints(self.model, 4)),
        ];
        self.try_all(limit, starts, Prefer { may_move: false, ..Prefer::default() });
        let starts = vec![("greedy".to_owned(), everything(self.model))];
        self.try_all(limit, starts, Prefer { worst_alone: true, ..Prefer::default() });
    }

    /// Tries what the prices suggest.
    fn round(&mut self, limit: u64, bound: &Bound) {
        let mut starts = Vec::new();
        for threshold in [0.2, 0.5, 0.8] {
            let mut decisions = everything(self.model);
            for (gap, of) in self.model.gaps.iter().enumerate().filter(|(_, of)| !of.is_tail) {
                decisions.gaps[gap] = match () {
                    () if bound.again[gap] >= threshold && !of.producers.is_empty() => Choice::Rebuild,
                    () if bound.keep[gap] < 0.5 && bound.moving[gap] >= 0.5 => Choice::Move,
                    () => Choice::Keep,
                };
            }
            starts.push((format!("prices {threshold}"), decisions));
        }
        self.try_all(limit, starts, Prefer::default());
    }

    fn try_all(&mut self, limit: u64, starts: Vec<(String, Decisions)>, prefer: Prefer) {
        let share = self.visits / 24;
        let end = self.end.part(PARTS);
        let count = starts.len();
        let found = side_by_side(count, |place| {
            let (name, decisions) = &starts[place];
            let mut decisions = decisions.clone();
            let mut search = Search::new(self.model, limit, self.least);
            search.prefer = prefer;
            // Two at a time, and the later ones get what the earlier ones leave.
            let mut work = Work { visits: share, end: end.part((count - place).div_ceil(2)) };
            let found = search.repair(&mut decisions, &mut work)?;
            let found = search.restore(&mut decisions, found, &mut work);
            Some((found, decisions, name.clone()))
        });
        self.known.extend(found.into_iter().flatten());
        self.known.sort_by_key(|known| known.0.rank());
        self.known.dedup_by(|one, other| one.1 == other.1);
        self.known.truncate(KNOWN);
    }

    /// Searches, and places what is found; where the placement wastes too much, once more within a lower limit.
    fn place(&mut self, trials: &mut Trials<'_>) {
        let budget = self.model.drafter.options.budget.0;
        // The limit of the next search, and the least one so far within which something was found.
        let (mut limit, mut least) = (budget, budget);
        for placing in 0..2 * PLACINGS {
            // More attempts are worth it where all that is placed is much slower; when time is over, a single one.
            let (is_late, is_placed) = (self.end.is_over(), self.is_placed(trials, 20));
            if is_late && (is_placed || placing > 0) || is_placed && placing >= PLACINGS {
                break;
            }
            if !self.search(limit, self.visits >> placing.min(PLACINGS)) {
                limit = limit.midpoint(least);
                continue;
            }
            least = limit;
            match self.place_known(limit, trials).filter(|_| !self.is_placed(trials, 1000)) {
                Some(over) => limit = limit.saturating_sub((over + over / 8).max(budget / ROOM * placing as u64)),
                None => break,
            }
        }
    }

    /// Places the best known decisions, and the best with another beginning. Returns by how much the first that does not
    /// fit misses the budget, were the limit filled.
    fn place_known(&self, limit: u64, trials: &mut Trials<'_>) -> Option<u64> {
        let budget = self.model.drafter.options.budget.0;
        let best = trials.best().map_or(u64::MAX, |best| best.time.0);
        let faster = || self.known.iter().filter(|known| known.0.time < best);
        let first = faster().next()?;
        let other = faster().find(|known| known.2 != first.2).or_else(|| faster().nth(1));
        let placed: Vec<&Known> = [Some(first), other].into_iter().flatten().collect();
        let is_late = self.end.is_over();
        let drafts = side_by_side(placed.len(), |place| {
            let effort = if place == 0 && !is_late { Effort::Plan } else { Effort::Draft };
            self.draft(limit, &placed[place].1, effort)
        });
        let mut over = None;
        for ((.., name), draft) in placed.into_iter().zip(drafts) {
            let Some(draft) = draft else { continue };
            let missing = draft.peak.0.saturating_sub(budget) + limit.saturating_sub(draft.most_live.0);
            if trials.consider(name, draft) {
                break;
            }
            over.get_or_insert(missing);
        }
        over.filter(|over| *over > 0)
    }

    /// Whether what is placed takes little longer than what was found: at most one part in `share`.
    fn is_placed(&self, trials: &Trials<'_>, share: u64) -> bool {
        let found = self.known.first().map_or(0, |known| known.0.time);
        trials.best().is_some_and(|best| best.time.0 <= found + found / share)
    }

    fn draft(&self, limit: u64, decisions: &Decisions, effort: Effort) -> Option<Draft> {
        let mut search = Search::new(self.model, limit, self.least);
        search.evaluate(decisions, &mut Work { visits: u64::MAX, end: End::default() })?;
        let script = search.evaluator().script();
        Some(self.model.drafter.draft_with(&script, &decisions.points, effort))
    }

    /// Improves all known decisions within a limit on live bytes; leaves them where none fits it.
    fn search(&mut self, limit: u64, visits: u64) -> bool {
        let share = visits / (KNOWN as u64 + 2);
        // The rest is for placements within a lower limit, should this one waste too much.
        let end = self.end.part(2);
        let count = self.known.len();
        let found = side_by_side(count, |place| {
            let (_, decisions, name) = &self.known[place];
            let mut decisions = decisions.clone();
            let mut search = Search::new(self.model, limit, self.least);
            // A placement may take all the time that is left; the plan must still fit then.
            let mut work = Work { visits: share, end: end.untimed() };
            if end.is_timed() {
                work.visits /= TIMED;
            }
            let outcome = search.repair(&mut decisions, &mut work)?;
            if end.is_timed() {
                work = Work { visits: share, end: end.part((count - place).div_ceil(2) + 1) };
            }
            let outcome = search.restore(&mut decisions, outcome, &mut work);
            let outcome = search.improve(&mut decisions, outcome, &mut work);
            Some((outcome, decisions, name.clone()))
        });
        let mut found: Vec<_> = found.into_iter().flatten().collect();
        found.sort_by_key(|known| known.0.rank());
        // Two go on, each with other random numbers.
        let best = found.first().cloned();
        let more = side_by_side(2, |seed| {
            let (outcome, mut decisions, name) = best.clone()?;
            let mut search = Search::new(self.model, limit, self.least).with_seed(seed as u64 + 2);
            let mut work = Work { visits: 2 * share, end };
            let outcome = search.improve(&mut decisions, outcome, &mut work);
            Some((outcome, decisions, name))
        });
        found.extend(more.into_iter().flatten());
        found.sort_by_key(|known| known.0.rank());
        found.dedup_by(|one, other| one.1 == other.1);
        if found.is_empty() {
            return false;
        }
        self.known = found;
        true
    }
}
