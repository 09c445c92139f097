//! Simulates decisions in the search's own terms: the order of operations, the live tensors at each moment, and the time.
//!
//! ```text
//! decisions   x: rebuild    y: move    z: keep
//! moments     .. | 4 | 5 | 6 | 2 again | 7 | ..
//! live            z   z   z   z x       z x y
//! link        |-- y out --|     |- y in -|
//! ```
//!
//! Memory is exact in the order of the operations. The time leaves out two slowdowns: of copies in opposite directions, and of computations that run
//! concurrently with copies. The simulator makes the final choice between the plans of a search.
//!
//! A search changes few decisions at a time. An evaluation therefore begins at the first operation that a change affects, and stops as soon as the
//! decisions are certain to be rejected.

mod script;
#[cfg(test)]
mod tests;
mod trace;

use crate::schedule::script::Move;
use crate::search::decisions::{Choice, Decisions, everything};
use crate::search::model::{IdleInterval, Model, Slot};
use crate::step::TensorId;
use trace::{Fetch, Leaving, Moment, Trace};

/// The predicted time and memory of decisions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Evaluation {
    pub(super) time: u64,
    pub(super) peak: u64,
    /// Bytes over the limit, summed over all moments.
    pub(super) excess: u64,
    /// The moment of the peak.
    pub(super) worst: usize,
}

impl Evaluation {
    /// Less is better: first to fit, then to be fast.
    pub(super) fn rank(&self) -> (u64, u64, u64) {
        (self.excess, self.time, self.peak)
    }
}

/// Limits beyond which an outcome is rejected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cutoff {
    /// Bytes over the limit, summed over all moments.
    pub(super) excess: u64,
    /// Its time, if `excess` is 0.
    pub(super) time: u64,
}

impl Cutoff {
    const ANY: Cutoff = Cutoff { excess: u64::MAX, time: u64::MAX };

    /// The limits of an outcome that may rank before `outcome`.
    pub(super) fn before(outcome: &Evaluation) -> Cutoff {
        Cutoff { excess: outcome.excess, time: if outcome.excess == 0 { outcome.time } else { u64::MAX } }
    }
}

/// The lead of a copy back, in copy times.
const PREFETCH_LEAD: u64 = 2;

/// Scanning this number of moments for returning tensors counts as one visit.
const MOMENTS_PER_VISIT: usize = 8;

/// An evaluation fails at more reruns than this per operation of the step.
const MAX_RERUNS_PER_OPERATION: usize = 8;

/// The bytes of every tensor on the device at every moment under some decisions.
pub(super) struct Evaluator<'m, 'a> {
    pub(super) model: &'m Model<'a>,
    pub(super) limit: u64,
    /// For each operation: bytes that stay free, because placements waste some.
    reserve: Vec<u64>,
    trace: Trace,
    /// The decisions that the trace belongs to.
    decisions: Decisions,
    /// Time of all operations of the step under these decisions.
    total: u64,
    /// For each moment of the last whole evaluation: live bytes.
    pub(super) live: Vec<u64>,
    /// Moments before which a copy back begins.
    prefetches: Vec<(usize, Move)>,
    /// For each tensor: the number of tensors being rebuilt that read it.
    wanted: Vec<u32>,
    /// The stack of tensors being rebuilt, each for the previous one, with their producers.
    stack: Vec<(usize, &'m [usize])>,
    /// Visits of the last whole evaluation.
    visits: u64,
    /// The operation of the step that comes next.
    at: usize,
}

impl<'m, 'a> Evaluator<'m, 'a> {
    pub(super) fn new(model: &'m Model<'a>, limit: u64) -> Evaluator<'m, 'a> {
        let tensors = model.managed.len();
        let decisions = everything(model);
        let total = model.slots.iter().map(|slot| slot.time + time_of(model, slot, &decisions)).sum();
        Evaluator {
            model,
            limit,
            reserve: vec![0; model.points.len()],
            trace: Trace::new(tensors),
            decisions,
            total,
            live: Vec::new(),
            prefetches: Vec::new(),
            wanted: vec![0; tensors],
            stack: Vec::new(),
            visits: model.slots.len() as u64,
            at: 0,
        }
    }

    /// Leaves this many bytes free at each operation by counting them as live.
    pub(super) fn with_reserve(self, reserve: &[u64]) -> Evaluator<'m, 'a> {
        Evaluator { reserve: reserve.to_vec(), ..self }
    }

    /// The moments of the last whole evaluation.
    pub(super) fn moments(&self) -> &[Moment] {
        &self.trace.moments
    }

    /// Rewinds to the first operation affected by a decision that differs from the last evaluation.
    fn go_back(&mut self, decisions: &Decisions) {
        let model = self.model;
        let mut first = model.points.len();
        for (interval, (was, is)) in self.decisions.intervals.iter().zip(&decisions.intervals).enumerate() {
            if was != is {
                // A tensor that will move is copied as soon as it is written.
                let is_copied = [was, is].contains(&&Choice::Move);
                first = first.min(if is_copied {
                    model.intervals[interval].written
                } else {
                    model.intervals[interval].from
                });
            }
        }
        // Few changes concern points, so one comparison of all is faster than one of each.
        if self.decisions.points != decisions.points {
            for (at, (was, is)) in self.decisions.points.iter().zip(&decisions.points).enumerate() {
                if was != is {
                    let points = &model.points[at];
                    self.total = self.total - points[*was].time + points[*is].time;
                    first = first.min(at);
                }
            }
        }
        if let Some(slot) = model.slot_of.get(first) {
            self.trace.back_to(*slot);
            self.decisions.clone_from(decisions);
        }
    }

    /// Evaluates decisions. `None` if a needed tensor cannot be recomputed or the host is too small.
    ///
    /// - Cost: O(slots + reruns + copies × distance of their prefetches), the first two counted from the first operation
    ///   that differs.
    pub(super) fn evaluate(&mut self, decisions: &Decisions) -> Option<Evaluation> {
        self.evaluate_within(decisions, Cutoff::ANY)
    }

    /// Like [`Self::evaluate`], but returns `None` as soon as the outcome is certain to exceed `most`.
    pub(super) fn evaluate_within(&mut self, decisions: &Decisions, most: Cutoff) -> Option<Evaluation> {
        let model = self.model;
        self.go_back(decisions);
        while let Some(slot) = model.slots.get(self.trace.slots()) {
            self.trace.begin();
            if self.carry_out(slot, decisions).is_none() {
                self.trace.back_to(self.trace.slots() - 1);
                self.wanted.fill(0);
                return None;
            }
            if self.is_over(most) {
                return None;
            }
        }
        if self.trace.sums.moved > model.drafter.options.host_budget.0 {
            return None;
        }
        let (stall, counted) = self.come_back();
        self.visits = (self.trace.moments.len() + counted / MOMENTS_PER_VISIT) as u64;
        let sums = &self.trace.sums;
        let mut outcome = Evaluation { time: sums.now + stall + self.beside(), ..Evaluation::default() };
        for (place, live) in self.live.iter().enumerate() {
            outcome.excess += live.saturating_sub(self.limit);
            if *live > outcome.peak {
                (outcome.peak, outcome.worst) = (*live, place);
            }
        }
        Some(outcome)
    }

    /// Whether the trace so far already exceeds `most`.
    fn is_over(&self, most: Cutoff) -> bool {
        let sums = &self.trace.sums;
        sums.excess > most.excess || most.excess == 0 && sums.now + (self.total - sums.spent) > most.time
    }

    /// Runs a slot; `None` if a needed tensor cannot be recomputed.
    fn carry_out(&mut self, slot: &Slot, decisions: &Decisions) -> Option<()> {
        let model = self.model;
        let at = slot.from;
        self.at = at;
        if slot.is_quiet {
            self.pass(slot);
            return Some(());
        }
        let touches = &model.touches[at];
        for touch in touches.iter().filter(|touch| touch.comes && touch.reads) {
            if !self.trace.is_present(touch.tensor()) {
                self.restore(touch.tensor(), at, decisions)?;
            }
        }
        for touch in touches {
            if touch.comes {
                self.appear(touch.tensor());
            }
            if touch.writes {
                self.trace.set_on_host(touch.tensor(), None);
            }
        }
        self.run(at, at, false, decisions);
        for touch in touches {
            if touch.writes && !touch.dies {
                self.copy_ahead(touch.tensor(), at, decisions);
            }
        }
        for touch in touches {
            match touch.interval().map(|interval| decisions.intervals[interval]) {
                _ if touch.dies => self.leave(touch.tensor()),
                Some(Choice::Move) => self.move_out(touch.tensor()),
                Some(Choice::Rebuild | Choice::Again) => self.leave(touch.tensor()),
                Some(Choice::Keep) | None => {}
            }
        }
        self.trace.sums.now += slot.time;
        self.trace.sums.spent += slot.time + time_of(model, slot, decisions);
        Some(())
    }

    /// The work of a full evaluation in visits, even if most of it was reused: its moments, plus fractions for scanning returning tensors.
    pub(super) fn visits(&self) -> u64 {
        self.visits
    }

    fn appear(&mut self, tensor: usize) {
        self.trace.appear(tensor, self.model.bytes[tensor]);
    }

    /// Frees a tensor's bytes after the last moment.
    fn leave(&mut self, tensor: usize) {
        if self.trace.leave(tensor, self.model.bytes[tensor]) {
            self.trace.moves.push((self.trace.moments.len(), Move::Leave(TensorId(tensor))));
        }
    }

    /// Starts the copy of a just written tensor to the host, if the tensor will move.
    fn copy_ahead(&mut self, tensor: usize, at: usize, decisions: &Decisions) {
        let model = self.model;
        let next = model.next_intervals(tensor, at).find(|interval| decisions.intervals[*interval] == Choice::Move);
        if next.is_some() {
            self.copy_out(tensor);
        }
    }

    fn copy_out(&mut self, tensor: usize) -> u64 {
        if let Some(end) = self.trace.on_host(tensor) {
            return end;
        }
        let time = self.model.copy_times(tensor).0;
        let sums = &mut self.trace.sums;
        let end = sums.link_free.max(sums.now) + time;
        sums.link_free = end;
        sums.moved += self.model.bytes[tensor];
        sums.copying += time;
        self.trace.set_on_host(tensor, Some(end));
        self.trace.moves.push((self.trace.moments.len(), Move::Offload(TensorId(tensor))));
        end
    }

    fn move_out(&mut self, tensor: usize) {
        let end = self.copy_out(tensor);
        self.trace.leave_after(tensor, end);
    }

    /// Frees tensors whose copies have ended, and waits for further copies if the limit requires it.
    fn free(&mut self, needed: u64) {
        while let Some(Leaving { tensor, end }) = self.trace.first_leaving() {
            let sums = &mut self.trace.sums;
            if end > sums.now && sums.live + needed <= self.limit {
                break;
            }
            sums.now = sums.now.max(end);
            self.trace.unqueue(0);
            self.leave(tensor as usize);
        }
    }

    /// Adds a moment that needs `needed` bytes in addition to the managed tensors.
    fn add(&mut self, needed: u64, moment: Moment, time: u64) {
        let sums = &mut self.trace.sums;
        let live = sums.live + needed;
        sums.excess += live.saturating_sub(self.limit);
        sums.now += time;
        self.trace.live.push(live);
        self.trace.moments.push(moment);
    }

    /// Runs a slot during which no tensor comes or goes.
    fn pass(&mut self, slot: &Slot) {
        let needs = slot.needs + self.reserve[slot.from..slot.to].iter().max().unwrap_or(&0);
        self.free(needs);
        let (operation, at, last) = (slot.from, slot.from, slot.to - 1);
        let moment = Moment::of(operation, false, self.trace.sums.now, at..=last);
        self.add(needs, moment, slot.time);
        self.trace.sums.spent += slot.time;
    }

    /// Runs an operation just before `at`, or at `at`.
    fn run(&mut self, operation: usize, at: usize, again: bool, decisions: &Decisions) {
        let model = self.model;
        let point = model.points[operation][decisions.points[operation]];
        let fixed = if again { model.fixed_before[at] } else { model.fixed[at] };
        let needed = fixed + point.scratch + self.reserve[at];
        self.free(needed);
        let time = if again { model.again[operation].unwrap_or(point.time) } else { point.time };
        self.add(needed, Moment::of(operation, again, self.trace.sums.now, at..=at), time);
    }

    /// Brings back an absent tensor, and everything that its rebuild needs.
    fn restore(&mut self, tensor: usize, at: usize, decisions: &Decisions) -> Option<()> {
        let model = self.model;
        if self.fetch(tensor, decisions) {
            return Some(());
        }
        let mut stack = std::mem::take(&mut self.stack);
        stack.clear();
        stack.push((tensor, self.producers(tensor, at)?));
        self.want(stack[0].1, tensor, 1);
        while let Some(&(target, producers)) = stack.last() {
            let reads = producers.iter().flat_map(|run| &model.runs[*run].reads);
            let missing =
                reads.copied().find(|&read| read != target && model.managed[read] && !self.trace.is_present(read));
            if let Some(missing) = missing {
                if !self.fetch(missing, decisions) {
                    if stack.iter().any(|(other, _)| *other == missing) {
                        return None;
                    }
                    let producers = self.producers(missing, at)?;
                    self.want(producers, missing, 1);
                    stack.push((missing, producers));
                }
                continue;
            }
            self.trace.sums.reruns += producers.len();
            if self.trace.sums.reruns > MAX_RERUNS_PER_OPERATION * model.touches.len() {
                return None;
            }
            for &run in producers {
                for &written in model.runs[run].writes.iter().filter(|written| model.managed[**written]) {
                    self.appear(written);
                }
                self.run(run, at, true, decisions);
                for &written in &model.runs[run].writes {
                    if written != target && model.managed[written] && !self.stays(written, decisions) {
                        self.leave(written);
                    }
                }
            }
            stack.pop();
            self.want(producers, target, -1);
            for read in producers.iter().flat_map(|run| &model.runs[*run].reads).copied() {
                if read != target && model.managed[read] && self.wanted[read] == 0 && !self.stays(read, decisions) {
                    self.leave(read);
                }
            }
        }
        self.stack = stack;
        Some(())
    }

    fn want(&mut self, producers: &[usize], target: usize, change: i32) {
        for run in producers {
            for &read in self.model.runs[*run].reads.iter().filter(|read| **read != target) {
                self.wanted[read] = self.wanted[read].saturating_add_signed(change);
            }
        }
    }

    /// Whether a tensor that is on the device stays there.
    fn stays(&self, tensor: usize, decisions: &Decisions) -> bool {
        match self.model.interval_at(tensor, self.at) {
            None => true,
            Some(interval) if self.model.intervals[interval].is_tail => decisions.intervals[interval] == Choice::Keep,
            Some(interval) => {
                decisions.intervals[interval] != Choice::Again || self.model.intervals[interval].to == self.at
            }
        }
    }

    /// Starts the copy back of a tensor, if it was moved. Returns whether it was.
    fn fetch(&mut self, tensor: usize, decisions: &Decisions) -> bool {
        match self.model.interval_at(tensor, self.at) {
            Some(interval) if decisions.intervals[interval] == Choice::Move && self.trace.on_host(tensor).is_some() => {
                let from = self.trace.left(tensor);
                self.trace.fetches.push(Fetch { tensor, interval, from, needed: self.trace.moments.len() });
                self.trace.sums.copying += self.model.copies[interval].1;
                self.appear(tensor);
                true
            }
            _ => false,
        }
    }

    fn producers(&self, tensor: usize, at: usize) -> Option<&'m [usize]> {
        let IdleInterval { producers, until, .. } = &self.model.intervals[self.model.interval_at(tensor, at)?];
        (!producers.is_empty() && at <= *until).then_some(producers)
    }

    /// The slowdown of computations by concurrent copies, in ns.
    fn beside(&self) -> u64 {
        let (slower, sums) = (self.model.drafter.costs.beside_copies, &self.trace.sums);
        (sums.copying.min(sums.now) as f64 * slower / (1.0 + slower)) as u64
    }
}

/// The time of a slot's first operation; 0 for quiet slots, whose total already includes it.
fn time_of(model: &Model<'_>, slot: &Slot, decisions: &Decisions) -> u64 {
    if slot.is_quiet { 0 } else { model.points[slot.from][decisions.points[slot.from]].time }
}
