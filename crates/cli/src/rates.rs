//! How fast each algorithm of the CPU computes, from short runs: of one small problem, and where measuring will take long, of
//! the network's own problems, in time that is a small share of it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tightfit_conv::backend::Effort;
use tightfit_conv::{Algorithm, Backend, Operation, Problem};
use tightfit_units::Nanos;

/// A problem that this machine's algorithms solve in a fraction of a second.
const SAMPLE: &str = "forward n2 c64 h20 w20 k64 r3 s3 pad1 f32";

/// Operations per second that any machine reaches: work that is short at this rate needs no better estimate.
pub const LEAST_RATE: f64 = 5e8;

/// A sample is reduced to about this number of operations, which is enough for a rate, if the problem allows it.
const ENOUGH: f64 = 4e8;

/// From this time on, one run is enough: caches and clocks are warm for most of it, and what other programs take is a smaller
/// share.
const LONG: Nanos = Nanos(10_000_000);

/// The properties that make algorithms fast or slow: the operation, and whether the filter has one element.
type Kind = (Operation, bool);

/// Operations per second.
#[derive(Debug)]
pub struct Rates {
    /// Of the small problem.
    base: HashMap<Algorithm, f64>,
    /// Of the network's own.
    own: HashMap<(Kind, Algorithm), f64>,
}

impl Rates {
    /// The rates on a small problem.
    pub fn new(backend: &mut dyn Backend) -> Rates {
        let mut base = HashMap::new();
        if let Ok(problem) = SAMPLE.parse::<Problem>() {
            for offer in backend.offers(&problem).unwrap_or_default() {
                base.extend(rate(backend, &problem, &offer.algorithm).map(|rate| (offer.algorithm, rate)));
            }
        }
        Rates { base, own: HashMap::new() }
    }

    /// The time of one run.
    pub fn time(&self, problem: &Problem, algorithm: &Algorithm) -> Nanos {
        let own = self.own.get(&(kind(problem), algorithm.clone()));
        let rate = own.or(self.base.get(algorithm)).copied().unwrap_or(LEAST_RATE);
        Nanos::from_micros(problem.flops() / rate * 1e6)
    }

    /// Runs each algorithm on a few samples of a problem of each kind, of middling size, as long as there is time: those that
    /// are foreseen to take more than is left are left out.
    pub fn refine(&mut self, problems: &[Problem], backend: &mut dyn Backend, allowed: Duration) {
        let end = Instant::now() + allowed;
        let mut kinds: HashMap<Kind, Vec<&Problem>> = HashMap::new();
        for problem in problems {
            kinds.entry(kind(problem)).or_default().push(problem);
        }
        let mut kinds: Vec<Vec<&Problem>> = kinds.into_values().collect();
        // The largest come first, in case time runs out.
        let work = |problems: &[&Problem]| problems.iter().map(|problem| problem.flops()).sum::<f64>();
        kinds.sort_by(|a, b| work(b).total_cmp(&work(a)));
        for mut problems in kinds {
            problems.sort_by(|a, b| a.flops().total_cmp(&b.flops()));
            let Some(sample) = problems.get(problems.len() / 2).and_then(|problem| small(problem)) else { continue };
            for offer in backend.offers(&sample).unwrap_or_default() {
                let time = self.time(&sample, &offer.algorithm);
                let needed = Duration::from_nanos(if time < LONG { time.0 * 2 } else { time.0 });
                if offer.workspace.is_err() || Instant::now() + needed > end {
                    continue;
                }
                if let Some(rate) = rate(backend, &sample, &offer.algorithm) {
                    self.own.insert((kind(&sample), offer.algorithm), rate);
                }
            }
        }
    }
}

fn kind(problem: &Problem) -> Kind {
    (problem.operation(), problem.convolution().filter() == [1, 1, 1])
}

/// A problem with just enough samples for a rate.
fn small(problem: &Problem) -> Option<Problem> {
    let samples = (ENOUGH * problem.batch() as f64 / problem.flops().max(1.0)) as usize;
    problem.with_batch(samples.clamp(1, problem.batch())).ok()
}

/// Operations per second of an algorithm on a problem, in the better one of two short runs or in a long one; none if it
/// refuses.
fn rate(backend: &mut dyn Backend, problem: &Problem, algorithm: &Algorithm) -> Option<f64> {
    let once = Effort { warm_up: 0, least: 1, most: 1, ..Effort::default() };
    let mut run = || Some(backend.measure(problem, algorithm, &once).ok()?.time);
    let first = run()?;
    let best = if first < LONG { first.min(run()?) } else { first };
    Some(problem.flops() / best.as_secs().max(1e-9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cpu_algorithm_has_a_rate() {
        let mut cpu = tightfit_cpu::CpuBackend::new(Some(1));
        let rates = Rates::new(&mut cpu);
        assert_eq!(rates.base.len(), cpu.offers(&SAMPLE.parse().unwrap()).unwrap().len());
        assert!(rates.base.values().all(|rate| *rate > 0.0), "{rates:?}");
    }

    #[test]
    fn a_kind_of_problem_has_rates_of_its_own_if_there_is_time() {
        let mut cpu = tightfit_cpu::CpuBackend::new(Some(1));
        let mut rates = Rates::new(&mut cpu);
        let problems = ["forward n64 c32 h8 w8 k16 r1 s1 f32", "backward-filter n64 c8 h8 w8 k8 r3 s3 pad1 f32"]
            .map(|text| text.parse::<Problem>().unwrap());
        rates.refine(&problems, &mut cpu, Duration::ZERO);
        assert!(rates.own.is_empty(), "no time");
        rates.refine(&problems, &mut cpu, Duration::from_secs(60));
        for problem in &problems {
            let offers = cpu.offers(problem).unwrap().into_iter().filter(|offer| offer.workspace.is_ok());
            for offer in offers {
                let rate = rates.own[&(kind(problem), offer.algorithm.clone())];
                assert_eq!(rates.time(problem, &offer.algorithm), Nanos::from_micros(problem.flops() / rate * 1e6));
            }
        }
    }

    #[test]
    fn a_sample_is_as_small_as_is_enough() {
        let batch = |text: &str| small(&text.parse().unwrap()).unwrap().batch();
        assert_eq!(batch("forward n8 c256 h56 w56 k256 r3 s3 pad1 f32"), 1);
        assert_eq!(batch("forward n8 c4 h8 w8 k4 r3 s3 pad1 f32"), 8, "all of it is little work");
        assert!((2..8).contains(&batch("forward n8 c64 h28 w28 k64 r3 s3 pad1 f32".replace("n8", "n64").as_str())));
    }
}
