//! The decisions of a plan in the terms of the search, and the decisions that it starts from.

use crate::search::model::{IdleInterval, Model};

/// The decision for an idle interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Choice {
    /// It stays on the device.
    Keep,
    /// It is copied to the host and back.
    Move,
    /// It is recomputed at the first need, even for rebuilding another tensor, and stays from then on.
    Rebuild,
    /// It is recomputed for its own next use, and separately each time another tensor's rebuild needs it.
    Again,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Decisions {
    /// For each interval of the model.
    pub(super) intervals: Vec<Choice>,
    /// For each operation: one of its points.
    pub(super) points: Vec<usize>,
}

/// Decisions that keep everything, with the fastest points.
pub(super) fn everything(model: &Model<'_>) -> Decisions {
    let choice = |interval: &IdleInterval| if interval.is_tail { Choice::Rebuild } else { Choice::Keep };
    Decisions {
        intervals: model.intervals.iter().map(choice).collect(),
        points: model.points.iter().map(|points| points.len() - 1).collect(),
    }
}

/// Decisions that keep only the tensors needed after each of `segments` cuts at equal shares of the forward pass's bytes.
pub(super) fn checkpoints(model: &Model<'_>, segments: usize) -> Decisions {
    let mut decisions = everything(model);
    let forward = model.drafter.step.forward();
    let written: Vec<u64> = (0..forward).map(|at| model.used(at)).collect();
    let total: u64 = written.iter().sum();
    let mut cuts = Vec::new();
    let mut sum = 0;
    for (at, bytes) in written.iter().enumerate() {
        sum += bytes;
        if u128::from(sum) * segments as u128 >= u128::from(total) * (cuts.len() as u128 + 1) {
            cuts.push(at);
        }
    }
    for (interval, choice) in model.intervals.iter().zip(&mut decisions.intervals) {
        let crosses = |cut: &usize| {
            let uses = model.forward_uses(interval.tensor);
            uses.start <= *cut && *cut + 1 < uses.end
        };
        let spans = interval.to > forward || interval.to - interval.from > forward / segments.max(1);
        if !interval.is_tail && spans && !interval.producers.is_empty() && !cuts.iter().any(crosses) {
            *choice = Choice::Rebuild;
        }
    }
    decisions
}

/// Decisions that recompute the tensors with the least time per byte, up to `percent` of all idle bytes.
pub(super) fn cheapest(model: &Model<'_>, percent: u64) -> Decisions {
    let mut decisions = everything(model);
    let forward = model.drafter.step.forward();
    let is_open =
        |interval: &IdleInterval| !interval.is_tail && interval.to >= forward && !interval.producers.is_empty();
    let mut intervals: Vec<usize> =
        (0..model.intervals.len()).filter(|interval| is_open(&model.intervals[*interval])).collect();
    let rate = |interval: &usize| {
        let of = &model.intervals[*interval];
        (u128::from(model.least_again(&of.producers)) << 32) / u128::from(of.bytes.max(1))
    };
    intervals.sort_by_key(rate);
    let mut left = intervals.iter().map(|interval| model.intervals[*interval].bytes).sum::<u64>() / 100 * percent;
    for interval in intervals {
        decisions.intervals[interval] = Choice::Rebuild;
        match left.checked_sub(model.intervals[interval].bytes) {
            Some(rest) => left = rest,
            None => break,
        }
    }
    decisions
}
