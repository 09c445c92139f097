//! What every backend answers: which algorithms there are, what workspace each needs, how long it takes; and how it runs
//! a configuration.

mod task;

use std::fmt;

use serde::{Deserialize, Serialize};

pub use task::{Run, Scale, Task, Tensors, Together};

use crate::{Algorithm, Bytes, Configuration, DivisionCost, Error, Measurement, Nanos, Notes, Problem};

/// Where a measurement holds: part of the key under which it is kept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Device {
    /// `cpu`, `cuda` or `replay`.
    pub backend: String,
    /// The device's own name, such as `NVIDIA H200`.
    pub name: String,
    /// The libraries and their versions, such as `cudnn 9.19.0`.
    pub library: String,
    /// Threads that compute, where that is a choice; 0 where it is not.
    pub threads: usize,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.name, self.library)?;
        if self.threads > 0 { write!(f, ", {} threads)", self.threads) } else { f.write_str(")") }
    }
}

/// One algorithm's answer for one problem: its workspace, or why it will not compute it.
#[derive(Clone, Debug, PartialEq)]
pub struct Offer {
    /// Which algorithm.
    pub algorithm: Algorithm,
    /// What the library says of its arithmetic.
    pub notes: Notes,
    /// Exact workspace, or the reason of the refusal.
    pub workspace: Result<Bytes, String>,
}

/// How much work a measurement is worth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effort {
    /// Runs before the first that counts.
    pub warm_up: u32,
    /// Fewest repeats that count.
    pub least: u32,
    /// Most repeats.
    pub most: u32,
    /// Spread at which repeating ends.
    pub spread: f64,
    /// Once this much time has been spent on repeats, no more are begun.
    pub cap: Nanos,
    /// Time of the best algorithm of this size so far: one slower than three times that is run once.
    pub best: Option<Nanos>,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { warm_up: 1, least: 3, most: 15, spread: 0.05, cap: Nanos(250_000_000), best: None }
    }
}

/// What carries convolutions out.
pub trait Backend: Send {
    /// Where its measurements hold.
    fn device(&self) -> &Device;

    /// Bytes of the device's memory that are free now; none where there is no device, or it does not tell.
    fn free_memory(&self) -> Option<Bytes> {
        None
    }

    /// Whether it answers from a recording: at once, and with what measuring took then.
    fn is_replay(&self) -> bool {
        false
    }

    /// Every algorithm it has for the problem's operation, with its exact workspace at the problem's batch or its reason
    /// to refuse; asked without running anything.
    ///
    /// # Errors
    /// [`Error::Backend`] if the library cannot be asked at all.
    fn offers(&mut self, problem: &Problem) -> Result<Vec<Offer>, Error>;

    /// The exact workspace of one algorithm at the problem's batch, asked without running anything.
    ///
    /// # Errors
    /// [`Error::Refused`] if the algorithm does not compute this problem.
    fn workspace(&mut self, problem: &Problem, algorithm: &Algorithm) -> Result<Bytes, Error>;

    /// The batch sizes that can be asked of at all, rising; none for every size. A recording knows only its own.
    fn sizes(&self, _problem: &Problem) -> Option<Vec<usize>> {
        None
    }

    /// Times one algorithm on one (micro-)batch, on random data.
    ///
    /// # Errors
    /// [`Error::Refused`] if the algorithm does not compute this problem; [`Error::Backend`] if it failed.
    fn measure(&mut self, problem: &Problem, algorithm: &Algorithm, effort: &Effort) -> Result<Measurement, Error>;

    /// What dividing costs beside the micro-batches: scratch that lives through the whole configuration and time spent
    /// once. Nothing for most.
    ///
    /// # Errors
    /// [`Error::Backend`] if it had to be measured and that failed.
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

    /// Runs configurations that depend on each other in nothing, each in a segment of its own of one workspace: side by
    /// side where the backend can, else one after another.
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
