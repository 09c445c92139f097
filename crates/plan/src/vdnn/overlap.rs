//! Offloads as little as the budget requires, without waits at the end of each layer.
//!
//! ```text
//! compute   | 1 | 2 | 3 | 4 |   .. | 4' | 3' | 2' | 1' |
//! offload       |-- 1 --|-- 2 --|                           bytes released after the copy, waiting for it only if needed
//! prefetch                      |-- 2 --|   |-- 1 --|       starts twice the copy's time before the map is needed
//! ```
//!
//! Maps that are idle longest move first, because their copies have the most time. Moving more maps than necessary leaves room for faster algorithms,
//! so the policy tries several fractions of the budget as the limit for maps, and also vDNN's dynamic policy. It takes the fastest step. Among
//! equally fast steps it prefers a tight placement. Only the budget limits how much a placement may waste.

use std::cmp::Reverse;
use std::collections::VecDeque;

use tightfit_place::Effort;
use tightfit_units::{Bytes, Nanos};

use crate::attempts::{Attempts, PolicyResult};
use crate::memory::arena::Drafter;
use crate::schedule::script::{Move, Script};
use crate::step::{Lifetime, Residence, TensorId};
use crate::vdnn::dynamic;
use crate::vdnn::smallest::{Smallest, suffix};
use crate::{Algorithms, Attempt, Direction, footprint};

/// Fractions of the budget that live bytes may fill before more maps move, in percent.
const SHARES: [u64; 6] = [100, 97, 90, 75, 50, 25];

/// Consecutive fractions to try without a faster step before giving up.
const PATIENCE: usize = 2;

/// A copy back starts this many copy times before the map is needed; the first value is preferred if its placement is
/// tight.
const EARLY: [u64; 3] = [2, 1, 4];

pub(crate) fn choose(drafter: &Drafter<'_>, floors: &Smallest) -> Result<PolicyResult, Vec<Attempt>> {
    let options = &drafter.options;
    let none = Script::new(drafter.step.operations.len());
    let mut attempts = Attempts::new(drafter);
    // If everything fits with the fastest algorithms, nothing moves.
    let undisturbed = options.algorithms == Algorithms::Fit
        && attempts.consider("none(p)", drafter.draft(&none, Algorithms::Performance, Effort::Plan));
    if !undisturbed {
        let name = |what: &str| format!("{what}{}", suffix(options.algorithms));
        attempts.consider(&name("none"), drafter.draft(&none, options.algorithms, Effort::Plan));
        let timeline = Timeline::of(drafter);
        let mut tried: Vec<Vec<TensorId>> = vec![Vec::new()];
        let mut worse = 0;
        for share in SHARES {
            let moved = timeline.least_to_move(options.budget.0 / 100 * share);
            let is_late = drafter.end.proceed().is_err() || drafter.end.is_over() && attempts.best().is_some();
            if worse == PATIENCE || is_late || tried.contains(&moved) {
                continue;
            }
            let before = attempts.best().map(|best| best.time);
            // Another lead shifts the copies and may avoid the holes that this one leaves; try it instead of a longer placement search.
            for early in EARLY {
                let script = timeline.script(&moved, options.budget.0 / 100 * share.max(90), early);
                let draft = drafter.draft(&script, options.algorithms, Effort::Draft);
                let is_tight = draft.is_tight();
                attempts.consider(&name(&format!("move {}", moved.len())), draft);
                // Faster algorithms could use wasted bytes, so search harder, unless the fastest step so far wastes
                // none.
                if is_tight || attempts.best().is_some_and(|best| !best.wasteful) {
                    break;
                }
            }
            let gained = attempts.best().map(|best| best.time) != before;
            worse = if gained || before.is_none() { 0 } else { worse + 1 };
            tried.push(moved);
        }
    }
    if attempts.best().is_none() {
        attempts.consider("floor(m)", floors.overlap.clone());
        attempts.consider("none(m)", floors.none.clone());
    }
    // If little hides the copies, the paper's own choice can be the fastest.
    if options.algorithms == Algorithms::Fit
        && !undisturbed
        && attempts.best().is_some()
        && let Ok(found) = dynamic::choose(drafter, floors)
    {
        attempts.consider("vdnn-dynamic", found.draft);
    }
    attempts.outcome()
}

/// The script that needs the least memory: every idle map is offloaded for the whole time it is idle.
pub(crate) fn floor(drafter: &Drafter<'_>) -> Script {
    let timeline = Timeline::of(drafter);
    let all: Vec<TensorId> = timeline.movable.iter().map(|movable| movable.tensor).collect();
    timeline.script(&all, 0, 1)
}

/// A map that is idle for at least one computation.
#[derive(Clone, Copy, Debug)]
struct Movable {
    tensor: TensorId,
    bytes: u64,
    /// The computation that last writes it.
    written: usize,
    last_forward: usize,
    first_backward: usize,
}

/// The computations in time order, and the bytes live at each.
struct Timeline {
    /// Every map that could move, longest idle first.
    movable: Vec<Movable>,
    times: Vec<Nanos>,
    /// For each computation: live bytes if nothing moves, with the least workspace.
    live: Vec<u64>,
    /// For each map in `movable`: time of its copy to the host and back.
    copies: Vec<(Nanos, Nanos)>,
}

impl Timeline {
    fn of(drafter: &Drafter<'_>) -> Timeline {
        let times = drafter.fastest_times();
        let mut starts: Vec<Nanos> = Vec::with_capacity(times.len() + 1);
        let mut now = Nanos::ZERO;
        for time in &times {
            starts.push(now);
            now = now + *time;
        }
        let live = drafter.live();
        let mut movable: Vec<Movable> = Vec::new();
        for (id, tensor) in drafter.step.tensors.iter().enumerate() {
            let tensor_id = TensorId(id);
            let Some(Lifetime {
                last_forward: Some(last_forward),
                first_backward: Some(first_backward),
                last_written,
                ..
            }) = drafter.lifetimes.get(tensor_id)
            else {
                continue;
            };
            if tensor.residence == Residence::Movable && first_backward > last_forward + 1 {
                let written = last_written.unwrap_or(last_forward);
                movable.push(Movable {
                    tensor: tensor_id,
                    bytes: tensor.bytes.0,
                    written,
                    last_forward,
                    first_backward,
                });
            }
        }
        movable.sort_by_key(|movable| {
            (Reverse(starts[movable.first_backward] - starts[movable.last_forward]), movable.tensor)
        });
        let copy = |movable: &Movable| {
            let bytes = Bytes(movable.bytes);
            (drafter.costs.copy(Direction::ToHost, bytes), drafter.costs.copy(Direction::FromHost, bytes))
        };
        let copies = movable.iter().map(copy).collect();
        Timeline { movable, times, live, copies }
    }

    /// The maps to move so that live bytes stay within `limit` everywhere, or exceed it as little as possible.
    fn least_to_move(&self, limit: u64) -> Vec<TensorId> {
        let mut live = self.live.clone();
        let mut moved = Vec::new();
        for movable in &self.movable {
            let idle = movable.last_forward + 1..movable.first_backward;
            if live[idle.clone()].iter().any(|live| *live > limit) {
                live[idle].iter_mut().for_each(|live| *live -= footprint(movable.bytes));
                moved.push(movable.tensor);
            }
        }
        moved
    }

    /// Schedules when the moved maps are copied, leave and come back, keeping live bytes within `limit`.
    fn script(&self, moved: &[TensorId], limit: u64, early: u64) -> Script {
        let mut script = Script::two_copy_streams(self.times.len());
        let mut moved: Vec<usize> =
            (0..self.movable.len()).filter(|&index| moved.contains(&self.movable[index].tensor)).collect();
        // Live bytes if all moved maps are away for their whole idle time.
        let mut live = self.live.clone();
        for &index in &moved {
            let Movable { bytes, last_forward, first_backward, .. } = self.movable[index];
            live[last_forward + 1..first_backward].iter_mut().for_each(|live| *live -= footprint(bytes));
        }
        let (left, starts) = self.leave(&mut moved, &mut live, limit, &mut script);
        self.come_back(&moved, &left, &mut live, &starts, (limit, early), &mut script);
        script
    }

    /// Decides the copies to the host. Returns the computation after which each moved map has left, and the start times
    /// of the computations including the waits for the copies.
    fn leave(
        &self,
        moved: &mut [usize],
        live: &mut [u64],
        limit: u64,
        script: &mut Script,
    ) -> (Vec<usize>, Vec<Nanos>) {
        let mut left = vec![0; self.movable.len()];
        moved.sort_by_key(|&index| (self.movable[index].written, self.movable[index].last_forward));
        let mut coming: VecDeque<usize> = moved.iter().copied().collect();
        let mut copied: VecDeque<(usize, Nanos)> = VecDeque::new();
        let (mut now, mut link_free) = (Nanos::ZERO, Nanos::ZERO);
        let mut starts = Vec::with_capacity(self.times.len());
        for at in 0..self.times.len() {
            while let Some(&index) = coming.front().filter(|&&index| self.movable[index].written < at) {
                script.before(at, Move::Offload(self.movable[index].tensor));
                link_free = link_free.max(now) + self.copies[index].0;
                copied.push_back((index, link_free));
                coming.pop_front();
            }
            // In copy order, the maps that no later forward pass reads.
            while let Some(&(index, end)) = copied.front() {
                let Movable { tensor, bytes, last_forward, first_backward, .. } = self.movable[index];
                if last_forward >= at {
                    break;
                }
                let is_needed = live[at] + self.held(&copied, at) > limit || first_backward <= at + 1;
                if end > now && !is_needed {
                    break;
                }
                now = now.max(end);
                script.after(at - 1, Move::Leave(tensor));
                left[index] = at - 1;
                live[last_forward + 1..at].iter_mut().for_each(|live| *live += footprint(bytes));
                copied.pop_front();
            }
            starts.push(now);
            now = now + self.times[at];
        }
        (left, starts)
    }

    /// Bytes of maps that are only waiting for their copies to end.
    fn held(&self, copied: &VecDeque<(usize, Nanos)>, at: usize) -> u64 {
        let waiting = copied.iter().filter(|(index, _)| self.movable[*index].last_forward < at);
        waiting.map(|(index, _)| footprint(self.movable[*index].bytes)).sum()
    }

    /// Schedules the copies back: each as late as its time allows, or later if memory is short.
    fn come_back(
        &self,
        moved: &[usize],
        left: &[usize],
        live: &mut [u64],
        starts: &[Nanos],
        (limit, early): (u64, u64),
        script: &mut Script,
    ) {
        let mut order = moved.to_vec();
        order.sort_by_key(|&index| (self.movable[index].first_backward, self.movable[index].tensor));
        // Copies run one after another: the last one must end when its map is needed, each earlier one when the next
        // begins.
        let mut begin_by = vec![Nanos::ZERO; order.len()];
        let mut next = Nanos(u64::MAX);
        for (place, &index) in order.iter().enumerate().rev() {
            let end = starts[self.movable[index].first_backward].min(next);
            begin_by[place] = end - self.copies[index].1 * early;
            next = begin_by[place];
        }
        let mut earliest = 0;
        for (&index, begin_by) in order.iter().zip(begin_by) {
            let Movable { tensor, bytes, first_backward, .. } = self.movable[index];
            let bytes = footprint(bytes);
            let in_time = starts.partition_point(|start| *start <= begin_by).saturating_sub(1);
            let mut at = in_time.max(earliest).max(left[index] + 1).min(first_backward);
            if let Some(full) = live[at..first_backward].iter().rposition(|live| live + bytes > limit) {
                at += full + 1;
            }
            script.before(at, Move::Prefetch(tensor));
            live[at..first_backward].iter_mut().for_each(|live| *live += bytes);
            earliest = at;
        }
    }
}
