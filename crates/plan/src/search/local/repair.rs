//! Repairs decisions that do not fit: at the worst moment, evicts the tensor that frees the most bytes for its time.

use crate::search::decisions::{Choice, Decisions};
use crate::search::evaluate::{Cutoff, Evaluation};
use crate::search::local::{Change, Search, Work, apply};

/// The most changes that are evaluated before one is made, the most promising first. None is evaluated whose estimate is worse than a found one.
///
/// **Source**: lazy evaluation, Minoux 1978.
const MAX_TRIED: usize = 6;

/// Steps with more operations make several changes at once while many bytes are missing.
const LARGE_STEP_OPERATIONS: usize = 800;

impl Search<'_, '_> {
    /// Makes decisions fit the limit by evicting one tensor after another, if possible.
    pub(in crate::search) fn repair(&mut self, decisions: &mut Decisions, work: &mut Work<'_>) -> Option<Evaluation> {
        let mut now = self.feasible(decisions, work)?;
        while now.excess > 0 && !work.is_spent() {
            if self.model.touches.len() > LARGE_STEP_OPERATIONS && self.take_many(decisions) {
                now = self.evaluate(decisions, work)?;
                continue;
            }
            let changes = self.relief(decisions, &now);
            let mut best: Option<(u128, Change, Evaluation)> = None;
            let mut is_last = false;
            let less = Cutoff { excess: now.excess - 1, time: u64::MAX };
            for (estimate, change) in changes.into_iter().take(MAX_TRIED) {
                // The estimates of all further changes are higher.
                if best.as_ref().is_some_and(|best| best.0 <= estimate) {
                    break;
                }
                let undo = apply(decisions, change);
                let outcome = self.evaluate_within(decisions, less, work);
                apply(decisions, undo);
                is_last = false;
                let Some(outcome) = outcome.filter(|outcome| outcome.excess < now.excess) else { continue };
                let freed = u128::from(now.excess - outcome.excess);
                let cost = u128::from(outcome.time.saturating_sub(now.time).max(1));
                let rank = (cost << 48) / freed;
                if best.as_ref().is_none_or(|best| rank < best.0) {
                    best = Some((rank, change, outcome));
                    is_last = true;
                }
            }
            // A single change may free nothing if several tensors come back together at the worst moment.
            let Some((_, change, outcome)) = best else { return self.squeeze(decisions, now, work) };
            apply(decisions, change);
            // Later evaluations have replaced the moments of the best one.
            now = if is_last { outcome } else { self.evaluate(decisions, work)? };
        }
        (now.excess == 0).then_some(now)
    }

    /// For a large step: evicts many tensors at once, the most promising first, until half of the missing bytes are free at each operation. Returns
    /// whether it evicted any.
    fn take_many(&self, decisions: &mut Decisions) -> bool {
        let (model, limit) = (self.model, self.evaluator.limit);
        let mut missing = vec![0; model.touches.len()];
        for (moment, live) in self.evaluator.moments().iter().zip(&self.evaluator.live) {
            let over = live.saturating_sub(limit);
            missing[moment.at()] = missing[moment.at()].max(over.div_ceil(2));
        }
        let crowded = self.crowded();
        let mut changes = Vec::new();
        for (interval, of) in model.intervals.iter().enumerate() {
            let at = crowded[of.to] - crowded[of.from + 1].min(crowded[of.to]);
            if !of.is_tail && at > 0 && decisions.intervals[interval] == Choice::Keep {
                self.offer(interval, decisions, u128::from(at), &mut changes);
            }
        }
        changes.sort_by_key(|(rank, _)| *rank);
        let mut is_any = false;
        for (_, change) in changes {
            let Change::IdleInterval(interval, _) = change else { continue };
            let of = &model.intervals[interval];
            let idle = &mut missing[of.from + 1..of.to];
            if decisions.intervals[interval] == Choice::Keep && idle.iter().any(|missing| *missing > 0) {
                idle.iter_mut().for_each(|missing| *missing = missing.saturating_sub(of.bytes));
                apply(decisions, change);
                is_any = true;
            }
        }
        is_any
    }

    /// Before each operation: the number of moments over the limit so far.
    fn crowded(&self) -> Vec<u32> {
        let mut over = vec![0; self.model.touches.len() + 1];
        for (moment, live) in self.evaluator.moments().iter().zip(&self.evaluator.live) {
            over[moment.at() + 1] += u32::from(*live > self.evaluator.limit);
        }
        for place in 1..over.len() {
            over[place] += over[place - 1];
        }
        over
    }

    /// Adds the changes that evict a tensor, or more of it, ranked by time per byte at `moments` moments.
    fn offer(&self, interval: usize, decisions: &Decisions, moments: u128, changes: &mut Vec<(u128, Change)>) {
        let of = &self.model.intervals[interval];
        let freed = moments * u128::from(of.bytes.max(1));
        let mut offer = |choice: Choice, cost: u64| {
            if self.is_open(interval, choice) && (self.prefer.may_move || choice != Choice::Move) {
                changes.push(((u128::from(cost.max(1)) << 48) / freed, Change::IdleInterval(interval, choice)));
            }
        };
        let link = self.model.copies[interval].0;
        match decisions.intervals[interval] {
            Choice::Keep => {
                offer(Choice::Rebuild, self.rebuilding(interval, decisions));
                offer(Choice::Move, link / 6);
            }
            Choice::Rebuild => {
                offer(Choice::Again, self.rebuilding(interval, decisions));
                offer(Choice::Move, link / 6);
            }
            Choice::Move if !of.producers.is_empty() => offer(Choice::Rebuild, self.rebuilding(interval, decisions)),
            Choice::Move | Choice::Again => {}
        }
    }

    /// Lets rebuilt tensors leave between their uses while that helps.
    fn squeeze(&mut self, decisions: &mut Decisions, mut now: Evaluation, work: &mut Work<'_>) -> Option<Evaluation> {
        self.evaluate(decisions, work)?;
        let at = self.evaluator.moments()[now.worst].at();
        let mut intervals: Vec<usize> = (0..self.model.intervals.len())
            .filter(|&interval| {
                let of = &self.model.intervals[interval];
                !of.is_tail && of.from < at && at < of.to
            })
            .collect();
        intervals.sort_by_key(|&interval| std::cmp::Reverse(self.model.intervals[interval].bytes));
        for interval in intervals {
            if now.excess == 0 || work.is_spent() {
                break;
            }
            for choice in [Choice::Again, Choice::Rebuild, Choice::Move] {
                let is_barred = choice == Choice::Move && !self.prefer.may_move;
                if decisions.intervals[interval] == choice || !self.is_open(interval, choice) || is_barred {
                    continue;
                }
                let undo = apply(decisions, Change::IdleInterval(interval, choice));
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

    /// Keeps tensors that were to be recomputed but cannot be.
    fn feasible(&mut self, decisions: &mut Decisions, work: &mut Work<'_>) -> Option<Evaluation> {
        for interval in 0..decisions.intervals.len() {
            if !self.is_open(interval, decisions.intervals[interval]) {
                decisions.intervals[interval] = Choice::Keep;
            }
        }
        self.evaluate(decisions, work)
    }

    /// Changes that may free bytes at the worst moment, most promising first.
    fn relief(&self, decisions: &Decisions, now: &Evaluation) -> Vec<(u128, Change)> {
        let model = self.model;
        let moments = self.evaluator.moments();
        let worst = moments[now.worst];
        let at = worst.at();
        let crowded = self.crowded();
        let mut changes = Vec::new();
        for (interval, of) in model.intervals.iter().enumerate() {
            let covers = of.from < at && at < of.to || (worst.again && of.from < at && at == of.to);
            if !of.is_tail && covers {
                let all = (crowded[of.to] - crowded[of.from + 1]).max(1);
                let moments = if self.prefer.worst_alone { 1 } else { u128::from(all) };
                self.offer(interval, decisions, moments, &mut changes);
            }
        }
        let operation = worst.operation();
        let (points, chosen) = (&model.points[operation], decisions.points[operation]);
        for lower in 0..chosen {
            let freed = u128::from(points[chosen].scratch - points[lower].scratch).max(1);
            let cost = points[lower].time - points[chosen].time;
            changes.push(((u128::from(cost.max(1)) << 48) / freed, Change::Point(operation, lower)));
        }
        changes.sort_by_key(|(rank, _)| *rank);
        changes
    }

    /// The approximate time of recomputing an interval's tensor, including its absent inputs.
    fn rebuilding(&self, interval: usize, decisions: &Decisions) -> u64 {
        let model = self.model;
        let mut seen = vec![interval];
        let mut place = 0;
        let mut time = 0;
        while let Some(&current) = seen.get(place) {
            let of = &model.intervals[current];
            time += model.least_again(&of.producers);
            for &read in of.producers.iter().flat_map(|run| &model.runs[*run].reads) {
                let inside = model.interval_at(read, model.intervals[interval].to);
                if let Some(inside) = inside
                    && !seen.contains(&inside)
                    && matches!(decisions.intervals[inside], Choice::Again)
                        | (model.intervals[inside].is_tail && decisions.intervals[inside] != Choice::Keep)
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
}
