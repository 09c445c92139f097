//! Predicts the cost of a survey by running it over a backend that predicts times instead of measuring them.
//!
//! ```text
//! survey -> sizes -> Profiler::measure --> in the cache?  yes -> the measurement, at no cost
//!                                                          no  -> the predicted time, times its repeats
//! ```
//!
//! `fit` therefore chooses the same sizes as if it measured these times, and workspaces are exact.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tightfit_conv::backend::{Effort, Run, Scale, Tensors, sample};
use tightfit_conv::{Algorithm, Backend, Configuration, Device, Measurement, Offer, Operation, Problem};
use tightfit_units::{Bytes, Error, Nanos};

use super::env::Env;
use super::scope::Scope;
use super::survey::{by_work, survey_one};
use crate::{Profiler, Store};

/// Predicts the time of one run of an algorithm on a problem.
pub type Expected<'a> = dyn Fn(&Problem, &Algorithm) -> Nanos + Sync + 'a;

/// The measurements that a survey would make, and their cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Forecast {
    /// Problems that need measurements.
    pub problems: usize,
    /// Measurements to make, excluding those in the cache.
    pub measurements: usize,
    /// Predicted time of these measurements, with their repeats, on a CPU.
    pub time: Nanos,
    /// The numbers of each problem that needs measurements.
    pub times: HashMap<Problem, Nanos>,
    /// Sum of the largest of each tensor and the largest workspace, because buffers are reused between measurements.
    pub memory: Bytes,
    /// Whether the forecast covers the whole survey; otherwise time and measurements are lower bounds.
    pub is_complete: bool,
}

/// Predicts a survey of `problems` on `backend` without measuring. After `patience`, it counts the remaining problems
/// at their whole mini-batches only.
///
/// # Errors
/// The errors that the survey would return before it measures anything: no algorithm supports a problem, or none fits the limit.
/// [`Error::Interrupted`] once the caller has asked to stop.
pub fn forecast(
    problems: &[Problem],
    scope: &Scope,
    env: &Env<'_>,
    backend: &mut dyn Backend,
    expected: &Expected<'_>,
    patience: Duration,
) -> Result<Forecast, Error> {
    let known = env.cache.map(|cache| known(problems, cache, backend.device())).transpose()?.unwrap_or_default();
    let mut expecting = Predictor {
        backend,
        expected,
        cache: env.cache,
        known,
        slices: HashMap::new(),
        until: Instant::now() + patience,
        found: Forecast { is_complete: true, ..Forecast::default() },
        largest: [Bytes::ZERO; 4],
    };
    for problem in by_work(problems) {
        let (before, time) = (expecting.found.measurements, expecting.found.time);
        if expecting.found.is_complete {
            let surveyed = survey_one(problem, scope, &mut Profiler::new(&mut expecting, None, env.stop));
            match surveyed {
                Ok(_) => {}
                Err(Error::Interrupted) if !env.stop.load(Ordering::Relaxed) => expecting.found.is_complete = false,
                Err(error) => return Err(error),
            }
        }
        if !expecting.found.is_complete && !expecting.known.contains_key(&problem.shape()) {
            expecting.found.measurements += usize::from(expecting.found.measurements == before);
            expecting.take(tensors(problem), Bytes::ZERO);
        }
        if expecting.found.measurements > before {
            expecting.found.problems += 1;
            expecting.found.times.insert(*problem, expecting.found.time - time);
        }
    }
    Ok(Forecast { memory: expecting.largest.into_iter().sum(), ..expecting.found })
}

/// The known measurements of a shape, by algorithm and micro-batch.
type Measurements = HashMap<(Algorithm, usize), Measurement>;

fn known(problems: &[Problem], cache: &dyn Store, device: &Device) -> Result<HashMap<String, Measurements>, Error> {
    let mut all = HashMap::new();
    for problem in problems {
        let found = known_of(problem, cache, device)?;
        if !found.is_empty() {
            all.insert(problem.shape(), found);
        }
    }
    Ok(all)
}

fn known_of(problem: &Problem, cache: &dyn Store, device: &Device) -> Result<Measurements, Error> {
    let found = cache.measurements(device, problem)?.into_iter();
    Ok(found.map(|found| ((found.algorithm.clone(), found.micro_batch), found)).collect())
}

/// Bytes of the tensor buffers for all these problems, each as large as its largest use: the least memory for measuring
/// them.
pub fn tensor_memory(problems: &[Problem]) -> Bytes {
    let largest = |place: usize| problems.iter().map(|problem| tensors(problem)[place]).max().unwrap_or_default();
    (0..3).map(largest).sum()
}

/// Bytes of the two inputs and the output.
fn tensors(problem: &Problem) -> [Bytes; 3] {
    let bytes = |elements| Bytes::of(elements, problem.types().storage().size());
    let (x, w, y) = (bytes(problem.input_span()), bytes(problem.filter_len()), bytes(problem.output_span()));
    match problem.operation() {
        Operation::Forward => [x, w, y],
        Operation::BackwardData => [y, w, x],
        Operation::BackwardFilter => [x, y, w],
    }
}

/// A backend that predicts times and adds up the cost of measuring.
struct Predictor<'a> {
    backend: &'a mut dyn Backend,
    expected: &'a Expected<'a>,
    cache: Option<&'a dyn Store>,
    /// By shape.
    known: HashMap<String, Measurements>,
    /// Of the problems' slices, by shape, as they are asked for.
    slices: HashMap<String, Measurements>,
    until: Instant,
    found: Forecast,
    /// Largest size of each tensor and of the workspace.
    largest: [Bytes; 4],
}

impl Predictor<'_> {
    fn take(&mut self, [data, other, output]: [Bytes; 3], workspace: Bytes) {
        for (largest, bytes) in self.largest.iter_mut().zip([data, other, output, workspace]) {
            *largest = bytes.max(*largest);
        }
    }
}

impl Backend for Predictor<'_> {
    fn device(&self) -> &Device {
        self.backend.device()
    }

    fn is_replay(&self) -> bool {
        true
    }

    fn offers(&mut self, problem: &Problem) -> Result<Vec<Offer>, Error> {
        self.backend.offers(problem)
    }

    fn workspace(&mut self, problem: &Problem, algorithm: &Algorithm) -> Result<Bytes, Error> {
        self.backend.workspace(problem, algorithm)
    }

    fn sizes(&self, problem: &Problem) -> Option<Vec<usize>> {
        self.backend.sizes(problem)
    }

    fn measure(&mut self, problem: &Problem, algorithm: &Algorithm, effort: &Effort) -> Result<Measurement, Error> {
        let shape = problem.shape();
        let known = match (self.known.get(&shape), self.cache) {
            (None, Some(cache)) => {
                if !self.slices.contains_key(&shape) {
                    let found = known_of(problem, cache, self.backend.device())?;
                    self.slices.insert(shape.clone(), found);
                }
                self.slices.get(&shape)
            }
            (known, _) => known,
        };
        if let Some(measurement) = known.and_then(|known| known.get(&(algorithm.clone(), problem.batch()))) {
            return Ok(measurement.clone());
        }
        // Ends the current survey the way an interrupt would.
        if Instant::now() >= self.until {
            return Err(Error::Interrupted);
        }
        let workspace = self.backend.workspace(problem, algorithm)?;
        self.take(tensors(problem), workspace);
        let time = (self.expected)(problem, algorithm);
        let warm_up = if time < Effort::LONG_CALL { effort.warm_up } else { 0 };
        let repeated = sample(&Effort { warm_up, ..*effort }, || {
            self.found.time = self.found.time + time;
            Ok(time)
        })?;
        self.found.measurements += 1;
        Ok(Measurement {
            repeats: repeated.repeats,
            notes: Default::default(),
            ..Measurement::once(algorithm.clone(), problem.batch(), time, workspace)
        })
    }

    fn run(&mut self, problem: &Problem, _: &Configuration, _: Tensors<'_>, _: Scale) -> Result<Run, Error> {
        let reason = "a forecast does not run anything".to_owned();
        Err(Error::Refused { algorithm: "forecast".to_owned(), problem: problem.to_string(), reason })
    }
}
