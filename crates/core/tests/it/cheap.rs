//! Giving up hopeless candidates after a call or two changes no answer: recorded devices, measured as a device that
//! gives up measures them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tightfit_core::backend::{Effort, Offer, Run, Scale, Tensors};
use tightfit_core::candidate::{Candidates, Limit};
use tightfit_core::network::distinct;
use tightfit_core::optimize::{divide, front, undivided};
use tightfit_core::profile::{Recording, Replay};
use tightfit_core::survey::{Env, Scope, Sizes, Survey, survey};
use tightfit_core::{
    Algorithm, Backend, Bytes, Configuration, Device, DivisionCost, Error, Layout, Measurement, Nanos, Network,
    Operation, Problem, Types,
};

/// A recorded device that gives a candidate up if it loses to its bound, as the CUDA backend does: a long one after a
/// single call, which launch gaps lengthen, and a short one after a series of calls.
struct Hasty {
    replay: Replay,
    /// Whether to give up at all.
    gives_up: bool,
    /// Candidates that were given up.
    given_up: Arc<AtomicUsize>,
}

impl Backend for Hasty {
    fn device(&self) -> &Device {
        self.replay.device()
    }

    fn offers(&mut self, problem: &Problem) -> Result<Vec<Offer>, Error> {
        self.replay.offers(problem)
    }

    fn workspace(&mut self, problem: &Problem, algorithm: &Algorithm) -> Result<Bytes, Error> {
        self.replay.workspace(problem, algorithm)
    }

    fn sizes(&self, problem: &Problem) -> Option<Vec<usize>> {
        self.replay.sizes(problem)
    }

    fn measure(&mut self, problem: &Problem, algorithm: &Algorithm, effort: &Effort) -> Result<Measurement, Error> {
        let recorded = self.replay.measure(problem, algorithm, effort)?;
        let single = recorded.time + Effort::LAUNCH_GAPS;
        let is_long = single >= Nanos(500_000);
        let is_lost = effort.bound.is_some() && effort.is_lost(single, 1.1);
        let repeats = if self.gives_up && is_lost { 1 } else { 3 };
        let time = if repeats == 1 && is_long { single } else { recorded.time };
        self.given_up.fetch_add(usize::from(repeats == 1), Ordering::Relaxed);
        Ok(Measurement { time, repeats, ..recorded })
    }

    fn division_cost(&mut self, problem: &Problem) -> Result<DivisionCost, Error> {
        self.replay.division_cost(problem)
    }

    fn run(&mut self, _: &Problem, _: &Configuration, _: Tensors<'_>, _: Scale) -> Result<Run, Error> {
        unreachable!("nothing is run here")
    }
}

fn hasty(file: &str, gives_up: bool) -> Hasty {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles/recorded").join(file);
    Hasty { replay: Replay::of(Recording::read(&path).unwrap()).unwrap(), gives_up, given_up: Arc::default() }
}

fn problems(network: &str, batch: usize, types: Types) -> Vec<Problem> {
    let kernels = Network::open(network).unwrap().kernels(Some(batch), &Operation::ALL, types, Layout::Nchw).unwrap();
    distinct(&kernels).into_iter().map(|(problem, _)| problem).collect()
}

/// Recorded networks: file, name, mini-batch, types.
const RECORDED: [(&str, &str, usize, Types); 5] = [
    ("h200-legacy-alexnet-1col-all.jsonl.gz", "alexnet-1col", 256, Types::F32),
    ("h200-2026-11-21.jsonl.gz", "alexnet-1col", 256, Types::F16),
    ("h200-legacy-alexnet.jsonl.gz", "alexnet", 256, Types::Tf32),
    ("h200-legacy-vgg16.jsonl.gz", "vgg16", 256, Types::F32),
    ("h200-legacy-resnet50.jsonl.gz", "resnet50", 64, Types::F32),
];

/// A survey, and how many candidates were given up in it.
fn surveyed(
    (file, network, batch, types): (&str, &str, usize, Types),
    sizes: Sizes,
    limit: Limit,
    gives_up: bool,
) -> (Survey, usize) {
    let scope = Scope { baseline: Some(limit.bytes()), ..Scope::new(sizes, limit.ladder()) };
    let backend = hasty(file, gives_up);
    let given_up = Arc::clone(&backend.given_up);
    let found = survey(&problems(network, batch, types), &scope, &mut [Box::new(backend)], &Env::default()).unwrap();
    (found, given_up.load(Ordering::Relaxed))
}

fn answer(problem: &Problem, found: &Candidates, limit: Bytes) -> (Configuration, Option<Configuration>) {
    let divided = divide(problem, &found.candidates, limit, found.cost).unwrap();
    (divided, undivided(problem, &found.candidates, limit))
}

#[test]
fn answers_under_a_limit_are_those_of_careful_measurements() {
    for recorded in RECORDED {
        let mut all = (0, 0);
        for sizes in [Sizes::Undivided, Sizes::PowerOfTwo, Sizes::Fit] {
            for limit in [8, 64, 512].map(Bytes::mib) {
                let (careful, none) = surveyed(recorded, sizes, Limit::PerKernel(limit), false);
                let (cheap, given_up) = surveyed(recorded, sizes, Limit::PerKernel(limit), true);
                for (problem, found) in &careful.candidates {
                    let what = format!("{recorded:?}, {sizes}, {limit}: {problem}");
                    let (careful, cheap) =
                        (answer(problem, found, limit), answer(problem, &cheap.candidates[problem], limit));
                    assert_eq!(careful, cheap, "{what}");
                }
                assert_eq!(none, 0);
                all = (all.0 + given_up, all.1 + cheap.spent.measured);
            }
        }
        assert!(all.0 * 5 > all.1, "{recorded:?}: only {} of {} given up", all.0, all.1);
    }
}

/// The front of each kernel, which a total is divided along.
#[test]
fn fronts_under_a_total_are_those_of_careful_measurements() {
    for recorded in RECORDED {
        for sizes in [Sizes::PowerOfTwo, Sizes::Fit] {
            let total = Bytes::gib(1);
            let (careful, _) = surveyed(recorded, sizes, Limit::Total(total), false);
            let (cheap, _) = surveyed(recorded, sizes, Limit::Total(total), true);
            for (problem, found) in &careful.candidates {
                let points = |found: &Candidates| front(problem, &found.candidates, total, found.cost).unwrap();
                let (careful, cheap) = (points(found), points(&cheap.candidates[problem]));
                for (one, other) in [(&careful, &cheap), (&cheap, &careful)] {
                    for point in one {
                        let within = other.iter().rfind(|p| p.workspace() <= point.workspace()).map(|p| p.time());
                        let ratio = within.unwrap().ratio(point.time());
                        if ratio > 1.0 { println!("{ratio:.5} {} {recorded:?} {sizes} {problem}", point.workspace()); }
                    }
                }
            }
        }
    }
}
