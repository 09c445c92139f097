//! Measures candidates at plan time, on a handle, a stream and scratch memory of our own.
//!
//! Measurements go to the cache file at once, and only one process at a time measures for that file: the others wait
//! briefly for its results. Without a file, every process measures for itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tightfit_core::candidate::Candidates;
use tightfit_core::optimize::divide;
use tightfit_core::profile::{Admission, Cache, Profiler, Store};
use tightfit_core::survey::candidates;
use tightfit_core::{Bytes, Error, Nanos, Problem};
use tightfit_cuda::{CudaBackend, Guest, Host};

use super::cache::cache;
use super::turn::{Turn, own};
use super::{Known, admission, cached, surveyed};
use crate::kernel::Question;
use crate::log::tell;
use crate::settings::{self, Settings};

static STOP: AtomicBool = AtomicBool::new(false);
static NANOS: AtomicU64 = AtomicU64::new(0);
static MEASURED: AtomicU64 = AtomicU64::new(0);
static CACHED: AtomicU64 = AtomicU64::new(0);

/// What choosing has cost so far.
pub struct Spent {
    /// Wall-clock time, waiting included.
    pub time: Nanos,
    /// Measurements made.
    pub measured: u64,
    /// Measurements found in the cache.
    pub cached: u64,
}

/// What choosing has cost so far.
pub fn spent() -> Spent {
    let [time, measured, cached] = [&NANOS, &MEASURED, &CACHED].map(|count| count.load(Ordering::Relaxed));
    Spent { time: Nanos(time), measured, cached }
}

/// Counts measurements taken from the cache without measuring.
pub(super) fn count_cached(count: usize) {
    CACHED.fetch_add(count as u64, Ordering::Relaxed);
}

type Key = (usize, Problem, AdmissionKey);
type AdmissionKey = (bool, Option<u32>, u32);

/// Candidates by question, because a framework that tries many plans repeats its questions.
static REMEMBERED: Mutex<Option<HashMap<Key, Arc<Candidates>>>> = Mutex::new(None);
/// Times of the framework's choices.
static TIMES: Mutex<Option<HashMap<Question, Nanos>>> = Mutex::new(None);

fn key(question: &Question, admission: Admission) -> Key {
    let admission = (admission.deterministic, admission.class.map(|class| class.0), admission.without.0);
    (question.device, question.problem, admission)
}

fn remember(question: &Question, admission: Admission, found: Candidates) {
    let mut remembered = REMEMBERED.lock().unwrap_or_else(PoisonError::into_inner);
    remembered.get_or_insert_default().insert(key(question, admission), Arc::new(found));
}

/// What this process has measured so far.
pub(super) fn remembered(question: &Question, settings: &Settings) -> Option<Known> {
    let key = key(question, admission(question, settings));
    let found = REMEMBERED.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.get(&key)?.clone();
    let times = TIMES.lock().unwrap_or_else(PoisonError::into_inner);
    let framework_time = times.as_ref().and_then(|times| times.get(question).copied());
    Some(Known { candidates: found.candidates.clone(), cost: found.cost, framework_time })
}

/// Why nothing was measured.
#[derive(Debug)]
pub(super) struct Unmeasured {
    /// Whether another stream's capture forbids measuring.
    pub is_capture: bool,
    words: String,
}

impl<E: Into<String>> From<E> for Unmeasured {
    fn from(words: E) -> Unmeasured {
        Unmeasured { is_capture: false, words: words.into() }
    }
}

/// The candidates that the sizes ask for, and the framework's choice where it fits.
///
/// # Errors
/// [`Unmeasured`] if measuring is not possible now.
pub(super) fn measure(
    question: &Question,
    limit: Bytes,
    settings: &Settings,
    host: &Host,
    guest: &mut Guest,
) -> Result<Known, Unmeasured> {
    let needs_time = question.chosen.workspace <= limit;
    let is_enough = |known: &Known| known.framework_time.is_some() || !needs_time;
    if let Some(known) = remembered(question, settings).filter(is_enough) {
        return Ok(known);
    }
    let started = Instant::now();
    let device = guest.device().clone();
    let survey = surveyed::Survey::new(question, limit, settings, &device);
    let looked_up = survey.is_done().then(|| cached::look_up(question, limit, settings, guest)).flatten();
    // Outdated measurements are repeated.
    let known = looked_up.filter(|found| !found.is_stale).map(|found| found.known);
    if let Some(Known { candidates, cost, .. }) = &known {
        // If only the framework's choice is missing, only that is measured.
        remember(question, admission(question, settings), Candidates { candidates: candidates.clone(), cost: *cost });
    }
    let result = match known.filter(is_enough) {
        Some(known) => Ok(known),
        None => measure_now(question, limit, settings, host, needs_time, &survey),
    };
    NANOS.fetch_add(started.elapsed().as_nanos() as u64, Ordering::Relaxed);
    result.inspect_err(|error| tell!("did not measure {}: {}", question.problem, error.words))
}

/// A device's backend, once it is started.
type Place = Arc<Mutex<Option<CudaBackend>>>;

fn backend_of(device: usize) -> Place {
    static BACKENDS: Mutex<Option<HashMap<usize, Place>>> = Mutex::new(None);
    let mut backends = BACKENDS.lock().unwrap_or_else(PoisonError::into_inner);
    backends.get_or_insert_default().entry(device).or_default().clone()
}

fn measure_now(
    question: &Question,
    limit: Bytes,
    settings: &Settings,
    host: &Host,
    needs_time: bool,
    survey: &surveyed::Survey<'_>,
) -> Result<Known, Unmeasured> {
    // Measurements on one device must not overlap; those on different devices are independent.
    let place = backend_of(question.device);
    let mut place = own(&place)?;
    let backend = match &mut *place {
        Some(backend) => backend,
        none => none.insert(host.backend(question.device).map_err(|error| error.to_string())?),
    };
    let cache = cache(settings);
    let _turn = cache.map(Turn::take).transpose()?.flatten();
    // The program's own work would disturb the measurements.
    backend
        .handle()
        .context()
        .synchronize()
        .map_err(|error| Unmeasured { is_capture: error.is_of_capture(), words: error.to_string() })?;
    let measured = with_profiler(question, limit, settings, backend, cache, needs_time);
    // Give the memory used for measuring back to the program.
    let released = backend.release();
    let known = measured.map_err(|error| error.chain())?;
    released.map_err(|error| error.to_string())?;
    survey.set_done(&known.candidates);
    Ok(known)
}

fn with_profiler(
    question: &Question,
    limit: Bytes,
    settings: &Settings,
    backend: &mut CudaBackend,
    cache: Option<&Cache>,
    needs_time: bool,
) -> Result<Known, Error> {
    let admission = admission(question, settings);
    let mut profiler = Profiler::new(backend, cache.map(|cache| cache as &dyn Store), &STOP);
    profiler.admit(admission);
    let key = key(question, admission);
    let remembered = {
        let remembered = REMEMBERED.lock().unwrap_or_else(PoisonError::into_inner);
        remembered.as_ref().and_then(|remembered| remembered.get(&key).cloned())
    };
    let found = match remembered {
        Some(found) => Ok(found),
        None => candidates(settings.sizes, &question.problem, &ladder(limit, settings), &mut profiler).map(Arc::new),
    };
    let theirs = match &found {
        Ok(found) if needs_time => {
            // A choice that is far slower than ours is run only once.
            let ours = divide(&question.problem, &found.candidates, limit, found.cost).ok();
            profiler.measure(&question.problem, &question.chosen.algorithm, ours.map(|ours| ours.time()))
        }
        _ => Ok(None),
    };
    let spent = profiler.into_spent();
    MEASURED.fetch_add(spent.measured as u64, Ordering::Relaxed);
    CACHED.fetch_add(spent.cached as u64, Ordering::Relaxed);
    if let Some(failure) = spent.cache_failure {
        tell!("could not save a measurement: {failure}");
    }
    let (found, framework_time) = (found?, theirs?.map(|measurement| measurement.time));
    remember(question, admission, (*found).clone());
    if let Some(time) = framework_time {
        TIMES.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default().insert(question.clone(), time);
    }
    Ok(Known { candidates: found.candidates.clone(), cost: found.cost, framework_time })
}

/// The limits for which to find candidates. Under a total, a kernel's share is not known yet.
fn ladder(limit: Bytes, settings: &Settings) -> Vec<Bytes> {
    match settings.limit {
        settings::Limit::PerKernel(_) => vec![limit],
        settings::Limit::Total(_) => tightfit_core::candidate::Limit::Total(limit).ladder(),
    }
}
