//! The knapsack behind an allotment: the workspace that each point adds to its kernel's least, and the time it saves.
//!
//! ```text
//! workspace, time          weight, gain
//! (10, 90)             ->  ( 0,  0)
//! (15, 95)                 dropped: more of both
//! (40, 50)             ->  (30, 40)
//! ```

use std::collections::HashMap;

use tightfit_units::{Bytes, Error, Nanos};

/// One point of a front, relative to the point with the least workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    /// Additional bytes.
    pub weight: u64,
    /// Nanoseconds saved.
    pub gain: u64,
    /// Its index, both in the caller's front and in an [`Answer`].
    pub index: usize,
}

/// Kernels with their fronts, and the bytes that all choices share.
pub(super) struct Knapsack {
    /// The distinct fronts, by rising weight and gain; none is empty.
    pub fronts: Vec<Vec<Point>>,
    /// The front of each kernel.
    pub kernels: Vec<usize>,
    /// Bytes available beyond the least workspaces.
    pub capacity: u64,
}

/// A choice that fits.
pub(super) struct Answer {
    /// Sum of the gains.
    pub gain: u64,
    /// The point of each kernel.
    pub choice: Vec<Point>,
}

impl Knapsack {
    /// The knapsack of these fronts; `group` merges equal fronts.
    pub fn new(fronts: &[Vec<(Bytes, Nanos)>], total: Bytes, group: bool) -> Result<Knapsack, Error> {
        let least = |front: &Vec<(Bytes, Nanos)>| front.iter().map(|&(workspace, _)| workspace).min();
        let needed: Bytes = fronts.iter().map(|front| least(front).unwrap_or(Bytes::UNLIMITED)).sum();
        if needed > total || fronts.iter().any(Vec::is_empty) {
            return Err(Error::OverTotal { needed, total });
        }
        // With these two limits, no sum of products of a weight and a gain overflows 128 bits.
        let capacity = (total.0 - needed.0).min(1 << 62);
        let longest = (1 << 60) / fronts.len().max(1) as u64;

        let mut distinct = Vec::new();
        let mut known: HashMap<&[(Bytes, Nanos)], usize> = HashMap::new();
        let mut kernels = Vec::with_capacity(fronts.len());
        for front in fronts {
            let next = distinct.len();
            let position = if group { *known.entry(front).or_insert(next) } else { next };
            if position == next {
                distinct.push(relative(front, capacity, longest));
            }
            kernels.push(position);
        }
        Ok(Knapsack { fronts: distinct, kernels, capacity })
    }

    /// The front of a kernel.
    pub fn front(&self, kernel: usize) -> &[Point] {
        &self.fronts[self.kernels[kernel]]
    }

    /// The caller's index of each chosen point.
    pub fn indices(&self, answer: &Answer) -> Vec<usize> {
        answer.choice.iter().map(|point| point.index).collect()
    }
}

impl Answer {
    /// The answer with these points.
    pub fn new(choice: Vec<Point>) -> Answer {
        Answer { gain: choice.iter().map(|point| point.gain).sum(), choice }
    }

    /// Repeatedly exchanges one kernel's point for the most gain that still fits, until nothing gains.
    pub fn exchange(&mut self, knapsack: &Knapsack) {
        let used: u64 = self.choice.iter().map(|point| point.weight).sum();
        let mut left = knapsack.capacity - used;
        loop {
            let best = self.choice.iter().enumerate().filter_map(|(kernel, now)| {
                let front = knapsack.front(kernel);
                let fitting = front.partition_point(|point| point.weight <= now.weight + left);
                let point = front[..fitting].last()?;
                Some((point.gain - now.gain, kernel, *point))
            });
            let Some((gain, kernel, point)) = best.max_by_key(|&(gain, _, _)| gain).filter(|&(gain, _, _)| gain > 0)
            else {
                return;
            };
            left -= point.weight - self.choice[kernel].weight;
            self.gain += gain;
            self.choice[kernel] = point;
        }
    }
}

/// The undominated points of a front that fit, relative to the first.
fn relative(front: &[(Bytes, Nanos)], capacity: u64, longest: u64) -> Vec<Point> {
    let mut order: Vec<usize> = (0..front.len()).collect();
    order.sort_by_key(|&index| (front[index], index));
    let mut points: Vec<Point> = Vec::new();
    let Some(&first) = order.first() else { return points };
    let (least, slowest) = (front[first].0.0, front[first].1.0.min(longest));
    for index in order {
        let (workspace, time) = front[index];
        let (weight, gain) = (workspace.0 - least, slowest.saturating_sub(time.0.min(longest)));
        if weight <= capacity && points.last().is_none_or(|last| gain > last.gain) {
            points.push(Point { weight, gain, index });
        }
    }
    points
}
