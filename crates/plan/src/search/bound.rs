//! A lower bound on the time of a step under a budget, and decisions that the bound suggests.
//!
//! Memory and links get prices. A tensor that holds bytes or delays a link pays instead of being refused. For any prices of at least 0, the minimum
//! of time plus payments is at most the time of the fastest plan within the budget:
//!
//! ```text
//! row at operation t        bytes live at t                                     <= budget
//! row of the link out to t  bytes live, or moved out, at t    - rate x start(t) <= budget
//! row of the link in t..u   bytes live at t, or needed by u   - rate x (t .. u) <= budget
//! ```
//!
//! After this relaxation, only an idle tensor and the inputs of its recomputation remain coupled, two at a time. A minimum cut bounds these pairs.
//! Subgradients improve the prices. The bound holds for any prices, because all of its arithmetic is in integers.
//!
//! **Source**: Barahona and Anbil 2000, the volume algorithm, for the prices; [`crate::search::min_cut`] for the cut.

mod range_max;
mod rows;

use std::cmp::Reverse;

use range_max::RangeMax;
use rows::{Demand, Intervals, Row, RowUse, SHARES, Wanted, rows};

use crate::Direction;
use crate::search::min_cut::{Clauses, HARD, Literal};
use crate::search::model::{IdleInterval, Model, Point};
use crate::stop::End;

/// Units of time per nanosecond.
const TICKS_PER_NS: i128 = 1 << 32;
/// Prices in ticks per byte are capped here: higher prices add nothing, and sums of capped prices never overflow.
const MAX_PRICE: f64 = 1e15;
/// Rates are bytes per nanosecond in units of 1 / `RATE_UNITS`.
const RATE_UNITS: i128 = 1 << 16;

/// The first step size of prices, as a share of the distance between the bound and its target.
const FIRST_STEP_SIZE: f64 = 0.1;
/// Rounds without a higher bound after which the step size shrinks.
const MAX_STALE_ROUNDS: usize = 10;
/// The largest weight of one solution in the mixture of all.
const MAX_MIXTURE_WEIGHT: f64 = 0.3;

/// The best bound so far and the decisions that it suggests.
#[derive(Clone, Debug)]
pub(super) struct RelaxedBound {
    /// A lower bound in ns on the plans in which a copied-back tensor stays until its next use, and a tensor is recomputed only when first needed.
    pub(super) time: u64,
    /// For each interval: the share of it that should stay, from 0 to 1.
    pub(super) keep: Vec<f64>,
    /// For each interval: the share of it that should be recomputed, from 0 to 1.
    pub(super) again: Vec<f64>,
    /// For each interval: the share of it that should move, from 0 to 1.
    pub(super) moving: Vec<f64>,
}

/// The relaxation of a step under a limit.
pub(super) struct Relaxation<'m, 'a> {
    model: &'m Model<'a>,
    limit: u64,
    rows: Vec<Row>,
    prices: Vec<f64>,
    intervals: Intervals,
    rates: [i128; 2],
    /// The cost of a nanosecond of copying in ticks: a copy slows down concurrent computations.
    beside: i128,
}

impl<'m, 'a> Relaxation<'m, 'a> {
    pub(super) fn new(model: &'m Model<'a>, limit: u64) -> Relaxation<'m, 'a> {
        let costs = model.drafter.costs;
        let rate = |direction| (costs.copy_rate(direction) / 1e9 * RATE_UNITS as f64).ceil() as i128;
        let rows = rows(model);
        Relaxation {
            model,
            limit,
            prices: vec![0.0; rows.len()],
            rows,
            intervals: Intervals::of(model),
            rates: [rate(Direction::ToHost), rate(Direction::FromHost)],
            beside: (costs.beside_copies / (1.0 + costs.beside_copies) * TICKS_PER_NS as f64) as i128,
        }
    }

    /// The bound at integer prices.
    fn solve(&self, prices: &[i128]) -> Option<Solved> {
        let model = self.model;
        let count = model.points.len();
        // The price of a live byte at each operation, without the windows of links.
        let mut live = vec![0_i128; count];
        // The value to the links of a nanosecond before each operation; `worth[at + 1]` is also its value during operation `at`.
        let mut worth = vec![0_i128; count + 2];
        let mut constant: i128 = 0;
        let limit = i128::from(self.limit);
        for (row, &price) in self.rows.iter().zip(prices).filter(|(_, price)| **price > 0) {
            let base = i128::from(model.fixed[row.at] + model.used(row.at));
            constant += price * (base - limit);
            match row.window {
                None => live[row.at] += price,
                Some(window) => {
                    let value = price * self.rates[usize::from(window.direction == Direction::FromHost)];
                    worth[window.from + usize::from(window.from > 0)] += value;
                    worth[window.to + 1] -= value;
                }
            }
        }
        // The time before operation j counts for windows from < j <= to. The operation itself counts for from <= j < to, which is the position before
        // operation j + 1.
        for place in 1..worth.len() {
            worth[place] += worth[place - 1];
        }
        let discount = |worth: i128| TICKS_PER_NS - (worth + RATE_UNITS - 1).div_euclid(RATE_UNITS);
        if worth.iter().any(|worth| discount(*worth) < 0) {
            // Waiting would pay for itself, so these prices prove nothing.
            return None;
        }
        let most_worth = RangeMax::of(worth.clone());
        // The least cost of a rerun at any of these operations.
        let rerun = |interval: &IdleInterval, from: usize, to: usize| {
            i128::from(model.least_again(&interval.producers)) * discount(most_worth.within(from, to))
        };
        // Copies out before a moment and copies back after it never overlap. This holds for any moment.
        let forward = model.drafter.step.forward();
        let middle = (0..count).max_by_key(|at| (live[*at], Reverse(at.abs_diff(forward))));
        let middle = middle.unwrap_or(0);
        let scratch_price = {
            let mut all = live.clone();
            for (row, &price) in self.rows.iter().zip(prices).filter(|(row, _)| row.window.is_some()) {
                all[row.at] += price;
            }
            all
        };
        for (at, points) in model.all_points.iter().enumerate() {
            let factor = discount(worth[at + 1]);
            let cost = |point: &Point| i128::from(point.time) * factor + i128::from(point.scratch) * scratch_price[at];
            constant += points.iter().map(cost).min().unwrap_or(0);
        }
        // Sums of prices before each operation.
        let mut sums = vec![0_i128; count + 1];
        for at in 0..count {
            sums[at + 1] = sums[at] + live[at];
        }
        // The cost of being on the device before these operations, without windows.
        let keeping = |of: &IdleInterval, from: usize, to: usize| i128::from(of.bytes) * (sums[to] - sums[from]);
        let mut clauses = Clauses::new(self.intervals.variables);
        // For each interval that only reruns ask for: the most that it may charge for its own demands.
        let mut room: Vec<i128> = vec![HARD; self.intervals.idle.len()];
        let mut kept = vec![false; self.intervals.idle.len()];
        for (place, idle) in self.intervals.idle.iter().enumerate() {
            let of = &model.intervals[idle.interval];
            let bytes = i128::from(of.bytes);
            match &idle.wanted {
                Wanted::ForReruns { asked, last, has } => {
                    let windows = self.rows.iter().zip(prices).skip(count);
                    let inside = windows.filter(|(row, _)| (idle.since..*asked).contains(&row.at));
                    let keeping =
                        keeping(of, idle.since, *asked) + bytes * inside.map(|(_, price)| price).sum::<i128>();
                    let again = match !of.producers.is_empty() && *asked <= of.until {
                        true => rerun(of, *asked, *last),
                        false => keeping,
                    };
                    constant += clauses.cost(Literal::of(*has), again.min(keeping));
                    room[place] = (keeping - again).max(0);
                    kept[place] = keeping < again;
                }
                Wanted::ForUse { asked, there, again } => {
                    let there = |place: usize| Literal::of(there + place);
                    let first = idle.since.min(of.to);
                    let mut from = first;
                    for (place, to) in asked.iter().copied().chain([of.to]).enumerate() {
                        constant += clauses.cost(there(place), keeping(of, from, to));
                        if place > 0 {
                            clauses.implies(there(place - 1), there(place), HARD);
                        }
                        from = to;
                    }
                    // Windows: a tensor that is not recomputed has to move or stay.
                    let mut moving = 0;
                    for (row, &price) in self.rows.iter().zip(prices).skip(count).filter(|(_, price)| **price > 0) {
                        match idle.row_use(asked, of, row) {
                            RowUse::Nothing => {}
                            RowUse::Unless => moving += price,
                            RowUse::There(place) => constant += clauses.cost(there(place), bytes * price),
                        }
                    }
                    // Copies slow down concurrent computations.
                    let (out, back) = model.copies[idle.interval];
                    let (out, back) = (i128::from(out) * idle.share / SHARES, i128::from(back));
                    let copying = match () {
                        () if of.to <= middle => out * self.beside,
                        () if of.from >= middle => back * self.beside,
                        // Both copies, unless the tensor is on the device in the middle.
                        () => ((out + back) * self.beside).min(out.min(back) * self.beside + bytes * live[middle]),
                    };
                    match again {
                        None => {
                            constant += bytes * moving;
                            constant += clauses.cost(!there(0), copying);
                        }
                        Some(again) => {
                            let again = Literal::of(*again);
                            clauses.either(there(0), again, copying);
                            constant += clauses.cost(!again, bytes * moving);
                            constant += clauses.cost(again, rerun(of, idle.earliest.max(first), of.to));
                        }
                    }
                }
            }
        }
        for demands in self.intervals.demands.chunk_by(|one, other| one.by == other.by) {
            let by = demands[0].by;
            let asking = match &self.intervals.idle[by].wanted {
                Wanted::ForReruns { has, .. } => Literal::of(*has),
                Wanted::ForUse { again: Some(again), .. } => Literal::of(*again),
                Wanted::ForUse { again: None, .. } => continue,
            };
            let asked: Vec<(Literal, i128)> = demands.iter().map(|demand| self.asked(demand, rerun, keeping)).collect();
            let penalties = shared(&asked, room[by]);
            for ((literal, _), penalty) in asked.iter().zip(penalties) {
                clauses.implies(asking, *literal, penalty);
            }
        }
        let twice = clauses.least_twice();
        Some(Solved { twice: constant * 2 + twice, clauses, worth, scratch_price, kept })
    }

    /// The literal that a demand asks for, and the least cost of not meeting the demand.
    fn asked(
        &self,
        demand: &Demand,
        rerun: impl Fn(&IdleInterval, usize, usize) -> i128,
        keeping: impl Fn(&IdleInterval, usize, usize) -> i128,
    ) -> (Literal, i128) {
        let idle = &self.intervals.idle[demand.of];
        let of = &self.model.intervals[idle.interval];
        match &idle.wanted {
            Wanted::ForReruns { has, .. } => (Literal::of(*has), HARD),
            Wanted::ForUse { asked, there, .. } => {
                // The tensor may also be kept until then, or recomputed for this demand alone and come back once more later.
                let first = idle.since.min(of.to);
                let kept = demand.place.checked_sub(1).map_or(0, |place| keeping(of, first, asked[place]));
                let alone = match of.producers.is_empty() {
                    true => kept,
                    false => kept.min(rerun(of, idle.earliest, of.to)),
                };
                let alone = alone / i128::from(self.intervals.asks[demand.of]);
                (Literal::of(there + demand.place), alone)
            }
        }
    }

    /// The excess of each row over its limit in a solution, in bytes.
    fn over(&self, solved: &Solved) -> Vec<f64> {
        let model = self.model;
        let (count, limit) = (model.points.len(), self.limit as f64);
        let discount = |worth: i128| TICKS_PER_NS - (worth + RATE_UNITS - 1).div_euclid(RATE_UNITS);
        // Times of the operations, and of reruns at the moments of their largest value.
        let mut starts = vec![0.0; count + 2];
        let mut scratch = vec![0.0; count];
        for (at, points) in model.all_points.iter().enumerate() {
            let factor = discount(solved.worth[at + 1]);
            let cost =
                |point: &&Point| i128::from(point.time) * factor + i128::from(point.scratch) * solved.scratch_price[at];
            if let Some(point) = points.iter().min_by_key(cost) {
                starts[at + 1] += point.time as f64;
                scratch[at] = point.scratch as f64;
            }
        }
        let mut over: Vec<f64> = self
            .rows
            .iter()
            .map(|row| (model.fixed[row.at] + model.used(row.at)) as f64 + scratch[row.at] - limit)
            .collect();
        let mut live = vec![0.0; count + 1];
        for (idle, kept) in self.intervals.idle.iter().zip(&solved.kept) {
            let of = &model.intervals[idle.interval];
            let bytes = of.bytes as f64;
            let (asked, there, again) = match &idle.wanted {
                Wanted::ForUse { asked, there, again } => (asked, there, again),
                Wanted::ForReruns { asked, has, .. } => {
                    let has = solved.value(*has);
                    if *kept {
                        live[idle.since] += has * bytes;
                        live[*asked] -= has * bytes;
                        let windows = self.rows.iter().zip(&mut over).skip(count);
                        let inside = windows.filter(|(row, _)| (idle.since..*asked).contains(&row.at));
                        inside.for_each(|(_, over)| *over += has * bytes);
                    } else {
                        starts[*asked] += has * model.least_again(&of.producers) as f64;
                    }
                    continue;
                }
            };
            let again = again.map_or(0.0, |again| solved.value(again));
            let from = idle.since.min(of.to);
            if again > 0.0 {
                let best = (idle.earliest.max(from)..=of.to).max_by_key(|at| solved.worth[*at]).unwrap_or(from);
                starts[best] += again * model.least_again(&of.producers) as f64;
            }
            let mut start = from;
            for (place, to) in asked.iter().copied().chain([of.to]).enumerate() {
                let there = solved.value(there + place) * bytes;
                live[start] += there;
                live[to] -= there;
                start = to;
            }
            for (row, over) in self.rows.iter().zip(&mut over).skip(count) {
                match idle.row_use(asked, of, row) {
                    RowUse::Nothing => {}
                    RowUse::Unless => *over += bytes * (1.0 - again),
                    RowUse::There(place) => *over += bytes * solved.value(there + place),
                }
            }
        }
        let mut sum = 0.0;
        for (live, over) in live.iter().zip(over.iter_mut().take(count)) {
            sum += live;
            *over += sum;
        }
        for at in 1..starts.len() {
            starts[at] += starts[at - 1];
        }
        for (row, over) in self.rows.iter().zip(&mut over) {
            if let Some(window) = row.window {
                let rate = self.rates[usize::from(window.direction == Direction::FromHost)] as f64 / RATE_UNITS as f64;
                let begin = if window.from == 0 { 0.0 } else { starts[window.from] };
                *over -= rate * (starts[window.to] - begin);
            }
        }
        over
    }

    /// Improves the prices and returns the best bound; `target` is the time of a known plan.
    ///
    /// - Cost: one minimum cut per round.
    pub(super) fn improve(&mut self, target: u64, rounds: usize, end: End<'_>) -> RelaxedBound {
        let intervals = self.model.intervals.len();
        // Without prices, the step takes at least the time of its operations.
        let fastest = |points: &Vec<Point>| points.iter().map(|point| point.time).min().unwrap_or(0);
        let time = self.model.all_points.iter().map(fastest).sum();
        let mut best = RelaxedBound {
            time,
            keep: vec![0.0; intervals],
            again: vec![0.0; intervals],
            moving: vec![0.0; intervals],
        };
        let mut center = self.prices.clone();
        let mut highest = f64::NEG_INFINITY;
        let (mut share, mut stale) = (FIRST_STEP_SIZE, 0);
        let mut direction: Vec<f64> = Vec::new();
        for _ in 0..rounds {
            if end.is_over() {
                break;
            }
            let prices: Vec<i128> = self.prices.iter().map(|price| *price as i128).collect();
            let Some(solved) = self.solve(&prices) else { break };
            let time = solved.twice.div_euclid(2 * TICKS_PER_NS);
            let value = solved.twice as f64 / 2.0 / TICKS_PER_NS as f64;
            best.time = best.time.max(u64::try_from(time).unwrap_or(0));
            let over = self.over(&solved);
            // The mixture of the last solutions with the least excess.
            let weight = match direction.is_empty() {
                true => 1.0,
                false => shortest(&direction, &over).clamp(MAX_MIXTURE_WEIGHT / 10.0, MAX_MIXTURE_WEIGHT),
            };
            if direction.is_empty() {
                direction = over;
            } else {
                direction.iter_mut().zip(&over).for_each(|(mixed, over)| *mixed += weight * (over - *mixed));
            }
            self.mix(&mut best, &solved, weight);
            if value > highest {
                let gained = value > highest + highest.abs() * 1e-5;
                highest = value;
                center.clone_from(&self.prices);
                if gained {
                    stale = 0;
                    share = (share * 1.1).min(1.0);
                }
            } else {
                stale += 1;
                if stale == MAX_STALE_ROUNDS {
                    (share, stale) = (share / 1.5, 0);
                }
            }
            // A free row that is within its limit stays free.
            let steps =
                direction.iter().zip(&center).map(|(of, price)| if *price <= 0.0 && *of < 0.0 { 0.0 } else { *of });
            let norm: f64 = steps.clone().map(|of| of * of).sum();
            let missing = target as f64 * 1.002 - highest;
            if norm <= 0.0 || missing <= 0.0 || share < 1e-4 {
                break;
            }
            let length = share * missing * TICKS_PER_NS as f64 / norm;
            self.prices = steps.zip(&center).map(|(of, price)| (price + length * of).clamp(0.0, MAX_PRICE)).collect();
            self.keep_waiting_unpaid();
        }
        self.prices = center;
        best
    }

    /// Mixes a solution into the suggested decisions.
    fn mix(&self, best: &mut RelaxedBound, solved: &Solved, weight: f64) {
        for idle in &self.intervals.idle {
            let Wanted::ForUse { there, again, .. } = &idle.wanted else { continue };
            let again = again.map_or(0.0, |again| solved.value(again));
            let keep = solved.value(*there);
            let moving = (1.0 - keep - again).max(0.0);
            best.moving[idle.interval] += weight * (moving - best.moving[idle.interval]);
            best.keep[idle.interval] += weight * (keep - best.keep[idle.interval]);
            best.again[idle.interval] += weight * (again - best.again[idle.interval]);
        }
    }

    /// Lowers the links' prices until waiting never pays for itself.
    fn keep_waiting_unpaid(&mut self) {
        let mut worth = vec![0.0; self.model.points.len() + 2];
        for (row, price) in self.rows.iter().zip(&self.prices) {
            if let Some(window) = row.window {
                let rate = self.rates[usize::from(window.direction == Direction::FromHost)] as f64 / RATE_UNITS as f64;
                worth[window.from + usize::from(window.from > 0)] += price * rate;
                worth[window.to + 1] -= price * rate;
            }
        }
        let (mut sum, mut most) = (0.0, 0.0_f64);
        for worth in worth {
            sum += worth;
            most = most.max(sum);
        }
        let allowed = TICKS_PER_NS as f64 * (1.0 - 1e-6);
        if most > allowed {
            for (_, price) in self.rows.iter().zip(&mut self.prices).filter(|(row, _)| row.window.is_some()) {
                *price *= allowed / most;
            }
        }
    }
}

/// The weight of `other` for which the mixture of both is shortest.
fn shortest(one: &[f64], other: &[f64]) -> f64 {
    let (mut down, mut length) = (0.0, 0.0);
    for (one, other) in one.iter().zip(other) {
        down += one * (one - other);
        length += (one - other) * (one - other);
    }
    if length > 0.0 { down / length } else { 1.0 }
}

/// Splits `room` among demands: each demand gets its own penalty or an equal share, whichever is smaller.
fn shared(asked: &[(Literal, i128)], room: i128) -> Vec<i128> {
    if room >= HARD {
        return asked.iter().map(|(_, penalty)| *penalty).collect();
    }
    let mut rising: Vec<usize> = (0..asked.len()).collect();
    rising.sort_by_key(|place| asked[*place].1);
    let (mut left, mut penalties) = (room, vec![0; asked.len()]);
    for (before, place) in rising.into_iter().enumerate() {
        penalties[place] = asked[place].1.min(left / (asked.len() - before) as i128);
        left -= penalties[place];
    }
    penalties
}

/// The relaxation at some prices.
struct Solved {
    twice: i128,
    clauses: Clauses,
    worth: Vec<i128>,
    scratch_price: Vec<i128>,
    /// For each interval that only reruns ask for: whether keeping it costs less than recomputing it.
    kept: Vec<bool>,
}

impl Solved {
    fn value(&self, variable: usize) -> f64 {
        match self.clauses.value(Literal::of(variable)) {
            Some(true) => 1.0,
            Some(false) => 0.0,
            None => 0.5,
        }
    }
}
