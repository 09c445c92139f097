//! Improves decisions against the evaluator: repairs what does not fit, then gives back what was given up needlessly,
//! then tries again around random places.
//!
//! ```text
//! over the limit    give up at the worst moment what frees the most bytes for its time, until everything fits
//! fits              keep again, most expensive first, whatever still fits
//! improve           undo a few decisions around a random moment, repair, give back; continue from the better one
//! ```

use super::evaluate::{Choice, Decisions, Evaluator, Outcome};
use super::model::Model;
use crate::plan::stop::End;

/// How many of the most promising changes are carried out in thought before one is taken.
const TRIED: usize = 6;

/// Attempts without improvement before a search ends, besides a few for each decision.
const LOST: usize = 40;

/// How many attempts ago something was accepted that a new one is compared with.
const PATIENCE: usize = 30;

/// Operations of a step in which several changes are made at once while much is missing, and how many at most.
const LARGE: usize = 800;
const MANY: usize = 64;

/// Changes that are tried to make up for a random one.
const AROUND: usize = 10;

/// Random choices; keeping is what is hoped for.
const CHOICES: [Choice; 5] = [Choice::Keep, Choice::Rebuild, Choice::Again, Choice::Move, Choice::Keep];

/// A change of one decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Gap(usize, Choice),
    Point(usize, usize),
}

/// The work that a search may still do.
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

/// What a repair gives up first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefer {
    /// Whether it may move tensors.
    pub(super) may_move: bool,
    /// Whether only bytes at the worst moment count, not at all moments over the limit.
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

    /// The same with other random numbers.
    pub(super) fn with_seed(mut self, seed: u64) -> Search<'m, 'a> {
        self.random = seed;
        self
    }

    pub(super) fn evaluate(&mut self, decisions: &Decisions, work: &mut Work<'_>) -> Option<Outcome> {
        let outcome = self.evaluator.evaluate(decisions);
        work.visits = work.visits.saturating_sub(self.evaluator.moments.len() as u64);
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

    /// Makes decisions fit the limit, if that is possible by giving up one thing after the other.
    pub(super) fn repair(&mut self, decisions: &mut Decisions, work: &mut Work<'_>) -> Option<Outcome> {
        let mut now = self.feasible(decisions, work)?;
        while now.excess > 0 && !work.is_spent() {
            let mut changes = self.relief(decisions, &now);
            if self.model.touches.len() > LARGE && self.take_many(decisions, &now, &changes) {
                now = self.evaluate(decisions, work)?;
                continue;
            }
            changes.truncate(TRIED);
            let mut best: Option<(u128, Change, Outcome)> = None;
            for (_, change) in changes {
                let undo = apply(decisions, change);
                let outcome = self.evaluate(decisions, work);
                apply(decisions, undo);
                let Some(outcome) = outcome.filter(|outcome| outcome.excess < now.excess) else { continue };
                let freed = u128::from(now.excess - outcome.excess);
                let cost = u128::from(outcome.time.saturating_sub(now.time).max(1));
                let rank = (cost << 48) / freed;
                if best.as_ref().is_none_or(|best| rank < best.0) {
                    best = Some((rank, change, outcome));
                }
            }
            // One change alone may free nothing at the worst moment where several tensors come back together.
            let Some((_, change, _)) = best else { return self.squeeze(decisions, now, work) };
            apply(decisions, change);
            // Once more, for its moments.
            now = self.evaluate(decisions, work)?;
        }
        (now.excess == 0).then_some(now)
    }

    /// In a large step: makes the most promising changes at once, up to half of what is missing at the worst moment.
    fn take_many(&self, decisions: &mut Decisions, now: &Outcome, changes: &[(u128, Change)]) -> bool {
        let missing = now.peak.saturating_sub(self.evaluator.limit) / 2;
        let (mut freed, mut taken) = (0, 0);
        let mut seen = Vec::new();
        for &(_, change) in changes {
            let Change::Gap(gap, choice) = change else { continue };
            if freed >= missing || taken == MANY {
                break;
            }
            if decisions.gaps[gap] == Choice::Keep && !seen.contains(&gap) {
                seen.push(gap);
                apply(decisions, Change::Gap(gap, choice));
                freed += self.model.gaps[gap].bytes;
                taken += 1;
            }
        }
        taken > 1
    }

    /// Lets rebuilt tensors leave between their uses as long as that helps.
    fn squeeze(&mut self, decisions: &mut Decisions, mut now: Outcome, work: &mut Work<'_>) -> Option<Outcome> {
        self.evaluate(decisions, work)?;
        let at = self.evaluator.moments[now.worst].at;
        let mut gaps: Vec<usize> = (0..self.model.gaps.len())
            .filter(|&gap| {
                let of = &self.model.gaps[gap];
                !of.is_tail && of.from < at && at < of.to
            })
            .collect();
        gaps.sort_by_key(|&gap| std::cmp::Reverse(self.model.gaps[gap].bytes));
        for gap in gaps {
            if now.excess == 0 || work.is_spent() {
                break;
            }
            for choice in [Choice::Again, Choice::Rebuild, Choice::Move] {
                let is_barred = choice == Choice::Move && !self.prefer.may_move;
                if decisions.gaps[gap] == choice || !self.is_open(gap, choice) || is_barred {
                    continue;
                }
                let undo = apply(decisions, Change::Gap(gap, choice));
                match self
                    .evaluate(decisions, work)
                    .filter(|outcome| (outcome.peak, outcome.excess) < (now.peak, now.excess))
                {
                    Some(outcome) => now = outcome,
                    None => _ = apply(decisions, undo),
                }
            }
        }
        if now.excess == 0 { Some(now) } else { None }
    }

    /// Keeps what cannot be computed again although it was decided to be.
    fn feasible(&mut self, decisions: &mut Decisions, work: &mut Work<'_>) -> Option<Outcome> {
        for gap in 0..decisions.gaps.len() {
            if !self.is_open(gap, decisions.gaps[gap]) {
                decisions.gaps[gap] = Choice::Keep;
            }
        }
        self.evaluate(decisions, work)
    }

    /// Whether a gap may have a choice, as far as it can be said alone.
    pub(super) fn is_open(&self, gap: usize, choice: Choice) -> bool {
        let of = &self.model.gaps[gap];
        match choice {
            Choice::Keep => true,
            Choice::Move => !of.is_tail,
            Choice::Rebuild | Choice::Again => of.is_tail || !of.producers.is_empty(),
        }
    }

    /// Changes that may free bytes at the worst moment, most promising first.
    fn relief(&self, decisions: &Decisions, now: &Outcome) -> Vec<(u128, Change)> {
        let model = self.model;
        let moments = &self.evaluator.moments;
        let worst = moments[now.worst];
        let at = worst.at;
        // How many operations around are over the limit, before each operation.
        let mut over = vec![0_u32; model.touches.len() + 1];
        for moment in moments.iter().filter(|moment| moment.live > self.evaluator.limit) {
            over[moment.at + 1] += 1;
        }
        for place in 1..over.len() {
            over[place] += over[place - 1];
        }
        let mut changes = Vec::new();
        for (gap, of) in model.gaps.iter().enumerate() {
            let covers = of.from < at && at < of.to || (worst.again && of.from < at && at == of.to);
            if of.is_tail || !covers {
                continue;
            }
            let moments =
                if self.prefer.worst_alone { 1 } else { u128::from((over[of.to] - over[of.from + 1]).max(1)) };
            let freed = moments * u128::from(of.bytes.max(1));
            let mut offer = |choice: Choice, cost: u64| {
                if self.is_open(gap, choice) && (self.prefer.may_move || choice != Choice::Move) {
                    changes.push(((u128::from(cost.max(1)) << 48) / freed, Change::Gap(gap, choice)));
                }
            };
            let link = model.copies[gap].0;
            match decisions.gaps[gap] {
                Choice::Keep => {
                    offer(Choice::Rebuild, self.rebuilding(gap, decisions));
                    offer(Choice::Move, link / 6);
                }
                Choice::Rebuild => {
                    offer(Choice::Again, self.rebuilding(gap, decisions));
                    offer(Choice::Move, link / 6);
                }
                Choice::Move if !of.producers.is_empty() => offer(Choice::Rebuild, self.rebuilding(gap, decisions)),
                Choice::Move | Choice::Again => {}
            }
        }
        let operation = worst.operation;
        let (points, chosen) = (&model.points[operation], decisions.points[operation]);
        for lower in 0..chosen {
            let freed = u128::from(points[chosen].scratch - points[lower].scratch).max(1);
            let cost = points[lower].time - points[chosen].time;
            changes.push(((u128::from(cost.max(1)) << 48) / freed, Change::Point(operation, lower)));
        }
        changes.sort_by_key(|(rank, _)| *rank);
        changes
    }

    /// About how long it takes to compute a gap's tensor again, with everything that is not there.
    fn rebuilding(&self, gap: usize, decisions: &Decisions) -> u64 {
        let model = self.model;
        let mut seen = vec![gap];
        let mut place = 0;
        let mut time = 0;
        while let Some(&current) = seen.get(place) {
            let of = &model.gaps[current];
            time += model.least_again(&of.producers);
            for &read in of.producers.iter().flat_map(|run| &model.runs[*run].reads) {
                let inside = model.gap_at(read, model.gaps[gap].to);
                if let Some(inside) = inside
                    && !seen.contains(&inside)
                    && matches!(decisions.gaps[inside], Choice::Again)
                        | (model.gaps[inside].is_tail && decisions.gaps[inside] != Choice::Keep)
                {
                    seen.push(inside);
                }
            }
            place += 1;
            if place > 64 {
                break;
            }
        }
        time
    }

    /// Keeps again, or gives up more cheaply, whatever makes the step faster and still fits.
    pub(super) fn restore(&mut self, decisions: &mut Decisions, mut now: Outcome, work: &mut Work<'_>) -> Outcome {
        for _ in 0..3 {
            let before = now.rank();
            let mut order: Vec<(u64, Change)> = Vec::new();
            for gap in (0..decisions.gaps.len()).filter(|gap| !self.model.gaps[*gap].is_tail) {
                if decisions.gaps[gap] != Choice::Keep {
                    let of = &self.model.gaps[gap];
                    let saved = match decisions.gaps[gap] {
                        Choice::Move => self.model.copies[gap].0 / 6,
                        _ => self.model.least_again(&of.producers),
                    };
                    order.push((saved, Change::Gap(gap, Choice::Keep)));
                }
            }
            for (at, points) in self.model.points.iter().enumerate() {
                for higher in decisions.points[at] + 1..points.len() {
                    let saved = points[decisions.points[at]].time - points[higher].time;
                    order.push((saved, Change::Point(at, higher)));
                }
            }
            order.sort_by_key(|(saved, _)| std::cmp::Reverse(*saved));
            for (_, change) in order {
                if work.is_spent() {
                    return now;
                }
                self.accept(decisions, change, &mut now, work);
                if let Change::Gap(gap, _) = change {
                    for other in [Choice::Rebuild, Choice::Again, Choice::Move] {
                        if decisions.gaps[gap] != Choice::Keep
                            && decisions.gaps[gap] != other
                            && self.is_open(gap, other)
                        {
                            self.accept(decisions, Change::Gap(gap, other), &mut now, work);
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

    /// Makes a change if it ranks better.
    fn accept(&mut self, decisions: &mut Decisions, change: Change, now: &mut Outcome, work: &mut Work<'_>) -> bool {
        let undo = apply(decisions, change);
        if undo == change {
            return false;
        }
        match self.evaluate(decisions, work) {
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

    /// Undoes a few decisions around a random gap and decides them anew, as long as there is work left.
    pub(super) fn improve(&mut self, decisions: &mut Decisions, mut now: Outcome, work: &mut Work<'_>) -> Outcome {
        let open: Vec<usize> = (0..decisions.gaps.len()).filter(|gap| !self.model.gaps[*gap].is_tail).collect();
        if open.is_empty() {
            return now;
        }
        // Something slower than now is accepted if it is faster than what was accepted a while ago, so that the search
        // leaves the nearest valley.
        let (mut current, mut at) = (decisions.clone(), now.clone());
        let mut before = vec![now.rank(); PATIENCE];
        let mut failed = 0;
        let mut round = 0;
        while !work.is_spent() && failed < LOST + 12 * open.len() && now.time > self.least {
            // Also counts attempts that change nothing.
            work.visits -= 1;
            failed += 1;
            round = (round + 1) % PATIENCE;
            let mut other = current.clone();
            let center = self.below(open.len());
            for _ in 0..1 + self.below(4) {
                let near = (center + 4 * open.len() + self.below(9) - 4) % open.len();
                let gap = open[if self.below(3) == 0 { self.below(open.len()) } else { near }];
                let choice = CHOICES[self.below(CHOICES.len())];
                if self.is_open(gap, choice) {
                    other.gaps[gap] = choice;
                }
            }
            if other == current {
                continue;
            }
            let Some(mut outcome) = self.repair(&mut other, work) else { continue };
            if outcome.time > at.time + at.time / 100 {
                continue;
            }
            for _ in 0..AROUND {
                let gap = open[self.below(open.len())];
                let choice = CHOICES[self.below(CHOICES.len())];
                if other.gaps[gap] != Choice::Keep && self.is_open(gap, choice) {
                    self.accept(&mut other, Change::Gap(gap, choice), &mut outcome, work);
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
        Change::Gap(gap, choice) => Change::Gap(gap, std::mem::replace(&mut decisions.gaps[gap], choice)),
        Change::Point(at, point) => Change::Point(at, std::mem::replace(&mut decisions.points[at], point)),
    }
}
