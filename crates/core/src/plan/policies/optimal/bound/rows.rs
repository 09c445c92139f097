//! What the relaxation is made of: limits on live bytes, idle intervals, and who asks for whom.

use super::super::model::{Gap, Model};
use crate::plan::Direction;

/// A limit on live bytes at an operation, perhaps with what a link may move instead.
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

/// An idle interval in the relaxation.
pub(super) struct Idle {
    /// The interval of the model.
    pub(super) gap: usize,
    /// The first operation from which on its being there counts: a rerun begins later.
    pub(super) since: usize,
    /// Moments at which a rerun of another tensor asks for it, falling, and the one it must be there for last.
    pub(super) asked: Vec<usize>,
    /// The variable of being there from `since` on; the next ones are being there from each of `asked` on.
    pub(super) there: usize,
    /// The variable of being computed again.
    pub(super) again: Option<usize>,
}

/// A rerun that asks for the tensor of another interval.
pub(super) struct Demand {
    /// Who is computed again.
    pub(super) by: usize,
    /// The interval asked for, and the place of the moment.
    pub(super) of: usize,
    pub(super) place: usize,
}

/// The limits on live bytes at every operation, and with what the links may move in some windows.
pub(super) fn rows(model: &Model<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    let count = model.points.len();
    rows.extend((0..count).map(|at| Row { at, window: None }));
    let forward = model.drafter.step.forward().min(count.saturating_sub(1));
    let share = |from: usize, to: usize, part: usize, of: usize| from + (to - from) * part / of;
    for part in 1..=8 {
        let at = share(0, forward, part, 8);
        let window = Window { direction: Direction::ToHost, from: 0, to: at };
        rows.push(Row { at, window: Some(window) });
    }
    for start in 0..4 {
        let at = share(forward, count, start, 6);
        for part in 1..=8 {
            let to = share(at, count, part, 8);
            let window = Window { direction: Direction::FromHost, from: at, to };
            rows.push(Row { at, window: Some(window) });
        }
    }
    rows.dedup_by_key(|row| (row.at, row.window.map(|window| (window.from, window.to))));
    rows
}

/// All idle intervals, and the demands between them.
#[derive(Default)]
pub(super) struct Intervals {
    pub(super) idle: Vec<Idle>,
    pub(super) demands: Vec<Demand>,
    /// For each interval: how often it is asked for.
    pub(super) asks: Vec<u32>,
    pub(super) variables: usize,
}

impl Intervals {
    pub(super) fn of(model: &Model<'_>) -> Intervals {
        let mut intervals: Vec<Idle> = Vec::new();
        let (mut demands, mut variables) = (Vec::new(), 0);
        let forward = model.drafter.step.forward();
        let mut place_of = vec![None; model.gaps.len()];
        for (gap, of) in model.gaps.iter().enumerate().filter(|(_, of)| !of.is_tail) {
            place_of[gap] = Some(intervals.len());
            intervals.push(Idle { gap, since: of.from + 1, asked: Vec::new(), there: 0, again: None });
        }
        // Who asks whom, and when.
        let mut asks: Vec<(usize, usize, usize)> = Vec::new();
        for place in 0..intervals.len() {
            let of = &model.gaps[intervals[place].gap];
            let mut reads: Vec<usize> = of.producers.iter().flat_map(|run| &model.runs[*run].reads).copied().collect();
            reads.sort_unstable();
            reads.dedup();
            for read in reads.into_iter().filter(|read| *read != of.tensor && model.managed[*read]) {
                let Some(inside) = model.gap_at(read, of.to) else { continue };
                let other = &model.gaps[inside];
                let (Some(asked), true, true) = (place_of[inside], other.to > of.to, other.from < forward) else {
                    continue;
                };
                // Were it computed again before the other's interval begins, it would ask for less.
                intervals[place].since = intervals[place].since.max(other.from + 1);
                asks.push((place, asked, of.to));
            }
        }
        let mut counts = vec![0; intervals.len()];
        for &(_, asked, at) in &asks {
            counts[asked] += 1;
            if at > intervals[asked].since && !intervals[asked].asked.contains(&at) {
                intervals[asked].asked.push(at);
            }
        }
        for idle in &mut intervals {
            let since = idle.since;
            idle.asked.retain(|at| *at > since);
            idle.asked.sort_unstable();
            idle.there = variables;
            variables += 1 + idle.asked.len();
            if !model.gaps[idle.gap].producers.is_empty() {
                idle.again = Some(variables);
                variables += 1;
            }
        }
        for (by, of, at) in asks {
            let asked = &intervals[of].asked;
            // Asked for no later than it counts: then it is there all the time.
            let place = asked.iter().position(|moment| *moment == at).map_or(0, |place| place + 1);
            demands.push(Demand { by, of, place });
        }
        Intervals { idle: intervals, demands, asks: counts, variables }
    }
}

/// How an idle tensor counts in a row.
pub(super) enum Part {
    Nothing,
    /// Unless it is computed again.
    Unless,
    /// If it is there from this moment on.
    There(usize),
}

impl Idle {
    pub(super) fn part(&self, of: &Gap, row: &Row) -> Part {
        if row.at <= of.from || of.to <= row.at {
            return Part::Nothing;
        }
        let unless = match row.window {
            None => false,
            Some(window) => window.direction == Direction::ToHost || of.to <= window.to,
        };
        if unless {
            return Part::Unless;
        }
        match row.at < self.since {
            true => Part::Nothing,
            false => Part::There(self.asked.partition_point(|moment| *moment <= row.at)),
        }
    }
}
