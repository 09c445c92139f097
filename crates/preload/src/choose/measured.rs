//! Measures candidates at plan time, on a separate handle, stream and scratch memory.
//!
//! Measurements go to the cache file at once, and only one process at a time measures for that file: the others wait
//! briefly for its results. Without a file, every process measures for itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tightfit_conv::Problem;
use tightfit_conv::candidate::Candidates;
use tightfit_conv::optimize::divide;
use tightfit_cuda::{CudaBackend, Guest, Host};
use tightfit_profile::survey::{Screen, add_slices, candidates};
use tightfit_profile::{Cache, Profiler, Store};
use tightfit_units::{Bytes, Error};

use super::chooser::{Chooser, Knowledge, admission};
use super::measurements::key;
use super::surveyed;
use super::turn::{Turn, wait_for};
use crate::kernel::Question;
use crate::log::trace;
use crate::settings::{Limit, Settings, Terms};

/// Why nothing was measured.
#[derive(Debug)]
pub(super) struct Refusal {
    /// Whether another stream's capture forbids measuring.
    pub is_capture: bool,
    words: String,
}

impl<E: Into<String>> From<E> for Refusal {
    fn from(words: E) -> Refusal {
        Refusal { is_capture: false, words: words.into() }
    }
}

impl Chooser {
    /// The measurements of this process on these terms.
    pub(super) fn recall(&self, question: &Question, terms: Terms, settings: &Settings) -> Option<Knowledge> {
        let found = self.measurements.find(&key(question, terms, admission(question, settings)))?;
        let framework_time = self.measurements.time(question);
        Some(Knowledge { candidates: found.candidates.clone(), cost: found.cost, framework_time })
    }

    /// The candidates that the sizes ask for, and the framework's choice where it fits.
    ///
    /// # Errors
    /// [`Refusal`] if measuring is not possible now.
    pub(super) fn measure(
        &self,
        question: &Question,
        terms: Terms,
        settings: &Settings,
        host: &Host,
        guest: &mut Guest,
    ) -> Result<Knowledge, Refusal> {
        let needs_time = question.chosen.workspace <= terms.limit.bytes();
        let is_enough = |known: &Knowledge| known.framework_time.is_some() || !needs_time;
        if let Some(known) = self.recall(question, terms, settings).filter(is_enough) {
            return Ok(known);
        }
        let started = Instant::now();
        let device = guest.device().clone();
        let survey = surveyed::Survey::new(&self.cache, question, terms, settings, &device);
        let looked_up = survey.is_done().then(|| self.look_up(question, terms, settings, guest)).flatten();
        // Outdated measurements are repeated.
        let known = looked_up.filter(|found| !found.is_stale).map(|found| found.known);
        if let Some(Knowledge { candidates, cost, .. }) = &known {
            // If only the framework's choice is missing, only that is measured.
            let key = key(question, terms, admission(question, settings));
            self.measurements.remember(key, Candidates { candidates: candidates.clone(), cost: *cost });
        }
        let result = match known.filter(is_enough) {
            Some(known) => Ok(known),
            None => self.measure_now(question, terms, settings, (host, guest), needs_time, &survey),
        };
        self.spending.add(started.elapsed());
        result.inspect_err(|error| trace!("did not measure {}: {}", question.problem, error.words))
    }

    /// The rest of the budget, or `None` without a limit.
    fn left(&self, settings: &Settings) -> Option<Duration> {
        let spent = Duration::from_nanos(self.spending.so_far().time.0);
        settings.budget.limit().map(|limit| limit.saturating_sub(spent))
    }

    /// Whether nothing may run on the device any more.
    pub(super) fn is_spent(&self, settings: &Settings) -> bool {
        self.left(settings) == Some(Duration::ZERO)
    }

    fn measure_now(
        &self,
        question: &Question,
        terms: Terms,
        settings: &Settings,
        (host, guest): (&Host, &Guest),
        needs_time: bool,
        survey: &surveyed::Survey<'_>,
    ) -> Result<Knowledge, Refusal> {
        // Measurements on one device must not overlap; those on different devices are independent.
        let place = self.measurements.backend_of(question.device);
        let mut place = wait_for(&place)?;
        let backend = match &mut *place {
            Some(backend) => backend,
            none => none.insert(host.backend(question.device).map_err(|error| error.to_string())?),
        };
        let cache = self.cache.open(settings, terms.tune);
        let _turn = cache.map(Turn::take).transpose()?.flatten();
        // The program's own work would disturb the measurements. Only the work of its stream is waited for: waiting for
        // the device would break captures on others.
        guest.synchronize().map_err(|error| Refusal { is_capture: error.is_of_capture(), words: error.to_string() })?;
        let measured = self.with_profiler(question, terms, settings, backend, cache, needs_time);
        // Give the memory used for measuring back to the program.
        let released = backend.release();
        let known = measured.map_err(|error| error.chain())?;
        released.map_err(|error| error.to_string())?;
        survey.set_done(&known.candidates);
        Ok(known)
    }

    fn with_profiler(
        &self,
        question: &Question,
        terms: Terms,
        settings: &Settings,
        backend: &mut CudaBackend,
        cache: Option<&Cache>,
        needs_time: bool,
    ) -> Result<Knowledge, Error> {
        let admission = admission(question, settings);
        let left = self.left(settings);
        let mut profiler = Profiler::new(backend, cache.map(|cache| cache as &dyn Store), self.measurements.stop());
        profiler.until(left.map(|left| Instant::now() + left));
        profiler.admit(admission);
        let (key, limit) = (key(question, terms, admission), terms.limit.bytes());
        let remembered = self.measurements.find(&key);
        let found = match remembered {
            Some(found) => Ok(found),
            None => candidates_on(&question.problem, terms, &mut profiler).map(Arc::new),
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
        self.spending.add_measured(spent.measured);
        self.spending.add_cached(spent.cached);
        if let Some(failure) = spent.cache_failure {
            trace!("could not save a measurement: {failure}");
        }
        let (found, framework_time) = (found?, theirs?.map(|measurement| measurement.time));
        self.measurements.remember(key, (*found).clone());
        if let Some(time) = framework_time {
            self.measurements.remember_time(question, time);
        }
        Ok(Knowledge { candidates: found.candidates.clone(), cost: found.cost, framework_time })
    }
}

/// Every candidate that these terms allow.
fn candidates_on(problem: &Problem, terms: Terms, profiler: &mut Profiler<'_>) -> Result<Candidates, Error> {
    let limits = ladder(terms.limit);
    let mut found = candidates(terms.micro_batches(), problem, &limits, profiler)?;
    if terms.slices() {
        add_slices(problem, &limits, terms.divide, Screen::Twice, profiler, &mut found)?;
    }
    Ok(found)
}

/// The limits for which to find candidates. Under a total, a kernel's share is not known yet.
fn ladder(limit: Limit) -> Vec<Bytes> {
    match limit {
        Limit::PerKernel(_) | Limit::Auto => vec![limit.bytes()],
        Limit::Total(total) => tightfit_conv::candidate::Limit::Total(total).ladder(),
    }
}
