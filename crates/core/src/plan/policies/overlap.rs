//! Offloading as little as the budget asks for, with nothing waited for at the end of a layer.
//!
//! ```text
//! compute   | 1 | 2 | 3 | 4 |   .. | 4' | 3' | 2' | 1' |
//! offload       |-- 1 --|-- 2 --|                           bytes go when the copy has ended, sooner only if needed
//! prefetch                      |-- 2 --|   |-- 1 --|       as late as twice the copy's time before it is needed
//! ```
//!
//! Maps that are idle longest move first: copies of those have the most time. Moving more than has to be leaves room for
//! faster algorithms, so several shares of the budget are tried as what the maps may fill, and vDNN's dynamic policy beside
//! them; the fastest step is taken, of equally fast ones one whose offsets waste little. How much they may waste is bounded
//! by the budget alone.

use std::cmp::Reverse;
use std::collections::VecDeque;

use super::vdnn::{self, Moved};
use super::{Chosen, Floors, dynamic};
use crate::plan::draft::{Draft, Drafter};
use crate::plan::place::Effort;
use crate::plan::script::{Move, Script};
use crate::plan::step::{Lifetime, Residence, TensorId};
use crate::plan::{Algorithms, Decision, Direction, footprint, simulate};
use crate::{Bytes, Error, Nanos};

/// Shares of the budget that may be filled before more maps move, in percent.
const SHARES: [u64; 6] = [100, 97, 90, 75, 50, 25];

/// As many shares in a row may be tried that give no faster step.
const PATIENCE: usize = 2;

/// A copy back begins as long before it is needed as this many such copies take, the first of these if that is tight.
const EARLY: [u64; 3] = [2, 1, 4];

pub(super) fn choose(drafter: &Drafter<'_>, floors: &Floors) -> Result<Chosen, Error> {
    let options = &drafter.options;
    let none = vdnn::script(drafter, Moved::None, None);
    let mut trials = Trials { drafter, decisions: Vec::new(), best: None };
    // A run that fits with its fastest algorithms moves nothing.
    let undisturbed = options.algorithms == Algorithms::Fit
        && trials.consider("none(p)", drafter.draft(&none, Algorithms::Performance, Effort::Plan));
    if !undisturbed {
        let name = |what: &str| format!("{what}{}", super::suffix(options.algorithms));
        trials.consider(&name("none"), drafter.draft(&none, options.algorithms, Effort::Plan));
        let timeline = Timeline::of(drafter);
        let mut tried: Vec<Vec<TensorId>> = vec![Vec::new()];
        let mut worse = 0;
        for share in SHARES {
            let moved = timeline.least_to_move(options.budget.0 / 100 * share);
            if worse == PATIENCE || tried.contains(&moved) {
                continue;
            }
            let before = trials.best.as_ref().map(|best| best.0);
            // Another distance moves the copies against each other, and may leave no holes where this one does: that takes
            // the place of more effort.
            for early in EARLY {
                let script = timeline.script(&moved, options.budget.0 / 100 * share.max(90), early);
                let draft = drafter.draft(&script, options.algorithms, Effort::Draft);
                let is_tight = draft.is_tight();
                trials.consider(&name(&format!("move {}", moved.len())), draft);
                // Bytes that are wasted are lost to faster algorithms, unless the fastest step so far wastes none.
                if is_tight || trials.best.as_ref().is_some_and(|best| !best.1) {
                    break;
                }
            }
            let gained = trials.best.as_ref().map(|best| best.0) != before;
            worse = if gained || before.is_none() { 0 } else { worse + 1 };
            tried.push(moved);
        }
    }
    if trials.best.is_none() {
        trials.consider("floor(m)", floors.overlap.clone());
        trials.consider("none(m)", floors.none.clone());
    }
    // Where hardly anything hides the copies, the paper's own choice can be the fastest.
    if options.algorithms == Algorithms::Fit
        && !undisturbed
        && trials.best.is_some()
        && let Ok(found) = dynamic::choose(drafter, floors)
    {
        trials.consider("vdnn-dynamic", found.draft);
    }
    let Trials { mut decisions, best, .. } = trials;
    match best {
        Some((_, _, taken, draft)) => {
            decisions[taken].taken = true;
            Ok(Chosen { draft, decisions })
        }
        None => Err(drafter.too_large(floors.of_policy(options.policy), &decisions, floors.least())),
    }
}

/// Attempts, and the fastest of those that fit.
struct Trials<'a> {
    drafter: &'a Drafter<'a>,
    decisions: Vec<Decision>,
    /// Its time, whether its offsets waste much, its place among the decisions, and itself.
    best: Option<(Nanos, bool, usize, Draft)>,
}

impl Trials<'_> {
    /// Takes an attempt in; tells whether it fits.
    fn consider(&mut self, attempt: &str, draft: Draft) -> bool {
        let mut decision = draft.decision(attempt, &self.drafter.options);
        let fits = decision.fits;
        if fits {
            let time = simulate(self.drafter.step, &draft.schedule, self.drafter.costs).time;
            decision.time = Some(time);
            let wasteful = !draft.is_tight();
            if self.best.as_ref().is_none_or(|best| (time, wasteful) < (best.0, best.1)) {
                self.best = Some((time, wasteful, self.decisions.len(), draft));
            }
        }
        self.decisions.push(decision);
        fits
    }
}

/// The script that needs the fewest bytes: every map that is idle moves, and is away for all of that time.
pub(super) fn floor(drafter: &Drafter<'_>) -> Script {
    let timeline = Timeline::of(drafter);
    let all: Vec<TensorId> = timeline.movable.iter().map(|movable| movable.tensor).collect();
    timeline.script(&all, 0, 1)
}

/// A map that is idle for at least one computation.
#[derive(Clone, Copy, Debug)]
struct Movable {
    tensor: TensorId,
    bytes: u64,
    /// The computation that writes it for the last time.
    written: usize,
    last_forward: usize,
    first_backward: usize,
}

/// The computations in time, and what is live at each whatever moves.
struct Timeline {
    /// Every map that could move, the longest idle first.
    movable: Vec<Movable>,
    times: Vec<Nanos>,
    /// By computation: live bytes if nothing moves, with the least workspace.
    live: Vec<u64>,
    /// By map in `movable`: time of its copy to the host and back.
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

    /// The maps to move so that what is live nowhere exceeds `limit`, or as little as can be.
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

    /// When the moved maps are copied, leave and come back, if live bytes are to stay within `limit`.
    fn script(&self, moved: &[TensorId], limit: u64, early: u64) -> Script {
        let mut script = Script::two_copy_streams(self.times.len());
        let mut moved: Vec<usize> =
            (0..self.movable.len()).filter(|&index| moved.contains(&self.movable[index].tensor)).collect();
        // What is live while all moved maps are away for all of their idle time.
        let mut live = self.live.clone();
        for &index in &moved {
            let Movable { bytes, last_forward, first_backward, .. } = self.movable[index];
            live[last_forward + 1..first_backward].iter_mut().for_each(|live| *live -= footprint(bytes));
        }
        let (left, starts) = self.leave(&mut moved, &mut live, limit, &mut script);
        self.come_back(&moved, &left, &mut live, &starts, (limit, early), &mut script);
        script
    }

    /// Decides the copies to the host; gives the computation after which each moved map has left, and when computations
    /// start with the waits for that.
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
            // In the order of the copies, those that nothing reads any more going forward.
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

    /// Bytes of maps that only wait for their copies to end.
    fn held(&self, copied: &VecDeque<(usize, Nanos)>, at: usize) -> u64 {
        let waiting = copied.iter().filter(|(index, _)| self.movable[*index].last_forward < at);
        waiting.map(|(index, _)| footprint(self.movable[*index].bytes)).sum()
    }

    /// Decides the copies back, each as late as its time allows, or later where bytes are short.
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
        // Copies follow one another: the last has all the time until it is needed, those before it end by its beginning.
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
