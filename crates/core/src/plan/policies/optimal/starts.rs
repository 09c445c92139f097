//! Decisions that a search starts from.

use super::evaluate::{Choice, Decisions};
use super::model::{Gap, Model};

/// Decisions that keep everything, with the fastest points.
pub(super) fn everything(model: &Model<'_>) -> Decisions {
    let choice = |gap: &Gap| if gap.is_tail { Choice::Rebuild } else { Choice::Keep };
    Decisions {
        gaps: model.gaps.iter().map(choice).collect(),
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
    for (gap, choice) in model.gaps.iter().zip(&mut decisions.gaps) {
        let crosses = |cut: &usize| {
            let uses = model.forward_uses(gap.tensor);
            uses.start <= *cut && *cut + 1 < uses.end
        };
        let spans = gap.to > forward || gap.to - gap.from > forward / segments.max(1);
        if !gap.is_tail && spans && !gap.producers.is_empty() && !cuts.iter().any(crosses) {
            *choice = Choice::Rebuild;
        }
    }
    decisions
}

/// Decisions that recompute the tensors with the least time per byte, up to `percent` of all idle bytes.
pub(super) fn cheapest(model: &Model<'_>, percent: u64) -> Decisions {
    let mut decisions = everything(model);
    let forward = model.drafter.step.forward();
    let is_open = |gap: &Gap| !gap.is_tail && gap.to >= forward && !gap.producers.is_empty();
    let mut gaps: Vec<usize> = (0..model.gaps.len()).filter(|gap| is_open(&model.gaps[*gap])).collect();
    let rate = |gap: &usize| {
        let of = &model.gaps[*gap];
        (u128::from(model.least_again(&of.producers)) << 32) / u128::from(of.bytes.max(1))
    };
    gaps.sort_by_key(rate);
    let mut left = gaps.iter().map(|gap| model.gaps[*gap].bytes).sum::<u64>() / 100 * percent;
    for gap in gaps {
        decisions.gaps[gap] = Choice::Rebuild;
        match left.checked_sub(model.gaps[gap].bytes) {
            Some(rest) => left = rest,
            None => break,
        }
    }
    decisions
}
