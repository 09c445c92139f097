//! Several devices measure one kernel together, each candidate once, and find what one device finds.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tightfit_conv::backend::{Effort, Run, Scale, Tensors};
use tightfit_conv::{Algorithm, Backend, Configuration, Device, Measurement, Offer, Problem};
use tightfit_profile::Cache;
use tightfit_profile::survey::{Env, Scope, Sizes, Survey, survey};
use tightfit_units::{Bytes, Error};

use crate::stale::{BATCH, Fake, Table, problem};

/// Three algorithms at every size, the larger the faster per sample.
fn table() -> Table {
    let row = |name: u64, size: usize| {
        ((format!("a{name}"), size), (1000 * size as u64 / name + 500, 10 * name * size as u64))
    };
    (1..=3).flat_map(|name| (1..=BATCH).map(move |size| row(name, size))).collect()
}

/// The survey of `devices` devices, and the number of measurements that each device made.
fn found(devices: usize, sizes: Sizes, env: &Env<'_>) -> (Survey, Vec<usize>) {
    let fakes: Vec<Fake> = (0..devices).map(|_| Fake::new(&table())).collect();
    let counts: Vec<_> = fakes.iter().map(|fake| Arc::clone(&fake.measured)).collect();
    let mut backends: Vec<Box<dyn Backend>> = fakes.into_iter().map(|fake| Box::new(fake) as _).collect();
    let limit = Bytes(200);
    let scope = Scope { baseline: Some(limit), ..Scope::new(sizes, vec![limit]) };
    let survey = survey(&[problem(BATCH)], &scope, &mut backends, env).unwrap();
    (survey, counts.iter().map(|count| count.load(Ordering::Relaxed)).collect())
}

#[test]
fn devices_share_the_sizes_of_one_kernel() {
    for (sizes, devices) in Sizes::ALL.into_iter().flat_map(|sizes| [2, 4, 8].map(|devices| (sizes, devices))) {
        let (one, alone) = found(1, sizes, &Env::default());
        let (several, shared) = found(devices, sizes, &Env::default());
        let sorted = |survey: &Survey| {
            let mut candidates = survey.candidates[&problem(BATCH)].candidates.clone();
            candidates.sort();
            candidates
        };
        assert_eq!(sorted(&one), sorted(&several), "{sizes} on {devices}");
        // `fit` screens every algorithm even at sizes where one device would have skipped some.
        let total: usize = shared.iter().sum();
        let is_as_expected = total >= alone[0] && (sizes == Sizes::Fit || total == alone[0]);
        assert!(is_as_expected, "{sizes} on {devices}: {shared:?}, {alone:?}");
        assert_eq!(several.spent.measured, total, "{sizes} on {devices}");
        let shares: Vec<usize> = several.spent.shares.iter().map(|share| share.measured).collect();
        assert_eq!(shares, shared, "{sizes} on {devices}");
    }
}

#[test]
fn nothing_is_measured_twice_with_a_cache() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&folder.path().join("cache.db")).unwrap();
    let env = Env { cache: Some(&cache), ..Env::default() };
    let (_, first) = found(3, Sizes::All, &env);
    assert_eq!(first.iter().sum::<usize>(), cache.summary().unwrap()[0].measurements);
    let (again, second) = found(3, Sizes::All, &env);
    assert_eq!((second.iter().sum::<usize>(), again.spent.measured), (0, 0));
}

#[test]
fn fit_lists_algorithms_at_few_sizes() {
    // A question takes a GPU's library as long as some measurements.
    let fake = Fake::new(&table());
    let listed = Arc::clone(&fake.listed);
    let scope = Scope::new(Sizes::Fit, vec![Bytes(200)]);
    survey(&[problem(BATCH)], &scope, &mut [Box::new(fake)], &Env::default()).unwrap();
    let listed = listed.load(Ordering::Relaxed);
    assert!(listed <= 3, "{listed} questions for {BATCH} sizes");
}

/// A device that is lost at its first measurement.
struct Lost(Fake);

impl Backend for Lost {
    fn device(&self) -> &Device {
        self.0.device()
    }

    fn offers(&mut self, problem: &Problem) -> Result<Vec<Offer>, Error> {
        self.0.offers(problem)
    }

    fn workspace(&mut self, problem: &Problem, algorithm: &Algorithm) -> Result<Bytes, Error> {
        self.0.workspace(problem, algorithm)
    }

    fn measure(&mut self, _: &Problem, _: &Algorithm, _: &Effort) -> Result<Measurement, Error> {
        Err(Error::DeviceLost { backend: "fake".to_owned(), what: "the device is lost".to_owned(), source: None })
    }

    fn run(&mut self, _: &Problem, _: &Configuration, _: Tensors<'_>, _: Scale) -> Result<Run, Error> {
        unreachable!("nothing is run here")
    }
}

#[test]
fn error_of_any_device_is_the_error_of_the_survey() {
    let problems: Vec<Problem> = (1..=BATCH).map(problem).collect();
    for (devices, exact_class) in [(1, false), (3, false), (3, true)] {
        let mut backends: Vec<Box<dyn Backend>> = Vec::new();
        backends.extend((0..devices).map(|_| Box::new(Lost(Fake::new(&table()))) as Box<dyn Backend>));
        let scope = Scope { exact_class, ..Scope::new(Sizes::All, vec![Bytes(200)]) };
        let error = survey(&problems, &scope, &mut backends, &Env::default()).unwrap_err();
        assert!(error.to_string().contains("the device is lost"), "{devices} devices: {error}");
    }
}
