//! The interface of all backends: list algorithms, report their workspaces and times, and run configurations. `task` has the inputs and results of a
//! run, `sample` repeats a timing, and `corrections` amends the notes of libraries.

mod corrections;
mod sample;
mod task;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

pub use corrections::corrected;
pub use sample::{Sample, sample};
pub use task::{Run, Scale, Task, Tensors, Together};

use tightfit_units::{Bytes, Error, Nanos};

use crate::{Algorithm, Configuration, DivisionCost, Measurement, Notes, Problem};

/// The device that a measurement is valid for; part of its key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Device {
    /// `cpu`, `cuda` or `replay`.
    pub backend: String,
    /// The device's own name, such as `NVIDIA H200`.
    pub name: String,
    /// The libraries and their versions, such as `cudnn 9.19.0`.
    pub library: String,
    /// The number of compute threads if it can be chosen, otherwise 0.
    pub threads: usize,
}

impl Device {
    /// The more specific of two descriptions of one device; `None` if they describe different devices. Libraries are listed in order, separated by `
    /// / `, and older recordings list fewer of them.
    ///
    /// ```
    /// use tightfit_conv::Device;
    /// let device = |library: &str| Device {
    ///     backend: "cuda".to_owned(),
    ///     name: "NVIDIA H200".to_owned(),
    ///     library: library.to_owned(),
    ///     threads: 0,
    /// };
    /// let (short, long) = (device("cudnn 9.19.0"), device("cudnn 9.19.0 / driver 580.159"));
    /// assert_eq!(short.more_specific(&long), Some(&long));
    /// assert_eq!(long.more_specific(&device("cudnn 9.19.0 / driver 570.10")), None);
    /// ```
    pub fn more_specific<'a>(&'a self, other: &'a Device) -> Option<&'a Device> {
        let extends = |long: &Device, short: &Device| {
            let rest = long.library.strip_prefix(&short.library);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" / "))
        };
        if (&self.backend, &self.name, self.threads) != (&other.backend, &other.name, other.threads) {
            return None;
        }
        if extends(self, other) { Some(self) } else { extends(other, self).then_some(other) }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.name, self.library)?;
        if self.threads > 0 { write!(f, ", {} threads)", self.threads) } else { f.write_str(")") }
    }
}

/// One algorithm's answer for one problem: its workspace, or why it does not support the problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// The library's notes on its arithmetic.
    pub notes: Notes,
    /// Exact workspace, or the reason for the refusal.
    pub workspace: Result<Bytes, String>,
}

/// The effort to spend on a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Warm-up runs before the first that counts.
    pub warm_up: u32,
    /// Fewest repeats that count.
    pub least: u32,
    /// Most repeats.
    pub most: u32,
    /// Spread below which to stop repeating.
    pub spread: f64,
    /// Time after which to start no more repeats.
    pub cap: Nanos,
    /// Time of the best algorithm of this size so far; an algorithm over three times slower is run only once.
    pub best: Option<Nanos>,
    /// The time that a candidate must beat for any choice among the candidates known so far to include it, under any
    /// limit. One that loses to it after two calls, the warm-up included, is left at that: its time is right but less
    /// precise, and has one repeat.
    pub bound: Option<Nanos>,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { warm_up: 1, least: 3, most: 15, spread: 0.05, cap: Nanos(250_000_000), best: None, bound: None }
    }
}

impl Effort {
    /// On a CPU, a call of this length has caches and clocks warm for most of it, so it counts without a warm-up.
    pub const LONG_CALL: Nanos = Nanos(50_000_000);
    /// The most time that the gaps between the kernels of a single call add.
    pub const LAUNCH_GAPS: Nanos = Nanos(50_000);

    /// Whether the time of a single call, without idle time within it, is over `margin` times the bound.
    ///
    /// ```
    /// use tightfit_units::Nanos;
    /// use tightfit_conv::backend::Effort;
    /// let effort = Effort { bound: Some(Nanos(100_000)), ..Effort::default() };
    /// assert!(effort.is_lost(Nanos(161_000), 1.1));
    /// assert!(!effort.is_lost(Nanos(159_000), 1.1), "up to 50 us of it may be gaps");
    /// ```
    pub fn is_lost(&self, single: Nanos, margin: f64) -> bool {
        self.bound.is_some_and(|bound| (single - Effort::LAUNCH_GAPS).0 as f64 > bound.0 as f64 * margin)
    }
}

/// Runs convolutions.
pub trait Backend: Send {
    /// The device that its measurements are valid for.
    fn device(&self) -> &Device;

    /// Free bytes of device memory; `None` without a device, or if it does not report them.
    fn free_memory(&self) -> Option<Bytes> {
        None
    }

    /// Whether it answers from a recording: immediately, reporting the time that measuring took originally.
    fn is_replay(&self) -> bool {
        false
    }

    /// Lists every algorithm for the problem's operation, with its exact workspace at the problem's batch or its reason
    /// to refuse, without running anything.
    ///
    /// # Errors
    /// [`Error::Backend`] if the library cannot be queried.
    fn offers(&mut self, problem: &Problem) -> Result<Vec<Offer>, Error>;

    /// The exact workspace of one algorithm at the problem's batch, without running anything.
    ///
    /// # Errors
    /// [`Error::Refused`] if the algorithm does not compute this problem.
    fn workspace(&mut self, problem: &Problem, algorithm: &Algorithm) -> Result<Bytes, Error>;

    /// The supported batch sizes, rising; `None` if every size is supported. A recording supports only the recorded sizes.
    fn sizes(&self, _problem: &Problem) -> Option<Vec<usize>> {
        None
    }

    /// From now on, stops a measurement once the flag is set, if it can. Calls already on a device run to their end.
    fn stop_on(&mut self, _stop: &Arc<AtomicBool>) {}

    /// Times one algorithm on one (micro-)batch, on random data.
    ///
    /// # Errors
    /// [`Error::Refused`] if the algorithm does not compute this problem; [`Error::Backend`] if it failed;
    /// [`Error::Interrupted`] if it was left ([`Backend::stop_on`]).
    fn measure(&mut self, problem: &Problem, algorithm: &Algorithm, effort: &Effort) -> Result<Measurement, Error>;

    /// The cost of dividing in addition to the micro-batches: scratch that lives through the whole configuration, and time spent once. Zero for most
    /// problems.
    ///
    /// # Errors
    /// [`Error::Backend`] if the cost must be measured and that fails.
    fn division_cost(&mut self, _problem: &Problem) -> Result<DivisionCost, Error> {
        Ok(DivisionCost::default())
    }

    /// Runs a configuration of the problem in one workspace of exactly its size.
    ///
    /// # Errors
    /// [`Error::Refused`] or [`Error::Backend`], as for measuring; a recording cannot run anything.
    fn run(
        &mut self,
        problem: &Problem,
        configuration: &Configuration,
        tensors: Tensors<'_>,
        scale: Scale,
    ) -> Result<Run, Error>;

    /// Runs independent configurations, each in its own segment of one workspace: concurrently if the backend can,
    /// otherwise one after another.
    ///
    /// # Errors
    /// As [`Backend::run`].
    fn run_together(&mut self, tasks: &[Task<'_>]) -> Result<Together, Error> {
        let mut together = Together { outputs: Vec::with_capacity(tasks.len()), time: Nanos::ZERO, streams: 1 };
        for task in tasks {
            let run = self.run(task.problem, task.configuration, task.tensors, task.scale)?;
            together.time = together.time + run.time;
            together.outputs.push(run.output);
        }
        Ok(together)
    }
}
