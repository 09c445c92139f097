//! The largest possible gain: a bound from the best rates of all measurements on the device.
//!
//! ```text
//! time of the own choice   |-------------------|
//! bound                    |-------|                 work / best rate of arithmetic, or bytes / best rate of memory
//! could be gained                  |-----------|     a call, times the calls of a step
//! ```

use std::collections::HashMap;

use tightfit_conv::{Operation, Problem, Types};
use tightfit_units::Nanos;

/// The best rates by number types, each per nanosecond: arithmetic, bytes of tensors.
#[derive(Default)]
pub(super) struct Rates(HashMap<Types, [f64; 2]>);

/// Rates of a small device: 5 TFLOP/s and 0.5 TB/s.
const SMALL_DEVICE_RATES: [f64; 2] = [5e3, 500.0];
/// A better algorithm may exceed every rate seen so far by this much.
const MAX_RATE_GROWTH: f64 = 1.3;

impl Rates {
    /// Records the rates that a measurement reached.
    pub fn add(&mut self, problem: &Problem, time: Nanos) {
        let best = self.0.entry(problem.types()).or_default();
        let nanos = time.0.max(1) as f64;
        for (best, work) in best.iter_mut().zip(work(problem)) {
            *best = best.max(work / nanos);
        }
    }

    /// The least time that a call may take, from the known rates; from the rates of a small device if none are known.
    pub fn least(&self, problem: &Problem) -> Nanos {
        Nanos(nanos(problem, self.0.get(&problem.types()).copied().unwrap_or(SMALL_DEVICE_RATES)) as u64)
    }

    /// The most time by which a call might become faster.
    pub fn gain(&self, problem: &Problem, time: Nanos) -> Nanos {
        let Some(best) = self.0.get(&problem.types()) else { return time };
        let bound = nanos(problem, best.map(|rate| rate * MAX_RATE_GROWTH));
        Nanos(time.0.saturating_sub(bound as u64))
    }
}

/// The time of a call on a small device, in nanoseconds: a measure of its work.
pub(super) fn small(problem: &Problem) -> f64 {
    nanos(problem, SMALL_DEVICE_RATES).max(1.0)
}

/// The longer of the times for arithmetic and for memory.
fn nanos(problem: &Problem, rates: [f64; 2]) -> f64 {
    let times = work(problem).into_iter().zip(rates).map(|(work, rate)| if rate > 0.0 { work / rate } else { 0.0 });
    times.fold(0.0, f64::max)
}

/// Operations, and bytes of the three tensors.
fn work(problem: &Problem) -> [f64; 2] {
    let filters = if problem.operation() == Operation::BackwardFilter { 4 } else { problem.types().storage().size() };
    let samples = (problem.input_len() + problem.output_len()) * problem.types().storage().size();
    [problem.flops(), (samples + problem.filter_len() * filters) as f64]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_kernels_below_the_best_rate_can_gain() {
        let (fast, slow): (Problem, Problem) = (
            "forward n8 c64 h28 w28 k64 r3 s3 pad1 f32".parse().unwrap(),
            "forward n8 c64 h14 w14 k64 r3 s3 pad1 f32".parse().unwrap(),
        );
        let mut rates = Rates::default();
        assert_eq!(rates.gain(&fast, Nanos(1000)), Nanos(1000), "nothing known");
        rates.add(&fast, Nanos(100_000));
        assert!(rates.gain(&fast, Nanos(100_000)) < Nanos(25_000));
        assert!(rates.gain(&slow, Nanos(100_000)) > Nanos(70_000));
        assert_eq!(rates.least(&fast), Nanos(100_000));
        // A quarter of the work, but the same filters.
        assert!((Nanos(25_000)..Nanos(30_000)).contains(&rates.least(&slow)));
        assert_eq!(Rates::default().least(&fast).0, small(&fast) as u64);
    }
}
