//! What a survey is foreseen to take, against the survey itself on a recorded device.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use tightfit_core::backend::Effort;
use tightfit_core::candidate::Limit;
use tightfit_core::network::distinct;
use tightfit_core::profile::{Cache, Recording, Replay};
use tightfit_core::survey::{Forecast, Policy, Scope, Silent, Survey, forecast, survey, tensor_memory};
use tightfit_core::{Algorithm, Backend, Bytes, Error, Layout, Nanos, Network, Operation, Problem, Types};

const PATIENCE: Duration = Duration::from_secs(3600);

fn replay() -> Box<dyn Backend> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../profiles/recorded/h200-legacy-resnet18.jsonl.gz");
    Box::new(Replay::of(Recording::read(&path).unwrap()).unwrap())
}

fn problems() -> Vec<Problem> {
    let network = Network::open("resnet18").unwrap();
    let kernels = network.kernels(Some(128), &[Operation::Forward], Types::F32, Layout::Nchw).unwrap();
    distinct(&kernels).into_iter().map(|(problem, _)| problem).collect()
}

fn scope<'a>(policy: Policy, cache: Option<&'a Cache>, stop: &'a AtomicBool) -> Scope<'a> {
    Scope {
        policy,
        limits: Limit::PerKernel(Bytes::mib(64)).ladder(),
        baseline: None,
        deterministic: false,
        exact_class: false,
        cache,
        stop,
    }
}

/// The recorded times, so that the survey that is foreseen is the one that runs.
fn recorded(problem: &Problem, algorithm: &Algorithm) -> Nanos {
    static KNOWN: LazyLock<Mutex<Box<dyn Backend>>> = LazyLock::new(|| Mutex::new(replay()));
    KNOWN.lock().unwrap().measure(problem, algorithm, &Effort::default()).map_or(Nanos(1), |found| found.time)
}

fn foreseen(problems: &[Problem], scope: &Scope<'_>, patience: Duration) -> Result<Forecast, Error> {
    forecast(problems, scope, replay().as_mut(), &recorded, patience)
}

fn surveyed(problems: &[Problem], scope: &Scope<'_>) -> Survey {
    survey(problems, scope, &mut [replay()], &Silent).unwrap()
}

#[test]
fn a_forecast_counts_the_measurements_actually_made() {
    let (stop, problems) = (AtomicBool::new(false), problems());
    for policy in [Policy::Undivided, Policy::PowerOfTwo, Policy::Fit] {
        let scope = scope(policy, None, &stop);
        let some = &problems[..2];
        let found = foreseen(some, &scope, PATIENCE).unwrap();
        let spent = surveyed(some, &scope).spent;
        assert_eq!((found.measurements, found.problems), (spent.measured, some.len()), "{policy}");
        assert!(found.is_complete && found.time > spent.time, "{policy}: repeats are counted, {found:?} {spent:?}");
        let tensors = tensor_memory(some);
        assert!(found.memory > tensors && found.memory <= tensors + Bytes::mib(64), "{policy}: {found:?}");
    }
}

#[test]
fn cached_measurements_are_not_forecast() {
    let (stop, problems) = (AtomicBool::new(false), problems());
    let some = &problems[..2];
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&folder.path().join("cache.db")).unwrap();
    surveyed(&some[..1], &scope(Policy::PowerOfTwo, Some(&cache), &stop));
    let with_cache = scope(Policy::PowerOfTwo, Some(&cache), &stop);
    let rest = foreseen(some, &with_cache, PATIENCE).unwrap();
    let other = foreseen(&some[1..], &scope(Policy::PowerOfTwo, None, &stop), PATIENCE).unwrap();
    assert_eq!(rest, other);
    surveyed(some, &with_cache);
    let before = cache.summary().unwrap();
    let nothing = foreseen(some, &with_cache, PATIENCE).unwrap();
    assert_eq!(nothing, Forecast { is_complete: true, ..Forecast::default() });
    assert_eq!(cache.summary().unwrap(), before, "times that are expected are not kept");
}

#[test]
fn without_patience_whole_mini_batches_are_counted() {
    let (stop, problems) = (AtomicBool::new(false), problems());
    let found = foreseen(&problems, &scope(Policy::All, None, &stop), Duration::ZERO).unwrap();
    assert!(!found.is_complete);
    assert_eq!((found.problems, found.memory), (problems.len(), tensor_memory(&problems)));
}

#[test]
fn a_forecast_refuses_unknown_problems_and_obeys_stop() {
    let stop = AtomicBool::new(false);
    let scope = scope(Policy::Undivided, None, &stop);
    let unknown: Problem = "forward n8 c5 h9 w9 k7 r3 s3 f32".parse().unwrap();
    assert!(matches!(foreseen(&[unknown], &scope, PATIENCE), Err(Error::NotProfiled { .. })));
    let stopped = AtomicBool::new(true);
    let stopped = Scope { stop: &stopped, ..scope };
    assert!(matches!(foreseen(&problems(), &stopped, PATIENCE), Err(Error::Interrupted)));
}
