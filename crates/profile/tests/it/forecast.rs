//! The predicted cost of a survey against the survey itself on a recorded device.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use tightfit_conv::backend::Effort;
use tightfit_conv::candidate::Limit;
use tightfit_conv::{Algorithm, Backend, Layout, Operation, Problem, Types};
use tightfit_network::{Network, distinct};
use tightfit_profile::survey::{Env, Forecast, Scope, Sizes, Survey, forecast, survey, tensor_memory};
use tightfit_profile::{Cache, Recording, Replay};
use tightfit_units::{Bytes, Error, Nanos};

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

fn scope(sizes: Sizes) -> Scope {
    Scope::new(sizes, Limit::PerKernel(Bytes::mib(64)).ladder())
}

/// The recorded times, so that the survey that is foreseen is the one that runs.
fn recorded(problem: &Problem, algorithm: &Algorithm) -> Nanos {
    static KNOWN: LazyLock<Mutex<Box<dyn Backend>>> = LazyLock::new(|| Mutex::new(replay()));
    KNOWN.lock().unwrap().measure(problem, algorithm, &Effort::default()).map_or(Nanos(1), |found| found.time)
}

fn foreseen(problems: &[Problem], scope: &Scope, env: &Env<'_>, patience: Duration) -> Result<Forecast, Error> {
    forecast(problems, scope, env, replay().as_mut(), &recorded, patience)
}

fn surveyed(problems: &[Problem], scope: &Scope, env: &Env<'_>) -> Survey {
    survey(problems, scope, &mut [replay()], env).unwrap()
}

#[test]
fn a_forecast_counts_the_measurements_actually_made() {
    let (env, problems) = (Env::default(), problems());
    for sizes in [Sizes::Undivided, Sizes::PowerOfTwo, Sizes::Fit] {
        let some = &problems[..2];
        let found = foreseen(some, &scope(sizes), &env, PATIENCE).unwrap();
        let spent = surveyed(some, &scope(sizes), &env).spent;
        assert_eq!((found.measurements, found.problems), (spent.measured, some.len()), "{sizes}");
        assert!(found.is_complete && found.time > spent.time, "{sizes}: repeats are counted, {found:?} {spent:?}");
        assert_eq!(found.times.values().copied().sum::<Nanos>(), found.time, "{sizes}");
        let tensors = tensor_memory(some);
        assert!(found.memory > tensors && found.memory <= tensors + Bytes::mib(64), "{sizes}: {found:?}");
    }
}

#[test]
fn cached_measurements_are_not_forecast() {
    let (scope, problems) = (scope(Sizes::PowerOfTwo), problems());
    let some = &problems[..2];
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&folder.path().join("cache.db")).unwrap();
    let with_cache = Env { cache: Some(&cache), ..Env::default() };
    surveyed(&some[..1], &scope, &with_cache);
    let rest = foreseen(some, &scope, &with_cache, PATIENCE).unwrap();
    let other = foreseen(&some[1..], &scope, &Env::default(), PATIENCE).unwrap();
    assert_eq!(rest, other);
    surveyed(some, &scope, &with_cache);
    let before = cache.summary().unwrap();
    let nothing = foreseen(some, &scope, &with_cache, PATIENCE).unwrap();
    assert_eq!(nothing, Forecast { is_complete: true, ..Forecast::default() });
    assert_eq!(cache.summary().unwrap(), before, "times that are expected are not kept");
}

#[test]
fn a_long_call_is_not_warmed_up() {
    let problems = &problems()[..1];
    let time = |call: Nanos| {
        let expected = move |_: &Problem, _: &Algorithm| call;
        let env = Env::default();
        let found = forecast(problems, &scope(Sizes::Undivided), &env, replay().as_mut(), &expected, PATIENCE).unwrap();
        found.time.ratio(call) / found.measurements as f64
    };
    let long = Nanos(Effort::default().cap.0);
    assert_eq!(time(long), 1.0, "one that takes all of the time of a measurement");
    assert_eq!(time(Effort::LONG_CALL), 3.0);
    assert_eq!(time(Nanos(1000)), 4.0);
}

#[test]
fn without_patience_whole_mini_batches_are_counted() {
    let problems = problems();
    let found = foreseen(&problems, &scope(Sizes::All), &Env::default(), Duration::ZERO).unwrap();
    assert!(!found.is_complete);
    assert_eq!((found.problems, found.memory), (problems.len(), tensor_memory(&problems)));
}

#[test]
fn a_forecast_refuses_unknown_problems_and_obeys_stop() {
    let scope = scope(Sizes::Undivided);
    let unknown: Problem = "forward n8 c5 h9 w9 k7 r3 s3 f32".parse().unwrap();
    let refused = foreseen(&[unknown], &scope, &Env::default(), PATIENCE);
    assert!(matches!(refused, Err(Error::NotProfiled { .. })));
    let stop = AtomicBool::new(true);
    let stopped = foreseen(&problems(), &scope, &Env { stop: &stop, ..Env::default() }, PATIENCE);
    assert!(matches!(stopped, Err(Error::Interrupted)));
}
