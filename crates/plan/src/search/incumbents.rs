//! The best decisions of all searches so far: tries many starting points, improves the best, and places them in memory.

use tightfit_place::Effort;

use crate::attempts::Attempts;
use crate::memory::arena::Draft;
use crate::search::bound::RelaxedBound;
use crate::search::decisions::{Choice, Decisions};
use crate::search::decisions::{cheapest, checkpoints, everything};
use crate::search::evaluate;
use crate::search::least::Least;
use crate::search::local::{Prefer, Search, Work};
use crate::search::model::Model;
use crate::stop::End;
use crate::threads::on_threads;

/// With a time limit, a search may do 16 times the usual work, so that the limit ends it.
const TIMED_WORK_FACTOR: u64 = 16;

/// Before the placements, each phase of a search takes a quarter of the remaining time.
pub(super) const PHASE_TIME_DIVISOR: usize = 4;

/// Attempts to leave room for the waste of placements. Each attempt leaves another 1/400 of the budget free.
const MAX_PLACINGS: usize = 6;
const ROOM_DIVISOR: u64 = 400;

/// One way to place plans.
struct Way {
    /// A search for the bytes to leave free takes this part of the work, and of the remaining time.
    short: u64,
    /// Whole searches once the bytes to leave free are known.
    long: u32,
    /// Whether each of these takes half the work of the one before.
    halves: bool,
}

/// How plans are placed. Local searches of different lengths end in different decisions, so the second way may find a faster plan.
const WAYS: [Way; 2] = [Way { short: 8, long: 2, halves: true }, Way { short: 4, long: 3, halves: false }];

/// A plan that takes over 1/20 longer than its bound is placed in the second way too.
const FAR_DIVISOR: u64 = 20;

/// A placed plan that takes at most 1/400 longer than its bound is not searched further.
const CLOSE_DIVISOR: u64 = 400;

/// Attempts with more bytes left free for a plan that fits but is slow.
const MAX_GROWTHS: u64 = 3;

/// A plan that is slower by more than this than the decisions found with no bytes left free may have left too many free.
const NEAR_PERCENT: u64 = 2;

/// The visits of operations and reruns that a search may make: a third of a second for usual networks, one or two for large steps.
pub(super) fn visits(model: &Model<'_>) -> u64 {
    8_000_000 + 40_000 * model.slots.len().saturating_sub(600).min(700) as u64
}

/// The outcome of decisions, the decisions, and the name of their starting point.
type Incumbent = (evaluate::Evaluation, Decisions, String);

/// The best decisions of all searches so far, each found within its search's limit.
pub(super) struct Incumbents<'m, 'a> {
    pub(super) model: &'m Model<'a>,
    known: Vec<Incumbent>,
    /// No decisions are faster than this, in ns.
    least: u64,
    /// Visits for a whole search.
    visits: u64,
    pub(super) end: End<'a>,
    /// For each operation: bytes to leave free.
    reserve: Vec<u64>,
    /// Decisions that need few bytes, for limits at which others cannot be repaired.
    frugal: Option<Decisions>,
}

/// Decisions are slow if they take over twice the time of everything resident.
const SLOW_FACTOR: u64 = 2;

/// The number of decisions that a search continues with.
const MAX_KNOWN: usize = 4;

impl<'m, 'a> Incumbents<'m, 'a> {
    /// Tries starting points that need no prices: keeping everything, checkpoints, and `least`.
    pub(super) fn started(
        model: &'m Model<'a>,
        least: Option<&Least>,
        visits: u64,
        end: End<'a>,
    ) -> Incumbents<'m, 'a> {
        let mut incumbents = Incumbents {
            model,
            known: Vec::new(),
            least: 0,
            visits: 0,
            end,
            reserve: vec![0; model.points.len()],
            frugal: None,
        };
        incumbents.allow(visits);
        incumbents.frugal = least.map(|least| least.decisions.clone());
        let mut starts = vec![("keep".to_owned(), everything(model))];
        for segments in [1, 2, 3, 4, 6, 8, 12, 16, 24] {
            let plural = if segments == 1 { "" } else { "s" };
            starts.push((format!("{segments} segment{plural}"), checkpoints(model, segments)));
        }
        for percent in [40, 60, 80, 95] {
            starts.push((format!("cheapest {percent}%"), cheapest(model, percent)));
        }
        starts.extend(least.map(|least| ("least".to_owned(), least.decisions.clone())));
        incumbents.try_all(starts, Prefer::default());
        // A link that is too slow for the missing bytes misleads a repair that may use it.
        let starts = vec![
            ("recompute alone".to_owned(), everything(model)),
            ("recompute alone, from 4 segments".to_owned(), checkpoints(model, 4)),
        ];
        incumbents.try_all(starts, Prefer { may_move: false, ..Prefer::default() });
        let starts = vec![("greedy".to_owned(), everything(model))];
        incumbents.try_all(starts, Prefer { worst_alone: true, ..Prefer::default() });
        if end.is_timed() && incumbents.best().is_none_or(|best| best > SLOW_FACTOR * model.drafter.fastest().0) {
            // Little time was left. The decisions with the fewest bytes may be several times slower than the result of a little more work.
            let starts = vec![
                ("keep".to_owned(), everything(model)),
                ("4 segments".to_owned(), checkpoints(model, 4)),
                ("cheapest 60%".to_owned(), cheapest(model, 60)),
            ];
            incumbents.try_within(visits, end.untimed(), starts, Prefer::default());
        }
        incumbents
    }

    /// Sets the visits of the following searches. With a time limit the visits are raised so that the limit ends a search.
    pub(super) fn allow(&mut self, visits: u64) {
        self.visits = if self.end.is_timed() { TIMED_WORK_FACTOR * visits } else { visits };
    }

    /// Whether no decisions fit.
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// The least time of any decisions, in ns.
    pub(super) fn best(&self) -> Option<u64> {
        self.known.iter().map(|known| known.0.time).min()
    }

    /// Tries the decisions that the prices suggest.
    pub(super) fn follow(&mut self, bound: &RelaxedBound) {
        self.least = bound.time;
        let mut starts = Vec::new();
        for threshold in [0.2, 0.5, 0.8] {
            let mut decisions = everything(self.model);
            for (interval, of) in self.model.intervals.iter().enumerate().filter(|(_, of)| !of.is_tail) {
                decisions.intervals[interval] = match () {
                    () if bound.again[interval] >= threshold && !of.producers.is_empty() => Choice::Rebuild,
                    () if bound.keep[interval] < 0.5 && bound.moving[interval] >= 0.5 => Choice::Move,
                    () => Choice::Keep,
                };
            }
            starts.push((format!("prices {threshold}"), decisions));
        }
        self.try_all(starts, Prefer::default());
    }

    fn try_all(&mut self, starts: Vec<(String, Decisions)>, prefer: Prefer) {
        self.try_within(self.visits, self.end.part(PHASE_TIME_DIVISOR), starts, prefer);
    }

    /// Tries starting points, each with a share of the `visits` of a whole search.
    fn try_within(&mut self, visits: u64, end: End<'_>, starts: Vec<(String, Decisions)>, prefer: Prefer) {
        let limit = self.model.drafter.options.budget.0;
        let share = visits / 24;
        let count = starts.len();
        let found = on_threads(count, |place| {
            let (name, decisions) = &starts[place];
            let mut decisions = decisions.clone();
            let mut search = Search::new(self.model, limit, self.least);
            search.prefer = prefer;
            // Two run at a time. Later searches get the time that earlier ones leave.
            let mut work = Work { visits: share, end: end.part((count - place).div_ceil(2)) };
            let found = search.repair(&mut decisions, &mut work)?;
            let found = search.restore(&mut decisions, found, &mut work);
            Some((found, decisions, name.clone()))
        });
        self.known.extend(found.into_iter().flatten());
        self.known.sort_by_key(|known| known.0.rank());
        self.known.dedup_by(|one, other| one.1 == other.1);
        self.known.truncate(MAX_KNOWN);
    }

    /// Places plans in one way, and in the other too if the fastest is far from its bound.
    pub(super) fn place(&mut self, attempts: &mut Attempts<'_>) {
        let begun = self.known.clone();
        for way in &WAYS {
            self.known.clone_from(&begun);
            self.place_by(way, attempts);
            if self.end.is_over() || self.is_close(attempts, FAR_DIVISOR) {
                break;
            }
        }
    }

    /// Finds the bytes to leave free by short searches. Then searches longer, from the decisions of before and after.
    fn place_by(&mut self, way: &Way, attempts: &mut Attempts<'_>) {
        let begun = self.known.clone();
        let mut free = self.find_room(way.short, attempts);
        self.known.truncate(MAX_KNOWN / 2);
        self.known.extend(begun.into_iter().take(MAX_KNOWN / 2));
        for number in 0..way.long {
            self.leave_free(free);
            let visits = if way.halves { self.visits >> number } else { self.visits };
            if self.is_close(attempts, CLOSE_DIVISOR) || self.end.is_over() || !self.search(visits, 2) {
                break;
            }
            match self.place_missing(attempts) {
                Some(over) => free += (over + over / 8).max(self.model.drafter.options.budget.0 / ROOM_DIVISOR),
                None => break,
            }
        }
    }

    /// Whether the fastest plan takes at most a part of its bound longer than that.
    fn is_close(&self, attempts: &Attempts<'_>, divisor: u64) -> bool {
        attempts.time().is_some_and(|time| time.0 <= self.least + self.least / divisor)
    }

    /// Searches for a short time and places the decisions found. If the placement wastes too much, or its copies wait for occupied memory, searches
    /// again with more bytes left free. If a plan with many bytes left free is much slower than the decisions found without, searches again with
    /// fewer. Returns the bytes left free by the last plan that fitted; if none did, the bytes to leave free next.
    fn find_room(&mut self, short: u64, attempts: &mut Attempts<'_>) -> u64 {
        let budget = self.model.drafter.options.budget.0;
        // Bytes to leave free next, the most that did not suffice, and the fewest that did.
        let (mut free, mut few, mut enough) = (0, 0, None);
        let mut fitting = None;
        // How often more bytes were left free although a plan fitted.
        let mut grown = 0;
        // The time of the decisions found with no bytes left free.
        let mut hoped: Option<u64> = None;
        for placing in 0..2 * MAX_PLACINGS {
            // More attempts pay if every placed plan is over 5% (1/20) slower than the decisions. After the deadline, only one attempt is made, or a
            // few if it is over 12.5% (1/8) slower.
            let is_placed = self.is_placed(attempts, 20);
            let is_late = if is_placed { self.end.is_over() } else { self.model.drafter.end.is_over() };
            let is_enough = is_placed || placing > 0 && (self.end.is_stopped() || self.is_placed(attempts, 8));
            if is_late && is_enough || (is_late || is_placed) && placing >= MAX_PLACINGS {
                break;
            }
            self.leave_free(free);
            if !self.search(self.visits / short, short as usize) {
                // With as many bytes left free, the search would end the same way.
                if free <= few {
                    break;
                }
                free = free.midpoint(few);
                continue;
            }
            let hoped = *hoped.get_or_insert(self.best().unwrap_or(0));
            let missing = self.place_missing(attempts);
            if missing.is_none() {
                fitting = Some(free);
            }
            match missing {
                Some(over) => {
                    few = few.max(free);
                    let more = free + (over + over / 8).max(budget / ROOM_DIVISOR * placing as u64);
                    free = enough.map_or(more, |enough| few.midpoint(enough));
                }
                None if attempts.time().is_some_and(|time| time.0 > hoped + hoped * NEAR_PERCENT / 100) => {
                    if free > few && grown == 0 {
                        enough = Some(free);
                        free = few.midpoint(free);
                    } else if grown < MAX_GROWTHS {
                        grown += 1;
                        free += budget / ROOM_DIVISOR * grown;
                    } else {
                        break;
                    }
                }
                None => break,
            }
            if enough.is_some_and(|enough| enough <= few + budget / ROOM_DIVISOR) {
                break;
            }
        }
        fitting.unwrap_or(free)
    }

    /// Like [`Incumbents::place_known`], but `None` if a placed plan is about as fast as the best decisions.
    fn place_missing(&self, attempts: &mut Attempts<'_>) -> Option<u64> {
        self.place_known(attempts).filter(|_| !self.is_placed(attempts, 1000))
    }

    /// Leaves `bytes` free at each operation, or fewer where the operation itself needs them.
    fn leave_free(&mut self, bytes: u64) {
        let (model, budget) = (self.model, self.model.drafter.options.budget.0);
        let room = |at: usize| budget.saturating_sub(model.least_at(at)).min(bytes);
        self.reserve = (0..model.points.len()).map(room).collect();
    }

    /// Places the best decisions, and the best from a different starting point. Returns the number of bytes by which the first one that does not fit
    /// misses the budget, assuming that its memory is full except for the reserve.
    fn place_known(&self, attempts: &mut Attempts<'_>) -> Option<u64> {
        let budget = self.model.drafter.options.budget.0;
        let limit = budget - self.reserve.iter().max().copied().unwrap_or_default();
        let best = attempts.time().map_or(u64::MAX, |time| time.0);
        let faster = || self.known.iter().filter(|known| known.0.time < best);
        let first = faster().next()?;
        let other = faster().find(|known| known.2 != first.2).or_else(|| faster().nth(1));
        let placed: Vec<&Incumbent> = [Some(first), other].into_iter().flatten().collect();
        let is_late = self.end.is_over();
        let drafts = on_threads(placed.len(), |place| {
            let effort = if place == 0 && !is_late { Effort::Plan } else { Effort::Draft };
            self.draft(&placed[place].1, effort)
        });
        let (mut over, mut fits) = (None, false);
        // The second counts even if the first fits: a plan may take longer than its decisions predict.
        for ((.., name), draft) in placed.into_iter().zip(drafts) {
            let Some(draft) = draft else { continue };
            let missing = draft.peak.0.saturating_sub(budget) + limit.saturating_sub(draft.most_live.0);
            fits |= attempts.consider(name, draft);
            if !fits {
                over.get_or_insert(missing);
            }
        }
        over.filter(|over| *over > 0)
    }

    /// Whether the best placed plan takes at most 1/`share` longer than the best decisions.
    fn is_placed(&self, attempts: &Attempts<'_>, share: u64) -> bool {
        let found = self.known.first().map_or(0, |known| known.0.time);
        attempts.time().is_some_and(|time| time.0 <= found + found / share)
    }

    fn searching(&self) -> Search<'m, 'a> {
        Search::new(self.model, self.model.drafter.options.budget.0, self.least).with_reserve(&self.reserve)
    }

    fn draft(&self, decisions: &Decisions, effort: Effort) -> Option<Draft> {
        let mut search = self.searching();
        search.evaluate(decisions, &mut Work { visits: u64::MAX, end: End::default() })?;
        let script = search.evaluator().script();
        // A failed placement must leave time for another. If no plan is placed yet, this one gets all the remaining time.
        let end = if self.end.is_over() { self.model.drafter.end } else { self.end }.part(2);
        Some(self.model.drafter.draft_with(&script, &decisions.points, effort, end))
    }

    /// Improves all known decisions with the bytes left free, in one of `parts` equal parts of the remaining time. Keeps them unchanged and returns
    /// `false` if none fit.
    fn search(&mut self, visits: u64, parts: usize) -> bool {
        let share = visits / (MAX_KNOWN as u64 + 2);
        // The rest of the time is for placements with more bytes left free, in case this one wastes too much.
        let end = self.end.part(parts);
        let count = self.known.len();
        let found = on_threads(count, |place| {
            let (_, decisions, name) = &self.known[place];
            let mut decisions = decisions.clone();
            let mut search = self.searching();
            // A placement may take all the remaining time, and the plan must still fit then.
            let mut work = Work { visits: share, end: end.untimed() };
            if end.is_timed() {
                work.visits /= TIMED_WORK_FACTOR;
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
        if let Some(frugal) = self.frugal.as_ref().filter(|_| found.is_empty()) {
            let (mut search, mut decisions) = (self.searching(), frugal.clone());
            let mut work = Work { visits: share, end };
            if let Some(outcome) = search.repair(&mut decisions, &mut work) {
                let outcome = search.restore(&mut decisions, outcome, &mut work);
                found.push((search.improve(&mut decisions, outcome, &mut work), decisions, "least".to_owned()));
            }
        }
        found.sort_by_key(|known| known.0.rank());
        // Two searches continue from the best decisions, with different random numbers.
        let best = found.first().cloned();
        let more = on_threads(2, |seed| {
            let (outcome, mut decisions, name) = best.clone()?;
            let mut search = self.searching().with_seed(seed as u64 + 2);
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
