//! The parts of the relaxation: limits on live bytes, idle intervals, and the demands of reruns.

use std::collections::BTreeMap;

use crate::Direction;
use crate::search::model::{IdleInterval, Model};

/// A limit on live bytes at an operation; with a window, minus the bytes that a link may move meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) at: usize,
    pub(super) window: Option<Window>,
}

/// The operations `from..to` during which a link moves bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    pub(super) direction: Direction,
    pub(super) from: usize,
    pub(super) to: usize,
}

/// The number of shares of a copy to the host.
pub(super) const SHARES: i128 = 1 << 16;

/// An idle interval in the relaxation.
pub(super) struct Idle {
    /// The interval of the model.
    pub(super) interval: usize,
    /// The first operation from which the tensor counts as on the device: a rerun begins later.
    pub(super) since: usize,
    /// The first operation that may need it, directly or for a rerun.
    pub(super) earliest: usize,
    /// This interval's share of the one copy to the host that serves all intervals of the tensor, in units of 1 / [`SHARES`].
    pub(super) share: i128,
    pub(super) wanted: Wanted,
}

/// The purpose of an idle tensor, with its variables.
pub(super) enum Wanted {
    /// For an operation of the step.
    ForUse {
        /// Moments at which a rerun of another tensor asks for it, rising.
        asked: Vec<usize>,
        /// The variable "on the device from `since` on". The next variables are "on the device from each of `asked` on".
        there: usize,
        /// The variable "is recomputed".
        again: Option<usize>,
    },
    /// For reruns of other tensors only. Each rerun that asks gets the tensor: it is kept all the time, or recomputed.
    ForReruns {
        /// The first and the last moment at which a rerun asks for it.
        asked: usize,
        last: usize,
        /// The variable "is asked for".
        has: usize,
    },
}

/// A rerun that asks for the tensor of another interval.
pub(super) struct Demand {
    /// The interval whose tensor is recomputed.
    pub(super) by: usize,
    /// The interval asked for, and the position of the moment in its `asked`.
    pub(super) of: usize,
    pub(super) place: usize,
}

/// The most intervals that are followed from one rerun.
const MOST_ASKED: usize = 64;

/// Stretches of the step in which windows begin or end.
const STRETCHES: usize = 24;

/// The limits on live bytes at every operation, plus limits with the bytes that the links may move in some windows. Windows end where memory is
/// tightest in each stretch; windows of the link from the host also begin there.
pub(super) fn rows(model: &Model<'_>) -> Vec<Row> {
    let count = model.points.len();
    let mut rows: Vec<Row> = (0..count).map(|at| Row { at, window: None }).collect();
    let forward = model.drafter.step.forward().min(count.saturating_sub(1));
    let needs: Vec<u64> = (0..count).map(|at| model.fixed[at] + model.used(at)).collect();
    let ends = (0..STRETCHES).filter_map(|part| {
        let stretch = count * part / STRETCHES..count * (part + 1) / STRETCHES;
        stretch.max_by_key(|at| needs[*at])
    });
    let mut ends: Vec<usize> = ends.chain([forward]).collect();
    ends.sort_unstable();
    ends.dedup();
    for &at in ends.iter().filter(|at| **at > 0) {
        rows.push(Row { at, window: Some(Window { direction: Direction::ToHost, from: 0, to: at }) });
    }
    let back: Vec<usize> = ends.into_iter().filter(|at| *at >= forward).collect();
    for (place, &at) in back.iter().enumerate() {
        for &to in back[place + 1..].iter().chain([&count]) {
            rows.push(Row { at, window: Some(Window { direction: Direction::FromHost, from: at, to }) });
        }
    }
    rows
}

/// All idle intervals, and the demands between them.
#[derive(Default)]
pub(super) struct Intervals {
    pub(super) idle: Vec<Idle>,
    /// Sorted by the asking interval.
    pub(super) demands: Vec<Demand>,
    /// For each interval: the number of demands for it.
    pub(super) asks: Vec<u32>,
    pub(super) variables: usize,
}

/// The demands of reruns, as positions among the intervals.
#[derive(Default)]
struct Asks {
    /// The model's interval for each entry: intervals needed by operations first.
    intervals: Vec<usize>,
    /// For each interval: the first operation from which the tensor counts as on the device.
    since: Vec<usize>,
    /// For each interval: the first moment at which it may be recomputed.
    earliest: Vec<usize>,
    /// For each interval: the last moment at which it is asked for.
    last: Vec<usize>,
    /// For each interval: the number of intervals needed by operations that ask for it, directly or through others.
    roots: Vec<u32>,
    /// For each pair of asking and asked interval: the number of root intervals behind it, and their last moment.
    pairs: BTreeMap<(usize, usize), (u32, usize)>,
}

impl Asks {
    fn of(model: &Model<'_>) -> Asks {
        let intervals: Vec<usize> =
            (0..model.intervals.len()).filter(|interval| !model.intervals[*interval].is_tail).collect();
        let mut place_of: Vec<Option<usize>> = vec![None; model.intervals.len()];
        intervals.iter().enumerate().for_each(|(place, interval)| place_of[*interval] = Some(place));
        let since = intervals.iter().map(|interval| model.intervals[*interval].from + 1).collect();
        let earliest = intervals.iter().map(|interval| model.intervals[*interval].to).collect();
        let count = intervals.len();
        let mut asks =
            Asks { intervals, since, earliest, last: vec![0; count], roots: vec![0; count], pairs: BTreeMap::new() };
        let mut by_end: Vec<usize> = (0..count).collect();
        by_end.sort_by_key(|place| model.intervals[asks.intervals[*place]].to);
        // An asking tensor is needed first, so its own earliest moment is already known.
        for root in by_end {
            asks.follow(model, root, &mut place_of);
        }
        asks
    }

    /// Adds the demands of an interval's rerun, and the demands of the reruns that those need.
    fn follow(&mut self, model: &Model<'_>, root: usize, place_of: &mut [Option<usize>]) {
        let (forward, to) = (model.drafter.step.forward(), model.intervals[self.intervals[root]].to);
        let mut queue = vec![root];
        let mut at = 0;
        while let Some(&by) = queue.get(at) {
            at += 1;
            let from = &model.intervals[self.intervals[by]];
            let reads = from.producers.iter().flat_map(|run| &model.runs[*run].reads);
            let mut reads: Vec<usize> = reads.copied().filter(|read| model.managed[*read]).collect();
            reads.sort_unstable();
            reads.dedup();
            for read in reads.into_iter().filter(|read| *read != from.tensor) {
                let Some(inside) = model.interval_at(read, to) else { continue };
                let other = &model.intervals[inside];
                if other.to <= to || other.from >= forward {
                    continue;
                }
                let of = *place_of[inside].get_or_insert_with(|| {
                    self.intervals.push(inside);
                    self.since.push(other.from + 1);
                    self.earliest.push(usize::MAX);
                    self.last.push(0);
                    self.roots.push(0);
                    self.intervals.len() - 1
                });
                // If the root were recomputed before the other interval begins, it would ask for less.
                self.since[root] = self.since[root].max(other.from + 1);
                self.earliest[of] = self.earliest[of].min(self.earliest[root]);
                self.last[of] = self.last[of].max(to);
                let pair = self.pairs.entry((by, of)).or_insert((0, 0));
                *pair = (pair.0 + 1, pair.1.max(to));
                if other.is_tail && !queue.contains(&of) && queue.len() < MOST_ASKED {
                    self.roots[of] += 1;
                    queue.push(of);
                }
            }
        }
    }
}

impl Intervals {
    pub(super) fn of(model: &Model<'_>) -> Intervals {
        let Asks { intervals, since, earliest, last, roots, mut pairs } = Asks::of(model);
        let is_tail = |place: usize| model.intervals[intervals[place]].is_tail;
        // A demand behind a tail counts only if every root of the tail makes it: otherwise the tail may exist without the demand.
        pairs.retain(|(by, _), (count, _)| !is_tail(*by) || *count == roots[*by]);
        let mut asked: Vec<Vec<usize>> = vec![Vec::new(); intervals.len()];
        let mut counts = vec![0; intervals.len()];
        for ((_, of), (_, moment)) in &pairs {
            counts[*of] += 1;
            if !is_tail(*of) && *moment > since[*of] && !asked[*of].contains(moment) {
                asked[*of].push(*moment);
            }
        }
        // For each tensor: the number of operations during which it is idle.
        let mut idle_for = vec![0; model.managed.len()];
        for of in model.intervals.iter().filter(|of| !of.is_tail) {
            idle_for[of.tensor] += of.to - of.from;
        }
        let (mut idle, mut variables) = (Vec::with_capacity(intervals.len()), 0);
        for (place, mut asked) in asked.into_iter().enumerate() {
            let interval = intervals[place];
            asked.sort_unstable();
            let first = variables;
            let wanted = if is_tail(place) {
                variables += 1;
                Wanted::ForReruns { asked: earliest[place].max(since[place]), last: last[place], has: first }
            } else {
                variables += asked.len() + 1;
                let again = (!model.intervals[interval].producers.is_empty()).then_some(variables);
                variables += usize::from(again.is_some());
                Wanted::ForUse { asked, there: first, again }
            };
            let (from, to) = (model.intervals[interval].from, model.intervals[interval].to);
            let share = SHARES * (to - from) as i128 / idle_for[model.intervals[interval].tensor].max(1) as i128;
            idle.push(Idle { interval, since: since[place], earliest: earliest[place], share, wanted });
        }
        let demands = pairs.into_iter().map(|((by, of), (_, moment))| {
            let place = match &idle[of].wanted {
                // If the demand comes before the tensor counts, the tensor is on the device all the time.
                Wanted::ForUse { asked, .. } => asked.binary_search(&moment).map_or(0, |place| place + 1),
                Wanted::ForReruns { .. } => 0,
            };
            Demand { by, of, place }
        });
        let demands = demands.collect();
        Intervals { idle, demands, asks: counts, variables }
    }
}

/// How an idle tensor counts in a row.
pub(super) enum RowUse {
    Nothing,
    /// Unless it is recomputed.
    Unless,
    /// If it is on the device from this moment on.
    There(usize),
}

impl Idle {
    /// How a tensor that an operation needs counts in a row, given the moments at which reruns ask for it.
    pub(super) fn row_use(&self, asked: &[usize], of: &IdleInterval, row: &Row) -> RowUse {
        if row.at <= of.from || of.to <= row.at {
            return RowUse::Nothing;
        }
        match row.window {
            Some(window) if window.direction == Direction::ToHost || of.to <= window.to => RowUse::Unless,
            _ if row.at < self.since => RowUse::Nothing,
            _ => RowUse::There(asked.partition_point(|moment| *moment <= row.at)),
        }
    }
}
