//! What could be gained at most: a bound from the best rates that anything measured has reached on the device. And what a
//! measurement may take: as long as its algorithm took elsewhere, and far longer than the bound if it is a new one.
//!
//! ```text
//! time of the own choice   |-------------------|
//! bound                    |-------|                 work / best rate of arithmetic, or bytes / best rate of memory
//! could be gained                  |-----------|     a call, times the calls of a step
//! ```

use std::collections::HashMap;

use std::time::Duration;

use tightfit_core::{Algorithm, Nanos, Operation, Problem, Types};

/// What was seen on the device.
#[derive(Default)]
pub(super) struct Rates {
    /// The best rates, each per nanosecond: arithmetic, bytes of tensors.
    best: HashMap<Types, [f64; 2]>,
    /// The worst of each algorithm.
    worst: HashMap<Kind, Worst>,
}

/// An algorithm where it may be expected to be about as fast as elsewhere: its name, whether there are groups, the operation and
/// the types.
type Kind = (String, bool, Operation, Types);

#[derive(Clone, Copy, Default)]
struct Worst {
    /// Time of a call, in the times of a small device.
    slowness: f64,
    /// Time to set it up on the host.
    setup: Duration,
}

/// Rates of a small device, to expect times by before anything was measured: 5 TFLOP/s and 0.5 TB/s.
const SMALL: [f64; 2] = [5e3, 500.0];
/// What is not known to be better may take so many times the bound.
const UNKNOWN: f64 = 20.0;
/// Expected times are exceeded by no more than this in general.
const MARGIN: f64 = 1.5;
/// A better algorithm may exceed every rate seen so far by this much.
const BETTER: f64 = 1.3;

impl Rates {
    /// Takes down what a measurement reached.
    pub fn add(&mut self, problem: &Problem, time: Nanos) {
        let best = self.best.entry(problem.types()).or_default();
        let nanos = time.0.max(1) as f64;
        for (best, work) in best.iter_mut().zip(work(problem)) {
            *best = best.max(work / nanos);
        }
    }

    /// Takes down how long a call of an algorithm took.
    pub fn add_call(&mut self, problem: &Problem, algorithm: &Algorithm, time: Nanos) {
        self.add(problem, time);
        let slowness = time.0 as f64 / nanos(problem, SMALL).max(1.0);
        let worst = self.worst.entry(kind(problem, algorithm)).or_default();
        worst.slowness = worst.slowness.max(slowness);
    }

    /// Takes down how long setting an algorithm up took.
    pub fn add_setup(&mut self, problem: &Problem, algorithm: &Algorithm, time: Duration) {
        let worst = self.worst.entry(kind(problem, algorithm)).or_default();
        worst.setup = worst.setup.max(time);
    }

    /// What setting an algorithm up may take; none if it is not known.
    pub fn setup(&self, problem: &Problem, algorithm: &Algorithm) -> Option<Duration> {
        self.worst.get(&kind(problem, algorithm)).map(|worst| worst.setup)
    }

    /// What a call of a new algorithm may take, or of the one that is given.
    pub fn expected(&self, problem: &Problem, algorithm: Option<&Algorithm>) -> Nanos {
        let known = algorithm.and_then(|algorithm| self.worst.get(&kind(problem, algorithm)));
        let nanos = match (known.filter(|worst| worst.slowness > 0.0), self.best.get(&problem.types())) {
            (Some(worst), _) => MARGIN * worst.slowness * nanos(problem, SMALL),
            (None, Some(best)) => UNKNOWN * nanos(problem, *best),
            (None, None) => nanos(problem, SMALL),
        };
        Nanos(nanos as u64)
    }

    /// What a call that took so long elsewhere, or in a share of it, may take.
    pub fn at_most(time: Nanos) -> Nanos {
        Nanos((time.0 as f64 * MARGIN) as u64)
    }

    /// What a call might be shortened by.
    pub fn gain(&self, problem: &Problem, time: Nanos) -> Nanos {
        let Some(best) = self.best.get(&problem.types()) else { return time };
        let bound = nanos(problem, best.map(|rate| rate * BETTER));
        Nanos(time.0.saturating_sub(bound as u64))
    }
}

fn kind(problem: &Problem, algorithm: &Algorithm) -> Kind {
    (algorithm.name().to_owned(), problem.convolution().groups() > 1, problem.operation(), problem.types())
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
    fn what_reaches_the_best_rate_can_gain_nothing_and_others_can() {
        let (fast, slow): (Problem, Problem) = (
            "forward n8 c64 h28 w28 k64 r3 s3 pad1 f32".parse().unwrap(),
            "forward n8 c64 h14 w14 k64 r3 s3 pad1 f32".parse().unwrap(),
        );
        let mut rates = Rates::default();
        assert_eq!(rates.gain(&fast, Nanos(1000)), Nanos(1000), "nothing known");
        rates.add(&fast, Nanos(100_000));
        assert!(rates.gain(&fast, Nanos(100_000)) < Nanos(25_000));
        assert!(rates.gain(&slow, Nanos(100_000)) > Nanos(70_000));
        // A quarter of the work, but the same filters.
        let expected = |rates: &Rates, of: &Problem| rates.expected(of, None).0 / UNKNOWN as u64;
        assert_eq!(expected(&rates, &fast), 100_000);
        assert!((25_000..30_000).contains(&expected(&rates, &slow)));
        assert!(Rates::default().expected(&fast, None) > Nanos(100));
    }

    #[test]
    fn an_algorithm_is_expected_to_take_what_it_took() {
        let whole: Problem = "forward n8 c64 h28 w28 k64 r3 s3 pad1 f32".parse().unwrap();
        let (half, gemm) = (whole.with_batch(4).unwrap(), Algorithm::new("gemm"));
        let mut rates = Rates::default();
        rates.add(&whole, Nanos(100_000));
        let unknown = rates.expected(&half, Some(&gemm));
        rates.add_call(&whole, &gemm, Nanos(200_000));
        rates.add_call(&whole, &gemm, Nanos(150_000));
        assert_eq!(rates.expected(&whole, Some(&gemm)), Nanos(300_000));
        assert!(rates.expected(&half, Some(&gemm)) < unknown);
        let of_others = "backward-data n8 c64 h28 w28 k64 r3 s3 pad1 f32".parse().unwrap();
        assert!(rates.expected(&of_others, Some(&gemm)) > Nanos(1_000_000));
        assert_eq!(rates.setup(&of_others, &gemm), None);
        rates.add_setup(&whole, &gemm, Duration::from_millis(3));
        assert_eq!(rates.setup(&half, &gemm), Some(Duration::from_millis(3)));
    }
}
