//! Giving up hopeless candidates after a call or two changes no answer. The tests measure recorded devices like a device that gives up.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tightfit_conv::backend::{Effort, Offer, Run, Scale, Tensors};
use tightfit_conv::candidate::{Candidates, Limit};
use tightfit_conv::optimize::{divide, front, undivided};
use tightfit_conv::{
    Algorithm, Backend, Configuration, Device, DivisionCost, Layout, Measurement, Operation, Problem, Types,
};
use tightfit_network::{Network, distinct};
use tightfit_profile::survey::{Env, Scope, Sizes, Survey, survey};
use tightfit_profile::{Cache, Recording, Replay};
use tightfit_units::{Bytes, Error, Nanos};

use crate::mixed::measurement;
use crate::stale::{self, BATCH, Fake, table};

/// A recorded device that gives a candidate up if it loses to its bound, as the CUDA backend does: a long candidate after a
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

/// A survey, and the number of candidates given up in it.
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

/// The fronts of all kernels, which divide a total. `fit` stops refining at a budget of calls, and refining one interval
/// may just exceed it, so its fronts are compared by their results under each share.
#[test]
fn fronts_under_a_total_are_those_of_careful_measurements() {
    let total = Limit::Total(Bytes::gib(1));
    for recorded in RECORDED {
        for sizes in [Sizes::PowerOfTwo, Sizes::Fit] {
            let (careful, _) = surveyed(recorded, sizes, total, false);
            let (cheap, _) = surveyed(recorded, sizes, total, true);
            let mut sums = vec![(Nanos::ZERO, Nanos::ZERO); total.ladder().len()];
            for (problem, found) in &careful.candidates {
                let front = |found: &Candidates| front(problem, &found.candidates, total.bytes(), found.cost).unwrap();
                let (careful, cheap) = (front(found), front(&cheap.candidates[problem]));
                assert!(sizes == Sizes::Fit || careful == cheap, "{recorded:?}, {sizes}: {problem}");
                for (sum, limit) in sums.iter_mut().zip(total.ladder()) {
                    let time = |front: &[Configuration]| {
                        front.iter().rfind(|point| point.workspace() <= limit).map_or(Nanos::ZERO, Configuration::time)
                    };
                    *sum = (sum.0 + time(&careful), sum.1 + time(&cheap));
                }
            }
            for ((careful, cheap), limit) in sums.into_iter().zip(total.ladder()) {
                let ratio = cheap.ratio(careful);
                assert!((0.998..1.002).contains(&ratio), "{recorded:?}, {sizes}, {limit}: {cheap} against {careful}");
            }
        }
    }
}

/// Rows of a measured algorithm: time and workspace per size.
fn recorded(problem: &Problem, rows: &[(&str, usize, u64)]) -> Vec<Box<dyn Backend>> {
    let device = Device { backend: "cuda".into(), name: "grouped".into(), library: "1".into(), threads: 0 };
    let mut recording = Recording::new(device);
    for &(algorithm, micro_batch, time) in rows {
        recording.add(&problem.shape(), measurement(algorithm, micro_batch, time, 0));
    }
    vec![Box::new(Replay::of([recording]).unwrap())]
}

/// The sizes at which legacy algorithms are measured, in a survey of a layer of `groups` groups. At every size, their time is
/// `slower` multiplied by an engine's. `reach` is the engine's largest size.
fn legacy_sizes(groups: usize, sizes: Sizes, slower: u64, reach: usize) -> Vec<usize> {
    let problem: Problem = format!("forward n64 c32 h8 w8 k32 r3 s3 groups{groups} f32").parse().unwrap();
    let engine = (1..=reach).map(|size| ("engine1", size, 10 + size as u64));
    let legacy = (1..=64).map(|size| ("legacy:gemm", size, slower * (10 + size as u64)));
    let mut backends = recorded(&problem, &engine.chain(legacy).collect::<Vec<_>>());
    let scope = Scope { baseline: Some(Bytes::mib(1)), ..Scope::new(sizes, vec![Bytes::mib(1)]) };
    let found = survey(&[problem], &scope, &mut backends, &Env::default()).unwrap();
    let legacy = found.candidates[&problem].candidates.iter().filter(|c| c.algorithm.name().starts_with("legacy:"));
    legacy.map(|candidate| candidate.micro_batch).collect()
}

#[test]
fn hopeless_legacy_algorithms_of_many_groups_are_only_screened() {
    assert_eq!(legacy_sizes(32, Sizes::Fit, 6, 64), [4]);
    assert_eq!(legacy_sizes(32, Sizes::PowerOfTwo, 6, 64), [1, 2, 4]);
    // Close to the best, or with few groups, they are measured like any other.
    for (groups, slower) in [(32, 4), (2, 6)] {
        assert!(legacy_sizes(groups, Sizes::Fit, slower, 64).contains(&64), "{groups}, {slower}");
        assert_eq!(legacy_sizes(groups, Sizes::PowerOfTwo, slower, 64), [1, 2, 4, 8, 16, 32, 64]);
    }
    // Nothing else computes the whole mini-batch.
    for sizes in [Sizes::Undivided, Sizes::PowerOfTwo, Sizes::Fit] {
        assert!(legacy_sizes(32, sizes, 6, 63).contains(&64), "{sizes}");
    }
}

#[test]
fn an_answer_never_rests_on_a_single_call() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&folder.path().join("cache.db")).unwrap();
    let today = table(&[(0, BATCH, 10, 0), (1, BATCH, 30, 0), (2, BATCH, 12, 0)]);
    let survey_again = || {
        let device = Fake::new(&today);
        let measured = Arc::clone(&device.measured);
        let scope = Scope::new(Sizes::Undivided, vec![Bytes(0)]);
        let env = Env { cache: Some(&cache), ..Env::default() };
        let mut found = survey(&[stale::problem(BATCH)], &scope, &mut [Box::new(device)], &env).unwrap();
        let times: Vec<u64> = found
            .candidates
            .remove(&stale::problem(BATCH))
            .unwrap()
            .candidates
            .iter()
            .map(|candidate| candidate.time.0)
            .collect();
        (times, measured.load(Ordering::Relaxed))
    };
    // Measurements that other surveys gave up: `a0` seems slower than it is, and `a2` was measured with care.
    for (name, time, repeats) in [("a0", 11, 1), ("a1", 31, 1), ("a2", 12, 3)] {
        let found = Measurement { repeats, ..measurement(name, BATCH, time, 0) };
        cache.keep(Fake::new(&today).device(), &stale::problem(BATCH), &found).unwrap();
    }
    assert_eq!(survey_again(), (vec![10, 31, 12], 1), "only the winner is measured again");
    assert_eq!(survey_again(), (vec![10, 31, 12], 0));
}
