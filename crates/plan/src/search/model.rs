//! A step as the search sees it: the intervals during which a movable tensor is idle, and the ways to do without it meanwhile.
//!
//! ```text
//! operations   0    1    2    3    4    5    6    7
//! uses of x    =    r              r         r              = writes, r reads
//! idle              |----- a ------|--- b ---|-- tail --    one decision for each interval
//! ```
//!
//! Between two changes, only the operation with the most bytes matters, so operations are grouped:
//!
//! ```text
//! operations   conv   view   pack   relu   view   view   conv
//! slots        |----------------|   |--------|    |--|   |--|
//!              nothing comes or goes after the conv;  the last view needs more bytes than relu
//! ```

use tightfit_conv::Configuration;
use tightfit_units::Bytes;

use crate::memory::arena::Drafter;
use crate::search::lists::Lists;
use crate::step::{Access, Again, Operation, OperationId, Residence, Stage, TensorId};
use crate::{Direction, footprint};

/// An interval between two uses of a movable tensor, both exclusive; the last one ends with the step.
#[derive(Clone, Debug)]
pub(super) struct IdleInterval {
    pub(super) tensor: usize,
    /// The operation that uses it before.
    pub(super) from: usize,
    /// The last operation up to then that changed its content; its first use if none did.
    pub(super) written: usize,
    /// The operation that needs it next; the number of operations for the last interval.
    pub(super) to: usize,
    /// Whether nothing uses it again.
    pub(super) is_tail: bool,
    /// The operations that compute its content, in order; empty if they may not run again.
    pub(super) producers: Vec<usize>,
    /// The last operation before which they may run.
    pub(super) until: usize,
    /// Bytes of the device arena.
    pub(super) bytes: u64,
}

/// How a movable tensor is used by one operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Touch {
    tensor: u32,
    /// The interval that begins here, or [`NO_INTERVAL`].
    interval: u32,
    /// Whether it may be away before.
    pub(super) comes: bool,
    /// Whether its content must be there.
    pub(super) reads: bool,
    /// Whether its content changes.
    pub(super) writes: bool,
    /// Whether its bytes are free from here on until it is written again.
    pub(super) dies: bool,
}

/// The next operation uses the tensor too, or its content is never needed again before it is overwritten.
const NO_INTERVAL: u32 = u32::MAX;

impl Touch {
    pub(super) fn tensor(&self) -> usize {
        self.tensor as usize
    }

    pub(super) fn interval(&self) -> Option<usize> {
        (self.interval != NO_INTERVAL).then_some(self.interval as usize)
    }

    /// Whether the tensor comes, goes or changes.
    fn is_change(&self) -> bool {
        self.comes || self.writes || self.dies || self.interval != NO_INTERVAL
    }
}

/// The tensors that a rerun of an operation reads and writes.
#[derive(Clone, Debug, Default)]
pub(super) struct Run {
    pub(super) reads: Vec<usize>,
    pub(super) writes: Vec<usize>,
    pub(super) allowed: bool,
}

/// An operation's choice between time and workspace.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) time: u64,
    pub(super) scratch: u64,
}

/// Everything that the search and the bound know of a step.
pub(super) struct Model<'a> {
    pub(super) drafter: &'a Drafter<'a>,
    /// For each operation: its uses of managed tensors that come, go or change, each tensor once.
    pub(super) touches: Lists<Touch>,
    /// For each operation: bytes of the managed tensors that it uses.
    used: Vec<u64>,
    pub(super) intervals: Vec<IdleInterval>,
    /// For each tensor: whether the search decides about it.
    pub(super) managed: Vec<bool>,
    /// For each tensor: footprint.
    pub(super) bytes: Vec<u64>,
    /// Bytes at each operation of everything that never moves.
    pub(super) fixed: Vec<u64>,
    /// Bytes just before each operation of everything that never moves, without the operation's first outputs.
    pub(super) fixed_before: Vec<u64>,
    /// For each operation: its points, by rising workspace and falling time; never empty.
    pub(super) points: Lists<Point>,
    /// The points without the options' restriction of algorithms.
    pub(super) all_points: Vec<Vec<Point>>,
    /// For each operation: the time of a rerun, if it differs.
    pub(super) again: Vec<Option<u64>>,
    pub(super) runs: Vec<Run>,
    /// For each tensor: the operations that change its content.
    writers: Vec<Vec<usize>>,
    /// For each tensor: its last use. Only for tensors that never move.
    last: Vec<usize>,
    /// For each tensor: its intervals, in order.
    by_tensor: Vec<Vec<usize>>,
    /// For each interval: time of the copy to the host and back.
    pub(super) copies: Vec<(u64, u64)>,
    /// The operations in order, grouped where nothing changes.
    pub(super) slots: Vec<Slot>,
    /// For each operation: its slot.
    pub(super) slot_of: Vec<usize>,
}

impl<'a> Model<'a> {
    pub(super) fn of(drafter: &'a Drafter<'a>) -> Model<'a> {
        let step = drafter.step;
        let (count, tensors) = (step.operations.len(), step.tensors.len());
        let managed: Vec<bool> = (0..tensors)
            .map(|tensor| {
                let of = &step.tensors[tensor];
                let lifetime = drafter.lifetimes.get(TensorId(tensor)).filter(|_| !of.is_result);
                lifetime.is_some_and(|lifetime| match of.residence {
                    Residence::Movable => true,
                    // A rerun of its reader also recomputes it.
                    Residence::Temporary => lifetime.last_forward == Some(lifetime.last),
                    Residence::Resident => false,
                })
            })
            .collect();
        let bytes: Vec<u64> = step.tensors.iter().map(|tensor| footprint(tensor.bytes.0)).collect();
        let mut model = Model {
            drafter,
            touches: Lists::from_iter([]),
            used: Vec::new(),
            intervals: Vec::new(),
            managed,
            bytes,
            fixed: vec![0; count],
            fixed_before: vec![0; count],
            points: (0..count).map(|at| points(drafter, drafter.choices(at), at)).collect(),
            all_points: (0..count).map(|at| points(drafter, drafter.all_choices(at), at)).collect(),
            again: step.operations.iter().map(again).collect(),
            runs: step.operations.iter().map(run).collect(),
            writers: vec![Vec::new(); tensors],
            last: vec![0; tensors],
            by_tensor: vec![Vec::new(); tensors],
            copies: Vec::new(),
            slots: Vec::new(),
            slot_of: Vec::new(),
        };
        model.count_fixed();
        let mut uses: Vec<Vec<(usize, bool, bool)>> = vec![Vec::new(); tensors];
        for (OperationId(at), operation) in step.iter() {
            for used in &operation.uses {
                let (reads, writes) = (used.access != Access::Write, used.access != Access::Read);
                match uses[used.tensor.0].last_mut() {
                    Some(last) if last.0 == at => {
                        // A write before an addition by the same operation leaves nothing to read.
                        last.1 |= reads && !last.2;
                        last.2 |= writes;
                    }
                    _ => uses[used.tensor.0].push((at, reads, writes)),
                }
            }
        }
        for (tensor, uses) in uses.iter().enumerate() {
            model.writers[tensor] = uses.iter().filter(|of| of.2).map(|of| of.0).collect();
            model.last[tensor] = uses.last().map_or(0, |of| of.0);
        }
        let mut touches = vec![Vec::new(); count];
        for (tensor, uses) in uses.iter().enumerate() {
            match step.tensors[tensor].residence {
                _ if !model.managed[tensor] => {}
                Residence::Movable => model.add_intervals(tensor, uses, &mut touches),
                Residence::Resident | Residence::Temporary => {
                    model.add_intervals(tensor, &without_pauses(uses), &mut touches);
                }
            }
        }
        let used = |touches: &Vec<Touch>| touches.iter().map(|touch| model.bytes[touch.tensor()]).sum();
        model.used = touches.iter().map(used).collect();
        touches.iter_mut().for_each(|touches| touches.retain(Touch::is_change));
        model.touches = touches.into_iter().collect();
        model.drop_dead_ends();
        let costs = drafter.costs;
        let copy = |interval: &IdleInterval| {
            let bytes = Bytes(interval.bytes);
            (costs.copy(Direction::ToHost, bytes).0, costs.copy(Direction::FromHost, bytes).0)
        };
        model.copies = model.intervals.iter().map(copy).collect();
        model.slots = slots(&model);
        let of = model.slots.iter().enumerate();
        model.slot_of = of.flat_map(|(place, slot)| (slot.from..slot.to).map(move |_| place)).collect();
        model
    }

    fn count_fixed(&mut self) {
        let step = self.drafter.step;
        for (tensor, of) in step.tensors.iter().enumerate().filter(|(tensor, _)| !self.managed[*tensor]) {
            let Some(lifetime) = self.drafter.lifetimes.get(TensorId(tensor)) else { continue };
            let bytes = self.bytes[tensor];
            let (first, last) = match of.residence {
                Residence::Resident => (0, step.operations.len() - 1),
                Residence::Movable | Residence::Temporary => (lifetime.first, lifetime.last),
            };
            for at in first..=last {
                self.fixed[at] += bytes;
                if at > first || of.residence == Residence::Resident {
                    self.fixed_before[at] += bytes;
                }
            }
        }
    }

    fn add_intervals(&mut self, tensor: usize, uses: &[(usize, bool, bool)], touches: &mut [Vec<Touch>]) {
        let count = self.points.len();
        // The operations that compute the content so far; `None` if it cannot be recomputed.
        let mut producers: Option<Vec<usize>> = None;
        // Whether it has certainly been on the device since its last use.
        let mut stays = false;
        let mut written = uses.first().map_or(0, |first| first.0);
        for (place, &(at, reads, writes)) in uses.iter().enumerate() {
            if writes {
                written = at;
                let kept = if reads { producers.take() } else { Some(Vec::new()) };
                producers = kept.filter(|_| self.runs[at].allowed).map(|mut producers| {
                    producers.push(at);
                    producers
                });
            }
            let next = uses.get(place + 1);
            let is_needed = next.is_some_and(|next| next.1);
            let (comes, mut interval) = (!stays, NO_INTERVAL);
            if next.is_none() || (is_needed && next.is_some_and(|next| next.0 > at + 1)) {
                let to = next.map_or(count, |next| next.0);
                let mut producers = producers.clone().unwrap_or_default();
                if next.is_some() && !producers.iter().all(|&run| self.may_run(run, tensor, to)) {
                    producers.clear();
                }
                let bytes = self.bytes[tensor];
                interval = self.intervals.len() as u32;
                self.by_tensor[tensor].push(self.intervals.len());
                let is_tail = next.is_none();
                let until = if is_tail { self.latest(&producers, tensor, at) } else { to };
                self.intervals.push(IdleInterval { tensor, from: at, written, to, is_tail, producers, until, bytes });
            }
            let dies = !is_needed;
            stays = interval == NO_INTERVAL && !dies;
            touches[at].push(Touch { tensor: tensor as u32, interval, comes, reads, writes, dies });
        }
    }

    /// The last operation before which these reruns may run. After it, one of their inputs has changed.
    fn latest(&self, producers: &[usize], tensor: usize, from: usize) -> usize {
        let (mut low, mut high) = (from, self.points.len());
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            match producers.iter().all(|&run| self.may_run(run, tensor, middle)) {
                true => low = middle,
                false => high = middle - 1,
            }
        }
        low
    }

    /// Clears the producers of an interval if nothing can bring back an input of theirs.
    fn drop_dead_ends(&mut self) {
        let is_dead = |interval: &IdleInterval| {
            !interval.is_tail && !self.reads_come_back(&interval.producers, interval, &mut Vec::new())
        };
        let dead: Vec<usize> =
            (0..self.intervals.len()).filter(|interval| is_dead(&self.intervals[*interval])).collect();
        dead.into_iter().for_each(|interval| self.intervals[interval].producers.clear());
    }

    /// Whether every input of these reruns can be on the device at the end of an interval: kept, moved, or recomputed. `seen` holds the intervals
    /// already checked.
    fn reads_come_back(&self, producers: &[usize], interval: &IdleInterval, seen: &mut Vec<usize>) -> bool {
        let mut reads = producers.iter().flat_map(|run| &self.runs[*run].reads).copied();
        reads.all(|read| {
            let Some(tail) = self
                .interval_at(read, interval.to)
                .filter(|tail| read != interval.tensor && self.intervals[*tail].is_tail)
            else {
                return true;
            };
            if seen.contains(&tail) {
                return true;
            }
            seen.push(tail);
            let producers = &self.intervals[tail].producers;
            !producers.is_empty()
                && interval.to <= self.intervals[tail].until
                && self.reads_come_back(producers, interval, seen)
        })
    }

    /// Whether a rerun of `run` just before `at` reads what its first run read and changes only `target`.
    fn may_run(&self, run: usize, target: usize, at: usize) -> bool {
        let written = |tensor: usize, before: usize| self.writers[tensor].partition_point(|writer| *writer < before);
        let operation = &self.drafter.step.operations[run];
        self.runs[run].allowed
            && operation.uses.iter().all(|used| {
                let tensor = used.tensor.0;
                let is_there =
                    self.managed[tensor] || self.residence(tensor) == Residence::Resident || at <= self.last[tensor];
                match used.access_in_rerun() {
                    _ if tensor == target => true,
                    _ if !is_there => false,
                    Access::Read if used.access == Access::Read => written(tensor, run) == written(tensor, at),
                    Access::Read => written(tensor, run + 1) == written(tensor, at),
                    Access::Write => written(tensor, run + 1) == written(tensor, at),
                    Access::Add => false,
                }
            })
    }

    fn residence(&self, tensor: usize) -> Residence {
        self.drafter.step.tensors[tensor].residence
    }

    /// The intervals of a tensor from an operation on, until its content changes.
    pub(super) fn next_intervals(&self, tensor: usize, at: usize) -> impl Iterator<Item = usize> + '_ {
        let changed = self.writers[tensor].iter().copied().find(|writer| *writer > at).unwrap_or(usize::MAX);
        let own = &self.by_tensor[tensor];
        own.iter().copied().filter(move |interval| (at..changed).contains(&self.intervals[*interval].from))
    }

    /// The interval of a tensor that is still open just before an operation.
    pub(super) fn interval_at(&self, tensor: usize, at: usize) -> Option<usize> {
        self.by_tensor[tensor]
            .iter()
            .copied()
            .find(|interval| self.intervals[*interval].from < at && at <= self.intervals[*interval].to)
    }

    /// Forbids recomputation for operations of the forward pass. This leaves fewer decisions to the search, and lets the bound assume that
    /// recomputation happens after the forward pass.
    pub(super) fn compute_again_late(&mut self) {
        let forward = self.drafter.step.forward();
        self.intervals
            .iter_mut()
            .filter(|interval| interval.to < forward)
            .for_each(|interval| interval.producers.clear());
    }

    /// Time of a tensor's copy to the host and back.
    pub(super) fn copy_times(&self, tensor: usize) -> (u64, u64) {
        self.by_tensor[tensor].first().map_or((0, 0), |interval| self.copies[*interval])
    }

    /// The range from the first use of a tensor to its last use in the forward pass.
    pub(super) fn forward_uses(&self, tensor: usize) -> std::ops::Range<usize> {
        let lifetime = self.drafter.lifetimes.get(TensorId(tensor));
        lifetime.map_or(0..0, |lifetime| lifetime.first..lifetime.last_forward.unwrap_or(lifetime.first) + 1)
    }

    /// Bytes of managed tensors that an operation uses.
    pub(super) fn used(&self, at: usize) -> u64 {
        self.used[at]
    }

    /// The least time of a rerun of these operations.
    pub(super) fn least_again(&self, runs: &[usize]) -> u64 {
        let time = |&run: &usize| {
            self.again[run].unwrap_or_else(|| self.all_points[run].iter().map(|point| point.time).min().unwrap_or(0))
        };
        runs.iter().map(time).sum()
    }

    /// The most bytes that any operation needs under any decisions, and that operation.
    pub(super) fn floor(&self) -> (u64, usize) {
        let needs = (0..self.points.len()).map(|at| (self.least_at(at), at));
        needs.max_by_key(|(needs, at)| (*needs, usize::MAX - at)).unwrap_or((0, 0))
    }

    /// Bytes that every plan needs at an operation.
    pub(super) fn least_at(&self, at: usize) -> u64 {
        let scratch = self.all_points[at].iter().map(|point| point.scratch).min().unwrap_or(0);
        self.fixed[at] + self.used(at) + scratch
    }
}

/// The uses of a tensor that never leaves between them: it counts as used from its first use to its last.
fn without_pauses(uses: &[(usize, bool, bool)]) -> Vec<(usize, bool, bool)> {
    let mut all: Vec<(usize, bool, bool)> = Vec::new();
    for &used in uses {
        let from = all.last().map_or(used.0, |last| last.0 + 1);
        all.extend((from..used.0).map(|at| (at, true, false)));
        all.push(used);
    }
    all
}

fn points(drafter: &Drafter<'_>, choices: Option<&[Configuration]>, at: usize) -> Vec<Point> {
    let cost = &drafter.step.operations[at].cost;
    let point = |configuration: &Configuration| Point {
        time: cost.time(Some(configuration)).0,
        scratch: footprint(configuration.workspace().0),
    };
    match choices {
        Some(choices) => choices.iter().map(point).collect(),
        None => vec![Point { time: cost.time(None).0, scratch: 0 }],
    }
}

fn again(operation: &Operation) -> Option<u64> {
    match operation.again {
        Again::Taking(time) => Some(time.0),
        Again::Never | Again::Allowed => None,
    }
}

fn run(operation: &Operation) -> Run {
    let mut run =
        Run { allowed: operation.again != Again::Never && operation.stage == Stage::Forward, ..Run::default() };
    for used in &operation.uses {
        let tensor = used.tensor.0;
        let access = used.access_in_rerun();
        let list = if access == Access::Read { &mut run.reads } else { &mut run.writes };
        if !list.contains(&tensor) {
            list.push(tensor);
        }
    }
    run
}

/// An operation, or several in a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// The first operation.
    pub(super) from: usize,
    /// The operation after the last.
    pub(super) to: usize,
    /// Whether nothing comes or goes at any of them.
    pub(super) is_quiet: bool,
    /// The most bytes at once of tensors that never move; for quiet slots.
    pub(super) needs: u64,
    /// Time of all operations, without the first operation of a slot that is not quiet.
    pub(super) time: u64,
}

/// The slots of all operations, in order.
fn slots(model: &Model<'_>) -> Vec<Slot> {
    let mut slots: Vec<Slot> = Vec::new();
    for (at, (touches, points)) in model.touches.iter().zip(model.points.iter()).enumerate() {
        let (time, needs) = match points {
            [point] if touches.is_empty() => (point.time, model.fixed[at] + point.scratch),
            _ => {
                slots.push(Slot { from: at, to: at + 1, is_quiet: false, needs: 0, time: 0 });
                continue;
            }
        };
        // The bytes that the previous slot needs at least.
        let least = |slot: &Slot| match slot.is_quiet {
            true => u64::MAX,
            false => {
                model.fixed[slot.from] + model.points[slot.from].iter().map(|point| point.scratch).min().unwrap_or(0)
            }
        };
        match slots.last_mut() {
            Some(last) if needs <= least(last) => {
                last.to = at + 1;
                last.time += time;
                last.needs = last.needs.max(needs);
            }
            _ => slots.push(Slot { from: at, to: at + 1, is_quiet: true, needs, time }),
        }
    }
    slots
}
