//! Verifies that configurations have the same results concurrently as alone.

use tightfit_units::{Bytes, Error, Nanos};

use super::Trial;
use super::verify::largest_error;
use crate::backend::{Backend, Task};

/// The result of running a group of kernels concurrently.
#[derive(Clone, Debug, PartialEq)]
pub struct Overlapped {
    /// The kernels, as indices into the network's kernels.
    pub kernels: Vec<usize>,
    /// Number of streams.
    pub streams: usize,
    /// Time of all of them running concurrently.
    pub time: Nanos,
    /// Sum of their times alone.
    pub alone: Nanos,
    /// Total workspace: the sum of their segments.
    pub workspace: Bytes,
    /// The largest difference of any output from the same kernel's output when it runs alone, relative to the kernel's largest output. 0 if all
    /// algorithms are deterministic.
    pub error: f64,
}

/// Runs the configurations of a group alone and concurrently, each in its own segment of one workspace, and compares
/// every output.
///
/// `kernels` has the trials' indices in their network.
///
/// # Errors
/// The errors of [`Backend::run_together`].
pub fn verify_together(
    backend: &mut dyn Backend,
    kernels: Vec<usize>,
    trials: &[Trial<'_>],
) -> Result<Overlapped, Error> {
    let mut alone = Vec::with_capacity(trials.len());
    let mut time = Nanos::ZERO;
    for trial in trials {
        let run = backend.run(trial.problem, trial.configuration, trial.data.tensors(), trial.scale)?;
        time = time + run.time;
        alone.push(run.output);
    }
    let tasks: Vec<Task<'_>> = trials.iter().map(Trial::task).collect();
    let together = backend.run_together(&tasks)?;
    let pairs = together.outputs.iter().zip(&alone);
    let errors = pairs.map(|(together, alone)| {
        largest_error(together.iter().zip(alone).map(|(a, b)| (f64::from(*a), f64::from(*b))))
    });
    Ok(Overlapped {
        kernels,
        streams: together.streams,
        time: together.time,
        alone: time,
        workspace: trials.iter().map(|trial| trial.configuration.workspace()).sum(),
        error: errors.fold(0.0, f64::max),
    })
}
