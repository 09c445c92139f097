//! Searches over a cache whose workspaces are not today's, as after an update of a driver, an import or an edit by hand: each
//! ends, with the answer that it would give without the cache, and hears the wish to stop.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use proptest::prelude::*;
use tightfit_conv::backend::{Effort, Run, Scale, Tensors};
use tightfit_conv::candidate::Limit;
use tightfit_conv::optimize::divide;
use tightfit_conv::{Algorithm, Backend, Candidate, Configuration, Device, Measurement, Notes, Offer, Problem};
use tightfit_profile::survey::{Env, Scope, Sizes, survey};
use tightfit_profile::{Cache, Profiler, Store};
use tightfit_units::{Bytes, Error};

use crate::mixed::measurement;

pub(crate) const BATCH: usize = 12;

pub(crate) fn problem(batch: usize) -> Problem {
    format!("forward n{batch} c3 h8 w8 k4 r3 s3 f32").parse().unwrap()
}

/// Time and workspace by algorithm and size.
pub(crate) type Table = BTreeMap<(String, usize), (u64, u64)>;

/// A device that answers from a table.
pub(crate) struct Fake {
    device: Device,
    table: Table,
    /// Bytes that a measurement needs in addition to its stated workspace.
    excess: u64,
    pub(crate) measured: Arc<AtomicUsize>,
    /// Questions for the algorithms of a problem.
    pub(crate) listed: Arc<AtomicUsize>,
    /// Counts questions for workspaces down; the last one sets the flag.
    countdown: Option<(usize, Arc<AtomicBool>)>,
    asked_after: Arc<AtomicUsize>,
}

impl Fake {
    pub(crate) fn new(table: &Table) -> Fake {
        let device = Device { backend: "cuda".into(), name: "fake".into(), library: "1".into(), threads: 0 };
        let count = || Arc::new(AtomicUsize::new(0));
        let (measured, listed, asked_after) = (count(), count(), count());
        Fake { device, table: table.clone(), excess: 0, measured, listed, countdown: None, asked_after }
    }

    fn ask(&mut self) {
        if let Some((left, stop)) = &mut self.countdown {
            if stop.load(Ordering::Relaxed) {
                self.asked_after.fetch_add(1, Ordering::Relaxed);
            }
            *left = left.saturating_sub(1);
            stop.fetch_or(*left == 0, Ordering::Relaxed);
        }
    }

    fn refused(problem: &Problem, algorithm: &Algorithm) -> Error {
        let algorithm = algorithm.name().to_owned();
        Error::Refused { algorithm, problem: problem.to_string(), reason: "is not in the table".to_owned() }
    }
}

impl Backend for Fake {
    fn device(&self) -> &Device {
        &self.device
    }

    fn offers(&mut self, problem: &Problem) -> Result<Vec<Offer>, Error> {
        self.ask();
        self.listed.fetch_add(1, Ordering::Relaxed);
        let mut names: Vec<&String> = self.table.keys().map(|(name, _)| name).collect();
        names.dedup();
        let offer = |name: &String| Offer {
            algorithm: Algorithm::new(name),
            notes: Notes::NONE,
            workspace: match self.table.get(&(name.clone(), problem.batch())) {
                Some((_, workspace)) => Ok(Bytes(*workspace)),
                None => Err("is not in the table".to_owned()),
            },
        };
        Ok(names.into_iter().map(offer).collect())
    }

    fn workspace(&mut self, problem: &Problem, algorithm: &Algorithm) -> Result<Bytes, Error> {
        self.ask();
        let found = self.table.get(&(algorithm.name().to_owned(), problem.batch()));
        found.map(|(_, workspace)| Bytes(*workspace)).ok_or_else(|| Fake::refused(problem, algorithm))
    }

    fn measure(&mut self, problem: &Problem, algorithm: &Algorithm, _: &Effort) -> Result<Measurement, Error> {
        self.measured.fetch_add(1, Ordering::Relaxed);
        let (time, workspace) = *self
            .table
            .get(&(algorithm.name().to_owned(), problem.batch()))
            .ok_or_else(|| Fake::refused(problem, algorithm))?;
        Ok(measurement(algorithm.name(), problem.batch(), time, workspace + self.excess))
    }

    fn run(&mut self, _: &Problem, _: &Configuration, _: Tensors<'_>, _: Scale) -> Result<Run, Error> {
        unreachable!("nothing is run here")
    }
}

/// The candidates that a search finds. A search of over a minute counts as endless.
fn found(backend: Fake, cache: Option<Cache>, sizes: Sizes, limit: Limit) -> Result<Vec<Candidate>, Error> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let stop = backend.countdown.as_ref().map_or_else(Arc::default, |(_, stop)| stop.clone());
        let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(backend)];
        let scope = Scope { baseline: Some(limit.bytes()), ..Scope::new(sizes, limit.ladder()) };
        let cache = cache.as_ref().map(|cache| cache as &dyn Store);
        let env = Env { cache, stop: &stop, ..Env::default() };
        let found = survey(&[problem(BATCH)], &scope, &mut backends, &env);
        // Nobody listens any more to one that took too long.
        let _ = send.send(found.map(|mut found| found.candidates.remove(&problem(BATCH)).unwrap().candidates));
    });
    receive.recv_timeout(Duration::from_secs(60)).expect("the search goes on and on")
}

fn cache_of(folder: &tempfile::TempDir, rows: &Table) -> Cache {
    let cache = Cache::open(&folder.path().join("cache.db")).unwrap();
    let device = Fake::new(rows).device;
    let rows: Vec<_> =
        rows.iter().map(|((name, size), (time, bytes))| measurement(name, *size, *time, *bytes)).collect();
    cache.keep_all(&device, &problem(1).shape(), &rows).unwrap();
    cache
}

pub(crate) fn table(rows: &[(usize, usize, u64, u64)]) -> Table {
    rows.iter().map(|&(name, size, time, bytes)| ((format!("a{name}"), size), (time, bytes))).collect()
}

#[test]
fn fit_ends_where_the_cache_says_more_workspace_than_the_backend() {
    let folder = tempfile::tempdir().unwrap();
    let today = table(&[(0, 3, 10, 0), (0, 12, 30, 0)]);
    let altered = table(&[(0, 3, 10, 64), (0, 12, 30, 64)]);
    for sizes in Sizes::ALL {
        let cache = cache_of(&folder, &altered);
        let backend = Fake::new(&today);
        let measured = backend.measured.clone();
        let candidates = found(backend, Some(cache), sizes, Limit::PerKernel(Bytes(0))).unwrap();
        assert!(candidates.iter().all(|candidate| candidate.workspace == Bytes(0)), "{sizes}: {candidates:?}");
        assert!(measured.load(Ordering::Relaxed) > 0, "{sizes}: they were measured again");
    }
    // New measurements have replaced the old ones: for `fit` the whole mini-batch, which is best per sample.
    let cache = Cache::open(&folder.path().join("cache.db")).unwrap();
    let workspaces: Vec<_> =
        cache.measurements(&Fake::new(&today).device, &problem(1)).unwrap().iter().map(|m| m.workspace).collect();
    assert_eq!(workspaces, [Bytes(64), Bytes(0)]);
}

#[test]
fn changing_workspaces_end_as_over_the_limit() {
    let today = table(&[(0, 1, 4, 0), (0, 3, 10, 0), (1, 4, 9, 0), (0, 12, 30, 0)]);
    for sizes in Sizes::ALL {
        for limit in [Limit::PerKernel(Bytes(0)), Limit::Total(Bytes(0))] {
            let backend = Fake { excess: 8, ..Fake::new(&today) };
            let error = found(backend, None, sizes, limit).unwrap_err();
            assert!(error.is_over_limit() || matches!(error, Error::NotProfiled { .. }), "{sizes}: {error}");
        }
    }
}

#[test]
fn stop_is_obeyed_even_if_the_cache_answers_everything() {
    let rows: Vec<_> = (1..=BATCH).flat_map(|size| [(0, size, 10 + size as u64, 4), (1, size, 12, 9)]).collect();
    let today = table(&rows);
    for sizes in Sizes::ALL {
        for asked in 1..6 {
            let folder = tempfile::tempdir().unwrap();
            let stop = Arc::new(AtomicBool::new(false));
            let backend = Fake { countdown: Some((asked, stop.clone())), ..Fake::new(&today) };
            let (measured, asked_after) = (backend.measured.clone(), backend.asked_after.clone());
            let result = found(backend, Some(cache_of(&folder, &today)), sizes, Limit::Total(Bytes(64)));
            // A search that asks fewer questions ends before the flag is set.
            if stop.load(Ordering::Relaxed) {
                assert!(matches!(result, Err(Error::Interrupted)), "{sizes}, {asked}: {result:?}");
                assert_eq!(asked_after.load(Ordering::Relaxed), 0, "{sizes}, {asked}: asked on");
            }
            assert_eq!(measured.load(Ordering::Relaxed), 0, "{sizes}: the cache has everything");
        }
    }
}

#[test]
fn a_stopped_profiler_answers_nothing() {
    let today = table(&[(0, BATCH, 30, 0)]);
    let (stop, mut backend) = (AtomicBool::new(false), Fake::new(&today));
    let mut profiler = Profiler::new(&mut backend, None, &stop);
    let (problem, algorithm) = (problem(BATCH), Algorithm::new("a0"));
    assert!(profiler.measure(&problem, &algorithm, None).unwrap().is_some());
    stop.store(true, Ordering::Relaxed);
    let is_heard = |result: Result<(), Error>| assert!(matches!(result, Err(Error::Interrupted)), "{result:?}");
    is_heard(profiler.measure(&problem, &algorithm, None).map(drop));
    is_heard(profiler.offers(&problem).map(drop));
    is_heard(profiler.workspace(&problem, &algorithm).map(drop));
    is_heard(profiler.division_cost(&problem).map(drop));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn every_search_ignores_a_stale_cache(
        rows in proptest::collection::vec((0..3usize, 1..=BATCH, 1..100u64, 0..40u64, 0..3u64), 1..40),
        limit in 0..40u64,
        is_total: bool,
        sizes in proptest::sample::select(Sizes::ALL.to_vec()),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let today = table(&rows.iter().map(|r| (r.0, r.1, r.2, r.3)).collect::<Vec<_>>());
        let mut cached = today.clone();
        for (name, size, _, _, change) in rows {
            // Some as they are, some larger or smaller than today.
            let entry = cached.get_mut(&(format!("a{name}"), size)).unwrap();
            entry.1 = [entry.1, entry.1 + 50, entry.1 / 2][change as usize];
        }
        let limit = if is_total { Limit::Total(Bytes(limit)) } else { Limit::PerKernel(Bytes(limit)) };
        let with = found(Fake::new(&today), Some(cache_of(&folder, &cached)), sizes, limit);
        let without = found(Fake::new(&today), None, sizes, limit);
        prop_assert_eq!(with.is_ok(), without.is_ok(), "{:?} {:?}", with, without);
        if let (Ok(with), Ok(without)) = (with, without) {
            prop_assert_eq!(&with, &without);
            prop_assert!(divide(&problem(BATCH), &with, limit.bytes(), Default::default()).is_ok());
        }
    }
}
