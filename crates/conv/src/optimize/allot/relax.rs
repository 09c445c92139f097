//! The relaxation: points may be taken in fractions, so each front becomes its upper hull, and the best use of any
//! capacity takes the steepest segments of all hulls first.
//!
//! ```text
//! gain            . c             gain         . - - -
//!  |          . '                  |       . /   all segments, steepest first:
//!  |      b '    x  below the      |     /'      whole segments are an answer,
//!  |     /          hull           |   /         the line between is the bound
//!  |    a                          |  /
//!  +----------- weight             +----------- capacity
//! ```

use std::cmp::Ordering;

use super::knapsack::{Answer, Knapsack, Point};

/// A step along one kernel's hull.
#[derive(Clone, Copy)]
pub(super) struct Segment {
    /// The kernel whose hull it is.
    pub kernel: usize,
    /// Additional bytes.
    pub weight: u64,
    /// Nanoseconds saved.
    pub gain: u64,
    /// The point it leads to.
    pub to: Point,
}

impl Segment {
    /// Orders steeper before flatter, without division.
    fn steepness(&self, other: &Segment) -> Ordering {
        let (a, b) = (self.gain as u128 * other.weight as u128, other.gain as u128 * self.weight as u128);
        b.cmp(&a)
    }
}

/// The segments of all kernels' hulls, steepest first. Segments of one kernel are in order along its hull.
pub(super) fn segments(knapsack: &Knapsack) -> Vec<Segment> {
    let hulls: Vec<Vec<Segment>> = knapsack.fronts.iter().map(|front| hull(front)).collect();
    let of_kernel =
        |(kernel, &front): (usize, &usize)| hulls[front].iter().map(move |&segment| Segment { kernel, ..segment });
    let mut all: Vec<Segment> = knapsack.kernels.iter().enumerate().flat_map(of_kernel).collect();
    all.sort_by(Segment::steepness);
    all
}

/// The segments of a front's upper hull; the caller sets their kernel.
fn hull(front: &[Point]) -> Vec<Segment> {
    let mut hull: Vec<Segment> = Vec::new();
    for &to in &front[1..] {
        let mut segment = Segment { kernel: 0, weight: to.weight - front[0].weight, gain: to.gain - front[0].gain, to };
        while let Some(last) = hull.last() {
            let joined = Segment { weight: to.weight - last.to.weight, gain: to.gain - last.to.gain, ..segment };
            if last.steepness(&joined).is_lt() {
                segment = joined;
                break;
            }
            hull.pop();
            let from = hull.last().map_or(front[0], |last| last.to);
            segment = Segment { weight: to.weight - from.weight, gain: to.gain - from.gain, ..segment };
        }
        hull.push(segment);
    }
    hull
}

/// The maximum fractional gain of some kernels for every capacity: a concave line whose corners take no fractions.
pub(super) struct Curve {
    /// Weight and gain after the first 0, 1, 2, .. segments; the first weight beyond the capacity is the last.
    corners: Vec<(u64, u64)>,
}

impl Curve {
    /// The curve that starts at `first` (the kernels' least weights and their gains) and follows `segments`.
    pub fn new<'a>(first: (u64, u64), segments: impl IntoIterator<Item = &'a Segment>, capacity: u64) -> Curve {
        let mut corners = vec![first];
        let (mut weight, mut gain) = first;
        for segment in segments {
            if weight > capacity {
                break;
            }
            weight += segment.weight;
            gain += segment.gain;
            corners.push((weight, gain));
        }
        Curve { corners }
    }

    /// How many whole segments fit into `capacity`, given that at most `most` do; `None` if not even the first corner
    /// fits.
    pub fn whole(&self, capacity: u64, most: usize) -> Option<usize> {
        (0..self.corners.len().min(most.saturating_add(1))).rev().find(|&corner| self.corners[corner].0 <= capacity)
    }

    /// The gain of the first `whole` segments.
    pub fn gain(&self, whole: usize) -> u64 {
        self.corners[whole].1
    }

    /// The maximum gain within `capacity`, from `whole` whole segments and part of the next; rounded down, because
    /// gains are integers.
    pub fn bound(&self, capacity: u64, whole: usize) -> u64 {
        let (weight, gain) = self.corners[whole];
        let Some(&(next_weight, next_gain)) = self.corners.get(whole + 1) else { return gain };
        let (left, run, rise) = (capacity - weight, next_weight - weight, next_gain - gain);
        gain + match left.checked_mul(rise) {
            Some(product) => product / run,
            None => (left as u128 * rise as u128 / run as u128) as u64,
        }
    }
}

/// The relaxation of a whole knapsack.
pub(super) struct Relaxation {
    segments: Vec<Segment>,
    /// Number of whole segments that fit.
    whole: usize,
    bound: u64,
}

impl Relaxation {
    /// Solves the relaxation.
    pub fn new(knapsack: &Knapsack) -> Relaxation {
        let segments = segments(knapsack);
        let curve = Curve::new((0, 0), &segments, knapsack.capacity);
        // Weights are relative to the least, so zero segments always fit.
        let whole = curve.whole(knapsack.capacity, usize::MAX).unwrap_or(0);
        let bound = curve.bound(knapsack.capacity, whole);
        Relaxation { segments, whole, bound }
    }

    /// Upper bound on the gain of any choice.
    pub fn bound(&self) -> u64 {
        self.bound
    }

    /// The gain of one more byte at the capacity, as (gain, weight): the slope of the partial segment, or zero if all
    /// segments fit.
    pub fn slope(&self) -> (u64, u64) {
        self.segments.get(self.whole).map_or((0, 1), |segment| (segment.gain, segment.weight))
    }

    /// The answer made of the whole segments, plus any later ones that still fit.
    pub fn rounded_down(&self, knapsack: &Knapsack) -> Answer {
        let mut choice: Vec<Point> = (0..knapsack.kernels.len()).map(|kernel| knapsack.front(kernel)[0]).collect();
        let mut left = knapsack.capacity;
        for segment in &self.segments {
            let now = &mut choice[segment.kernel];
            // A segment that does not fit ends its kernel's hull: later segments start from the point it leads to.
            if segment.weight <= left && segment.to.weight - now.weight == segment.weight {
                left -= segment.weight;
                *now = segment.to;
            }
        }
        Answer::new(choice)
    }
}
