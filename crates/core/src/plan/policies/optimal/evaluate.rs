//! Carries out decisions in thought: which operations run in which order, what is live at each, and how long it takes.
//!
//! ```text
//! decisions   x: rebuild    y: move    z: keep
//! moments     .. | 4 | 5 | 6 | 2 again | 7 | ..
//! live            z   z   z   z x       z x y
//! link        |-- y out --|     |- y in -|
//! ```
//!
//! Memory is exact in the order of the operations. Times leave out what copies in both directions and computations
//! beside copies cost each other; the simulator decides between the plans that come out of the search.

use std::collections::VecDeque;

use super::model::{Gap, Model};
use super::slots::Slot;
use crate::plan::script::{Move, Script};
use crate::plan::step::{OperationId, TensorId};

/// The decision for an idle interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Choice {
    /// It stays on the device.
    Keep,
    /// It is copied to the host and back.
    Move,
    /// It is computed again at the first need, also for the rebuilding of another tensor, and stays from then on.
    Rebuild,
    /// It is computed again for its own next use, and for the rebuilding of another tensor each time.
    Again,
}

/// All decisions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Decisions {
    /// For each gap of the model.
    pub(super) gaps: Vec<Choice>,
    /// For each operation: one of its points.
    pub(super) points: Vec<usize>,
}

/// One run of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) operation: usize,
    pub(super) again: bool,
    /// Live bytes.
    pub(super) live: u64,
    /// When it starts, without waits for copies from the host.
    start: u64,
    /// The next operation of the step, or this one.
    pub(super) at: usize,
    /// The last operation of those that count as this moment.
    last: usize,
}

/// What decisions lead to.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) time: u64,
    pub(super) peak: u64,
    /// Bytes over the limit, summed over all moments.
    pub(super) excess: u64,
    /// The moment of the peak.
    pub(super) worst: usize,
}

impl Outcome {
    /// Less is better: first to fit, then to be fast.
    pub(super) fn rank(&self) -> (u64, u64, u64) {
        (self.excess, self.time, self.peak)
    }
}

/// A tensor on its way back from the host.
#[derive(Clone, Copy, Debug)]
struct Fetch {
    tensor: usize,
    gap: usize,
    /// The first moment at which its bytes may be allocated.
    from: usize,
    /// The moment that needs it.
    needed: usize,
}

/// A tensor that leaves once its copy to the host has ended.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    tensor: usize,
    end: u64,
}

/// How early a copy back starts, in copy times.
const EARLY: u64 = 2;

/// Moments at which what comes back is counted in the time of visiting one.
const COUNTED: usize = 8;

/// Reruns per operation of the step at which an attempt is given up.
const MAX_RERUNS: usize = 8;

/// The bytes of every tensor on the device at every moment under some decisions.
pub(super) struct Evaluator<'m, 'a> {
    pub(super) model: &'m Model<'a>,
    pub(super) limit: u64,
    pub(super) moments: Vec<Moment>,
    /// Positions in the moments before or after which a move takes place.
    moves: Vec<(usize, bool, Move)>,
    present: Vec<bool>,
    /// For each tensor: how many moments came before it left last.
    left: Vec<usize>,
    /// For each tensor: the gap it is in.
    gap: Vec<Option<usize>>,
    /// For each tensor: when its copy on the host is complete.
    on_host: Vec<Option<u64>>,
    /// For each tensor: how many tensors being rebuilt read it.
    wanted: Vec<u32>,
    /// By the ends of their copies.
    leaving: VecDeque<Leaving>,
    /// Tensors being rebuilt, each for the one before, with their producers.
    stack: Vec<(usize, &'m [usize])>,
    fetches: Vec<Fetch>,
    live: u64,
    now: u64,
    link_free: u64,
    moved: u64,
    /// Time of all copies to the host.
    copying: u64,
    reruns: usize,
    /// Moments at which a tensor on its way back was counted.
    counted: usize,
    /// The operation of the step that comes next.
    at: usize,
}

impl<'m, 'a> Evaluator<'m, 'a> {
    pub(super) fn new(model: &'m Model<'a>, limit: u64) -> Evaluator<'m, 'a> {
        let tensors = model.managed.len();
        Evaluator {
            model,
            limit,
            moments: Vec::new(),
            moves: Vec::new(),
            present: vec![false; tensors],
            left: vec![0; tensors],
            gap: vec![None; tensors],
            on_host: vec![None; tensors],
            wanted: vec![0; tensors],
            leaving: VecDeque::new(),
            stack: Vec::new(),
            fetches: Vec::new(),
            live: 0,
            now: 0,
            link_free: 0,
            moved: 0,
            copying: 0,
            reruns: 0,
            counted: 0,
            at: 0,
        }
    }

    fn clear(&mut self) {
        self.moments.clear();
        self.moves.clear();
        self.present.fill(false);
        self.left.fill(0);
        self.gap.fill(None);
        self.on_host.fill(None);
        self.wanted.fill(0);
        self.leaving.clear();
        self.fetches.clear();
        (self.live, self.now, self.link_free, self.moved, self.copying) = (0, 0, 0, 0, 0);
        (self.reruns, self.counted) = (0, 0);
    }

    /// What these decisions lead to; `None` if something needed cannot be computed again or the host is too small.
    ///
    /// - Cost: O(slots + reruns + copies × distance of their prefetches).
    pub(super) fn evaluate(&mut self, decisions: &Decisions) -> Option<Outcome> {
        self.clear();
        let model = self.model;
        for slot in &model.slots {
            let at = slot.from;
            self.at = at;
            if slot.is_quiet {
                self.pass(slot);
                continue;
            }
            for touch in model.touches[at].iter().filter(|touch| touch.reads) {
                if !self.present[touch.tensor] {
                    self.restore(touch.tensor, at, decisions)?;
                }
            }
            for touch in &model.touches[at] {
                self.appear(touch.tensor);
                self.gap[touch.tensor] = None;
                if touch.writes {
                    self.on_host[touch.tensor] = None;
                }
            }
            self.run(at, at, false, decisions);
            for touch in &model.touches[at] {
                if touch.writes && !touch.dies {
                    self.copy_ahead(touch.tensor, at, decisions);
                }
            }
            for touch in &model.touches[at] {
                self.gap[touch.tensor] = touch.gap;
                match touch.gap.map(|gap| decisions.gaps[gap]) {
                    _ if touch.dies => self.leave(touch.tensor),
                    Some(Choice::Move) => self.move_out(touch.tensor),
                    Some(Choice::Rebuild | Choice::Again) => self.leave(touch.tensor),
                    Some(Choice::Keep) | None => {}
                }
            }
            self.now += slot.time;
        }
        if self.moved > model.drafter.options.host_budget.0 {
            return None;
        }
        let stall = self.come_back();
        let mut outcome = Outcome { time: self.now + stall + self.beside(), ..Outcome::default() };
        for (place, moment) in self.moments.iter().enumerate() {
            outcome.excess += moment.live.saturating_sub(self.limit);
            if moment.live > outcome.peak {
                (outcome.peak, outcome.worst) = (moment.live, place);
            }
        }
        Some(outcome)
    }

    /// Visits that the last evaluation took: its moments, and parts of one for counting what comes back.
    pub(super) fn visits(&self) -> u64 {
        (self.moments.len() + self.counted / COUNTED) as u64
    }

    fn appear(&mut self, tensor: usize) {
        if !self.present[tensor] {
            self.present[tensor] = true;
            self.live += self.model.bytes[tensor];
        } else if let Some(place) = self.leaving.iter().position(|leaving| leaving.tensor == tensor) {
            // Its next use came before the copy ended.
            self.leaving.remove(place);
        }
    }

    /// Frees a tensor's bytes after the last moment.
    fn leave(&mut self, tensor: usize) {
        if self.present[tensor] {
            self.present[tensor] = false;
            self.live -= self.model.bytes[tensor];
            self.left[tensor] = self.moments.len();
            self.moves.push((self.moments.len(), false, Move::Leave(TensorId(tensor))));
        }
    }

    /// Copies what has just been written to the host, if it will move.
    fn copy_ahead(&mut self, tensor: usize, at: usize, decisions: &Decisions) {
        let model = self.model;
        let next = model.next_gaps(tensor, at).find(|gap| decisions.gaps[*gap] == Choice::Move);
        if next.is_some() {
            self.copy_out(tensor);
        }
    }

    fn copy_out(&mut self, tensor: usize) -> u64 {
        if let Some(end) = self.on_host[tensor] {
            return end;
        }
        let time = self.model.copy_times(tensor).0;
        self.link_free = self.link_free.max(self.now) + time;
        self.moved += self.model.bytes[tensor];
        self.copying += time;
        self.on_host[tensor] = Some(self.link_free);
        self.moves.push((self.moments.len(), false, Move::Offload(TensorId(tensor))));
        self.link_free
    }

    fn move_out(&mut self, tensor: usize) {
        let end = self.copy_out(tensor);
        let place = self.leaving.partition_point(|leaving| leaving.end <= end);
        self.leaving.insert(place, Leaving { tensor, end });
    }

    /// Frees the bytes of tensors whose copies have ended, or must be waited for to stay within the limit.
    fn free(&mut self, needed: u64) {
        while let Some(&Leaving { tensor, end }) = self.leaving.front() {
            if end > self.now && self.live + needed <= self.limit {
                break;
            }
            self.now = self.now.max(end);
            self.leaving.pop_front();
            self.leave(tensor);
        }
    }

    /// Runs operations during which nothing comes or goes.
    fn pass(&mut self, slot: &Slot) {
        self.free(slot.needs);
        let (operation, at, last) = (slot.from, slot.from, slot.to - 1);
        let live = self.live + slot.needs;
        self.moments.push(Moment { operation, again: false, live, start: self.now, at, last });
        self.now += slot.time;
    }

    /// Runs an operation just before `at`, or at `at`.
    fn run(&mut self, operation: usize, at: usize, again: bool, decisions: &Decisions) {
        let model = self.model;
        let point = model.points[operation][decisions.points[operation]];
        let fixed = if again { model.fixed_before[at] } else { model.fixed[at] };
        let needed = fixed + point.scratch;
        self.free(needed);
        self.moments.push(Moment { operation, again, live: self.live + needed, start: self.now, at, last: at });
        self.now += if again { model.again[operation].unwrap_or(point.time) } else { point.time };
    }

    /// Brings back a tensor that is not there, and everything that takes.
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
            let missing = reads.copied().find(|&read| read != target && model.managed[read] && !self.present[read]);
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
            self.reruns += producers.len();
            if self.reruns > MAX_RERUNS * model.touches.len() {
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
        match self.gap[tensor] {
            None => true,
            Some(gap) if self.model.gaps[gap].is_tail => decisions.gaps[gap] == Choice::Keep,
            Some(gap) => decisions.gaps[gap] != Choice::Again || self.model.gaps[gap].to == self.at,
        }
    }

    /// Starts the copy back of a tensor, if it was moved.
    fn fetch(&mut self, tensor: usize, decisions: &Decisions) -> bool {
        match self.gap[tensor] {
            Some(gap) if decisions.gaps[gap] == Choice::Move && self.on_host[tensor].is_some() => {
                let from = self.left[tensor];
                self.fetches.push(Fetch { tensor, gap, from, needed: self.moments.len() });
                self.appear(tensor);
                true
            }
            _ => false,
        }
    }

    fn producers(&self, tensor: usize, at: usize) -> Option<&'m [usize]> {
        let Gap { producers, until, .. } = &self.model.gaps[self.gap[tensor]?];
        (!producers.is_empty() && at <= *until).then_some(producers)
    }

    /// Places the copies back, each as late as its time allows, or later if memory is short. Returns the time for which
    /// computations wait for them.
    fn come_back(&mut self) -> u64 {
        let mut order = std::mem::take(&mut self.fetches);
        order.sort_by_key(|fetch| fetch.needed);
        let mut next = u64::MAX;
        let mut begin_by = vec![0; order.len()];
        for (fetch, begin_by) in order.iter().zip(&mut begin_by).rev() {
            let end = self.moments[fetch.needed].start.min(next);
            *begin_by = end.saturating_sub(self.model.copies[fetch.gap].1 * EARLY);
            next = *begin_by;
        }
        let (mut earliest, mut free, mut stall) = (0, 0, 0);
        for (fetch, begin_by) in order.iter().zip(begin_by) {
            let Fetch { tensor, gap, from, needed } = *fetch;
            let bytes = self.model.bytes[tensor];
            let in_time = self.moments.partition_point(|moment| moment.start <= begin_by).saturating_sub(1);
            let mut at = in_time.max(earliest).max(from).min(needed);
            self.counted += needed - at;
            let limit = self.limit;
            if let Some(full) = self.moments[at..needed].iter().rposition(|moment| moment.live + bytes > limit) {
                at += full + 1;
            }
            self.moments[at..needed].iter_mut().for_each(|moment| moment.live += bytes);
            self.moves.push((at, true, Move::Prefetch(TensorId(tensor))));
            earliest = at;
            free = (self.moments[at].start + stall).max(free) + self.model.copies[gap].1;
            stall += free.saturating_sub(self.moments[needed].start + stall);
        }
        self.fetches = order;
        stall
    }

    /// The time that copies cost the computations beside them.
    fn beside(&self) -> u64 {
        let slower = self.model.drafter.costs.beside_copies;
        let copying = self.copying + self.fetches.iter().map(|fetch| self.model.copies[fetch.gap].1).sum::<u64>();
        (copying.min(self.now) as f64 * slower / (1.0 + slower)) as u64
    }

    /// The script of the decisions that were evaluated last.
    pub(super) fn script(&self) -> Script {
        let mut script = Script::with_releases(self.model.touches.len());
        // By moment: first what comes after the moment before, then the prefetches before it.
        let mut moves: Vec<(usize, bool, usize, Move)> = self
            .moves
            .iter()
            .enumerate()
            .map(|(order, (place, is_before, what))| (*place, *is_before, order, *what))
            .collect();
        moves.sort_by_key(|(place, is_before, order, _)| (*place, *is_before, *order));
        let mut moves = moves.into_iter().peekable();
        let mut last: Option<usize> = None;
        for (place, moment) in self.moments.iter().enumerate() {
            while let Some((.., is_before, _, what)) = moves.next_if(|(of, ..)| *of <= place) {
                match last {
                    // The list before an operation also holds what follows a rerun.
                    Some(last)
                        if !is_before && self.moments[place - 1].last == last && !self.moments[place - 1].again =>
                    {
                        script.after(last, what)
                    }
                    _ => script.before(moment.at, what),
                }
            }
            if moment.again {
                script.before(moment.at, Move::Rerun(OperationId(moment.operation)));
            } else {
                last = Some(moment.last);
            }
        }
        if let Some(last) = last {
            moves.for_each(|(.., what)| script.after(last, what));
        }
        script
    }
}
