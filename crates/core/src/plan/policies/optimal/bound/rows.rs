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
    /// Whether nothing but reruns of other tensors asks for it.
    pub(super) is_tail: bool,
    /// The first operation from which on its being there counts: a rerun begins later.
    pub(super) since: usize,
    /// Moments at which a rerun of another tensor asks for it, rising.
    pub(super) asked: Vec<usize>,
    /// The variable of being there from `since` on; the next ones are being there from each of `asked` on. For a tail:
    /// being there from `since` to each of `asked`.
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
    /// The tails that are computed again on the way, unless they are there.
    pub(super) via: Vec<usize>,
}

/// Tails on the way from one tensor to another, at most.
const MOST_VIA: usize = 6;

/// Stretches of the step in which windows begin or end.
const STRETCHES: usize = 24;

/// The limits on live bytes at every operation, and with what the links may move in some windows. Windows end, and those
/// of the link from the host begin, where most bytes are needed at once, since memory is short there.
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
            intervals.push(Idle { gap, is_tail: false, since: of.from + 1, asked: Vec::new(), there: 0, again: None });
        }
        // Who asks whom, and through which tails.
        let mut asks: Vec<(usize, usize, Vec<usize>)> = Vec::new();
        for place in 0..intervals.len() {
            let gap = intervals[place].gap;
            let mut queue: Vec<(usize, Vec<usize>)> = vec![(gap, Vec::new())];
            let mut at = 0;
            while let Some((from, via)) = queue.get(at).cloned() {
                at += 1;
                let reads = model.gaps[from].producers.iter().flat_map(|run| &model.runs[*run].reads);
                let mut reads: Vec<usize> = reads.copied().filter(|read| model.managed[*read]).collect();
                reads.sort_unstable();
                reads.dedup();
                for read in reads.into_iter().filter(|read| *read != model.gaps[from].tensor) {
                    let of = &model.gaps[gap];
                    let Some(inside) = model.gap_at(read, of.to) else { continue };
                    let other = &model.gaps[inside];
                    if other.to <= of.to || other.from >= forward || queue.iter().any(|(known, _)| *known == inside) {
                        continue;
                    }
                    if other.is_tail && place_of[inside].is_none() {
                        place_of[inside] = Some(intervals.len());
                        let since = other.from + 1;
                        intervals.push(Idle {
                            gap: inside,
                            is_tail: true,
                            since,
                            asked: Vec::new(),
                            there: 0,
                            again: None,
                        });
                    }
                    let Some(asked) = place_of[inside] else { continue };
                    if via.is_empty() {
                        // Were it computed again before the other's interval begins, it would ask for less.
                        intervals[place].since = intervals[place].since.max(other.from + 1);
                    }
                    asks.push((place, asked, via.clone()));
                    if other.is_tail && via.len() < MOST_VIA {
                        queue.push((inside, via.iter().copied().chain([asked]).collect()));
                    }
                }
            }
        }
        // A tensor may be computed again as early as one that asks for it.
        let mut earliest: Vec<usize> = intervals.iter().map(|idle| model.gaps[idle.gap].to).collect();
        asks.sort_by_key(|(by, ..)| model.gaps[intervals[*by].gap].to);
        for (by, of, _) in &asks {
            earliest[*of] = earliest[*of].min(earliest[*by]);
        }
        let moment = |intervals: &[Idle], by: usize, of: usize| match intervals[of].is_tail {
            true => earliest[by].max(intervals[of].since),
            false => model.gaps[intervals[by].gap].to,
        };
        let mut counts = vec![0; intervals.len()];
        for (by, of, _) in &asks {
            let at = moment(&intervals, *by, *of);
            counts[*of] += 1;
            let asked = &mut intervals[*of];
            if (asked.is_tail || at > asked.since) && !asked.asked.contains(&at) {
                asked.asked.push(at);
            }
        }
        for idle in &mut intervals {
            let since = idle.since;
            idle.asked.retain(|at| idle.is_tail || *at > since);
            idle.asked.sort_unstable();
            idle.there = variables;
            variables += idle.asked.len() + usize::from(!idle.is_tail);
            if !idle.is_tail && !model.gaps[idle.gap].producers.is_empty() {
                idle.again = Some(variables);
                variables += 1;
            }
        }
        for (by, of, via) in asks {
            let at = moment(&intervals, by, of);
            let asked = &intervals[of];
            let place = asked.asked.iter().position(|moment| *moment == at);
            // Asked for no later than it counts: then it is there all the time.
            let place = if asked.is_tail { place.unwrap_or(0) } else { place.map_or(0, |place| place + 1) };
            demands.push(Demand { by, of, place, via });
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
    /// Where it is no longer asked for.
    pub(super) fn end(&self, of: &Gap) -> usize {
        if self.is_tail { self.asked.last().copied().unwrap_or(self.since) } else { of.to }
    }

    /// The ends of the stretches that have a variable each.
    pub(super) fn ends(&self, of: &Gap) -> impl Iterator<Item = usize> {
        self.asked.iter().copied().chain((!self.is_tail).then_some(of.to))
    }

    pub(super) fn part(&self, of: &Gap, row: &Row) -> Part {
        if row.at <= of.from || self.end(of) <= row.at {
            return Part::Nothing;
        }
        let unless = match row.window {
            _ if self.is_tail => false,
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
