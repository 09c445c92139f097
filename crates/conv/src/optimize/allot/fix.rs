//! Drops points that cannot be part of a better answer.
//!
//! Charge every byte the slope of the relaxation. Then each kernel has a best point at that charge, and any other point
//! falls short of it by some amount. An answer reaches the relaxation's bound only with best points everywhere; one
//! with another point is below the bound by at least its shortfall. If that exceeds the gap between the bound and the
//! best known answer, the point is dropped. All amounts are multiplied by the slope's weight, so everything stays an
//! integer.

use super::knapsack::{Knapsack, Point};

/// The value of `point` if every byte costs `slope`, times the slope's weight.
fn charged(point: &Point, (gain, weight): (u64, u64)) -> i128 {
    weight as i128 * point.gain as i128 - gain as i128 * point.weight as i128
}

/// The knapsack reduced to points that an answer of more than `known` gain can contain; the best points of each front
/// always stay.
pub(super) fn fix(knapsack: &Knapsack, slope: (u64, u64), known: u64) -> Knapsack {
    let best = |front: &Vec<Point>| front.iter().map(|point| charged(point, slope)).max().unwrap_or_default();
    let best: Vec<i128> = knapsack.fronts.iter().map(best).collect();
    let everywhere: i128 = knapsack.kernels.iter().map(|&front| best[front]).sum();
    let (gain, weight) = slope;
    let most = gain as i128 * knapsack.capacity as i128 + everywhere;
    let to_spare = (most - weight as i128 * (known as i128 + 1)).max(0);
    let kept = |(front, best): (&Vec<Point>, &i128)| {
        front.iter().filter(|point| best - charged(point, slope) <= to_spare).copied().collect()
    };
    Knapsack {
        fronts: knapsack.fronts.iter().zip(&best).map(kept).collect(),
        kernels: knapsack.kernels.clone(),
        ..*knapsack
    }
}

/// The shortfall of a front's second-best point from its best at the charge `slope`; `None` for a single point.
pub(super) fn second_best(front: &[Point], slope: (u64, u64)) -> Option<i128> {
    let mut values: Vec<i128> = front.iter().map(|point| charged(point, slope)).collect();
    values.sort_unstable();
    match values.as_slice() {
        [.., second, best] => Some(best - second),
        _ => None,
    }
}
