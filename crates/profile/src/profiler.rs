//! Gets each measurement once: from memory, from the cache, and only then by running it on the backend.
//!
//! ```text
//! sizes --> Profiler::measure --> known in this run? --> in the cache? --> Backend::measure --> cache
//! ```

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tightfit_conv::backend::{Backend, Effort, Offer};
use tightfit_conv::candidate::{Algorithm, Measurement, Notes};
use tightfit_conv::{Device, DivisionCost, Problem};
use tightfit_units::{Bytes, Error, Nanos};

use super::Store;

/// The cost of profiling so far, and the failures.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Spent {
    /// Wall-clock time of the measurements made, all repeats included; the recorded times in a replay.
    pub time: Nanos,
    /// The time of one call of every requested candidate, cached or not. This is the cost of a choice of sizes, independent of the cache.
    pub kernel_time: Nanos,
    /// Measurements made.
    pub measured: usize,
    /// Measurements found in the cache.
    pub cached: usize,
    /// Candidates left out because they failed, with the reason.
    pub skipped: Vec<Skipped>,
    /// The first failure to write to the cache; measuring continued without it.
    pub cache_failure: Option<String>,
    /// The measurements made by each device, in the order of the devices; empty if only one device measured.
    pub shares: Vec<Share>,
}

/// The measurements that one of several devices made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Their number.
    pub measured: usize,
    /// Their wall-clock time, all repeats included.
    pub time: Nanos,
}

/// A candidate that could not be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The problem at the micro-batch that failed.
    pub problem: Problem,
    /// Which algorithm.
    pub algorithm: Algorithm,
    /// Why.
    pub reason: String,
}

impl Spent {
    /// Adds what another profiler spent.
    pub fn add(&mut self, other: Spent) {
        self.time = self.time + other.time;
        self.kernel_time = self.kernel_time + other.kernel_time;
        self.measured += other.measured;
        self.cached += other.cached;
        self.skipped.extend(other.skipped);
        self.cache_failure = self.cache_failure.take().or(other.cache_failure);
        self.shares.resize(self.shares.len().max(other.shares.len()), Share::default());
        for (share, more) in self.shares.iter_mut().zip(other.shares) {
            *share = Share { measured: share.measured + more.measured, time: share.time + more.time };
        }
    }

    /// Attributes these measurements to the device with this index.
    pub(crate) fn by_device(mut self, place: usize) -> Spent {
        self.shares = vec![Share::default(); place];
        self.shares.push(Share { measured: self.measured, time: self.time });
        self
    }
}

/// The allowed algorithms, by their library's notes on their arithmetic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// Only deterministic algorithms.
    pub deterministic: bool,
    /// Only algorithms of this numerical class (see [`Notes::class`]).
    pub class: Option<Notes>,
    /// No algorithms with any of these notes.
    pub without: Notes,
}

impl Admission {
    /// Whether an algorithm with these notes may be used.
    pub fn admits(self, notes: Notes) -> bool {
        self.refuses(notes).is_none()
    }

    /// The reason why an algorithm with these notes may not be used; `None` if it may.
    fn refuses(self, notes: Notes) -> Option<String> {
        if self.deterministic && notes.contains(Notes::NONDETERMINISTIC) {
            return Some("is not deterministic".to_owned());
        }
        let unwanted = Notes(notes.0 & self.without.0);
        if unwanted != Notes::NONE {
            return Some(format!("its arithmetic ({unwanted}) is not allowed"));
        }
        let class = self.class.filter(|class| *class != notes.class())?;
        Some(format!("its arithmetic ({}) is not of the requested class ({class})", notes.class()))
    }
}

/// The times that a candidate competes with; see [`Effort`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rivals {
    /// [`Effort::best`].
    pub best: Option<Nanos>,
    /// [`Effort::bound`].
    pub bound: Option<Nanos>,
}

/// The measurements of one run, by problem at its size; `None` for a failed one.
pub(crate) type Known = HashMap<(Problem, Algorithm), Option<Measurement>>;

/// The measurements of one backend, made on demand and cached.
pub struct Profiler<'a> {
    backend: &'a mut dyn Backend,
    cache: Option<&'a dyn Store>,
    stop: &'a AtomicBool,
    end: Option<Instant>,
    effort: Effort,
    admission: Admission,
    known: Known,
    workspaces: HashMap<(Problem, Algorithm), Option<Bytes>>,
    loaded: HashMap<Problem, Vec<Measurement>>,
    offers: HashMap<Problem, Vec<Offer>>,
    spent: Spent,
}

impl<'a> Profiler<'a> {
    /// A profiler of `backend` that consults `cache` first and saves its measurements there. Once `stop` is set, it
    /// refuses every further request with [`Error::Interrupted`], even one that the cache could answer.
    pub fn new(backend: &'a mut dyn Backend, cache: Option<&'a dyn Store>, stop: &'a AtomicBool) -> Profiler<'a> {
        Profiler {
            backend,
            cache,
            stop,
            end: None,
            effort: Effort::default(),
            admission: Admission::default(),
            known: HashMap::new(),
            workspaces: HashMap::new(),
            loaded: HashMap::new(),
            offers: HashMap::new(),
            spent: Spent::default(),
        }
    }

    /// The cost so far.
    pub fn spent(&self) -> &Spent {
        &self.spent
    }

    /// Adopts the measurements of another profiler of the same kind of device in this run.
    pub(crate) fn know(&mut self, known: &Known) {
        self.known.extend(known.iter().map(|(key, found)| (key.clone(), found.clone())));
    }

    /// Everything measured, and the total cost.
    pub(crate) fn into_known(self) -> (Known, Spent) {
        (self.known, self.spent)
    }

    /// The total cost.
    pub fn into_spent(self) -> Spent {
        self.spent
    }

    /// The measurable batch sizes up to the problem's own, rising: every size, or a recording's sizes.
    pub fn sizes(&self, problem: &Problem) -> Vec<usize> {
        match self.backend.sizes(problem) {
            Some(mut sizes) => {
                sizes.retain(|&size| size <= problem.batch());
                sizes
            }
            None => (1..=problem.batch()).collect(),
        }
    }

    /// The device that measures.
    pub fn device(&self) -> &Device {
        self.backend.device()
    }

    /// Whether only some sizes of a problem can be answered, and questions cost nothing: a recording.
    pub fn is_recorded(&self, problem: &Problem) -> bool {
        self.backend.sizes(problem).is_some()
    }

    /// From now on, offers only algorithms that `admission` allows.
    pub fn admit(&mut self, admission: Admission) {
        if self.admission != admission {
            self.admission = admission;
            self.offers.clear();
        }
    }

    /// Every algorithm's workspace or refusal for the problem at its batch; queried from the backend only once.
    ///
    /// # Errors
    /// As [`Backend::offers`]; [`Error::Interrupted`] once the caller has asked to stop.
    pub fn offers(&mut self, problem: &Problem) -> Result<&[Offer], Error> {
        self.check_stop()?;
        if !self.offers.contains_key(problem) {
            let mut offers = self.backend.offers(problem)?;
            for offer in &mut offers {
                if let Some(reason) = self.admission.refuses(offer.notes) {
                    offer.workspace = Err(reason);
                }
            }
            self.offers.insert(*problem, offers);
        }
        Ok(&self.offers[problem])
    }

    /// The algorithm's workspace for the problem at its batch; `None` if it refuses.
    ///
    /// # Errors
    /// [`Error::Backend`] if the library cannot be queried; [`Error::Interrupted`] once the caller has asked to stop.
    pub fn workspace(&mut self, problem: &Problem, algorithm: &Algorithm) -> Result<Option<Bytes>, Error> {
        self.check_stop()?;
        if let Some(offers) = self.offers.get(problem)
            && let Some(offer) = offers.iter().find(|offer| offer.algorithm == *algorithm)
        {
            return Ok(offer.workspace.as_ref().ok().copied());
        }
        let key = (*problem, algorithm.clone());
        if let Some(known) = self.workspaces.get(&key) {
            return Ok(*known);
        }
        let workspace = match self.backend.workspace(problem, algorithm) {
            Ok(bytes) => Some(bytes),
            Err(Error::Refused { .. }) => None,
            Err(error) => return Err(error),
        };
        self.workspaces.insert(key, workspace);
        Ok(workspace)
    }

    /// From `end` on, measures nothing more: a request that is not known or cached is [`Error::Interrupted`].
    pub fn until(&mut self, end: Option<Instant>) {
        self.end = end;
    }

    /// Fails after the end of measuring.
    fn check_end(&self) -> Result<(), Error> {
        if self.end.is_some_and(|end| Instant::now() >= end) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Fails once the caller has asked to stop.
    fn check_stop(&self) -> Result<(), Error> {
        if self.stop.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// The measurement of `algorithm` on the problem at its batch; none if it fails, which is recorded in
    /// [`Spent::skipped`]. `best` is the time of the best algorithm of this size so far.
    ///
    /// # Errors
    /// [`Error::Interrupted`] once the caller has asked to stop; a fatal error of the backend.
    pub fn measure(
        &mut self,
        problem: &Problem,
        algorithm: &Algorithm,
        best: Option<Nanos>,
    ) -> Result<Option<Measurement>, Error> {
        self.measure_against(problem, algorithm, Rivals { best, bound: None })
    }

    /// As [`Profiler::measure`]; a candidate without a chance against its rivals costs two calls.
    pub(crate) fn measure_against(
        &mut self,
        problem: &Problem,
        algorithm: &Algorithm,
        rivals: Rivals,
    ) -> Result<Option<Measurement>, Error> {
        self.check_stop()?;
        let key = (*problem, algorithm.clone());
        if let Some(known) = self.known.get(&key) {
            return Ok(known.clone());
        }
        let measurement = match self.find_cached(problem, algorithm)? {
            Some(cached) => {
                self.spent.cached += 1;
                Some(cached)
            }
            None => self.run(problem, algorithm, rivals)?,
        };
        if let Some(measurement) = &measurement {
            self.spent.kernel_time = self.spent.kernel_time + measurement.time;
        }
        self.known.insert(key, measurement.clone());
        Ok(measurement)
    }

    /// Everything measured of the problem at its batch so far.
    pub(crate) fn known_of(&self, problem: &Problem) -> Vec<&Measurement> {
        self.known.iter().filter(|((known, _), _)| known == problem).filter_map(|(_, found)| found.as_ref()).collect()
    }

    /// Whether the candidate was given up after a single timed call although more were possible; false in a replay.
    pub(crate) fn is_hasty(&self, problem: &Problem, algorithm: &Algorithm) -> bool {
        let known = self.known.get(&(*problem, algorithm.clone()));
        let hasty = |found: &Measurement| found.repeats <= 1 && found.time < self.effort.cap;
        !self.backend.is_replay() && known.and_then(Option::as_ref).is_some_and(hasty)
    }

    /// Measures a known candidate again, with all repeats; `None` if it fails this time.
    pub(crate) fn measure_again(
        &mut self,
        problem: &Problem,
        algorithm: &Algorithm,
    ) -> Result<Option<Measurement>, Error> {
        self.check_stop()?;
        let measurement = self.run(problem, algorithm, Rivals::default())?;
        self.known.insert((*problem, algorithm.clone()), measurement.clone());
        Ok(measurement)
    }

    /// The cost of dividing the problem, from the cache or queried from the backend and saved.
    ///
    /// # Errors
    /// The errors of [`Backend::division_cost`] and of reading the cache; [`Error::Interrupted`] once the caller has asked to stop.
    pub fn division_cost(&mut self, problem: &Problem) -> Result<DivisionCost, Error> {
        self.check_stop()?;
        if let Some(cache) = self.cache
            && let Some(cost) = cache.division_cost(self.backend.device(), problem)?
        {
            return Ok(cost);
        }
        self.check_end()?;
        let cost = self.backend.division_cost(problem)?;
        if let Some(cache) = self.cache
            && cost != DivisionCost::default()
            && self.spent.cache_failure.is_none()
            && let Err(error) = cache.keep_division_cost(self.backend.device(), problem, cost)
        {
            self.spent.cache_failure = Some(error.chain());
        }
        Ok(cost)
    }

    /// The cached measurement, if still valid. A row whose workspace differs from the backend's current answer was
    /// edited, or made with another library or driver of the same name; searches rely on the workspaces they queried.
    fn find_cached(&mut self, problem: &Problem, algorithm: &Algorithm) -> Result<Option<Measurement>, Error> {
        let Some(cache) = self.cache else { return Ok(None) };
        let shape = problem.with_batch(1)?;
        if !self.loaded.contains_key(&shape) {
            self.loaded.insert(shape, cache.measurements(self.backend.device(), problem)?);
        }
        let fits = |m: &&Measurement| m.micro_batch == problem.batch() && m.algorithm == *algorithm;
        let Some(found) = self.loaded[&shape].iter().find(fits).cloned() else { return Ok(None) };
        let today = self.workspace(problem, algorithm)?;
        Ok(Some(found).filter(|found| today == Some(found.workspace)))
    }

    fn run(
        &mut self,
        problem: &Problem,
        algorithm: &Algorithm,
        Rivals { best, bound }: Rivals,
    ) -> Result<Option<Measurement>, Error> {
        self.check_end()?;
        let started = Instant::now();
        let effort = Effort { best, bound, ..self.effort };
        match self.backend.measure(problem, algorithm, &effort) {
            Ok(mut measurement) => {
                // A time of zero only means that the clock is too coarse.
                measurement.time = measurement.time.max(Nanos(1));
                measurement.single = measurement.single.map(|single| single.max(Nanos(1)));
                // A replay answers immediately, so report the times of the recorded calls.
                let time = if self.backend.is_replay() { measurement.time } else { Nanos::from(started.elapsed()) };
                self.spent.time = self.spent.time + time;
                self.spent.measured += 1;
                if let Some(cache) = self.cache
                    && self.spent.cache_failure.is_none()
                    && let Err(error) = cache.keep(self.backend.device(), problem, &measurement)
                {
                    self.spent.cache_failure = Some(error.chain());
                }
                Ok(Some(measurement))
            }
            Err(error) if error.is_fatal() => Err(error),
            Err(error) => {
                let (problem, algorithm) = (*problem, algorithm.clone());
                self.spent.skipped.push(Skipped { problem, algorithm, reason: error.chain() });
                Ok(None)
            }
        }
    }
}
