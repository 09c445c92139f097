//! Verifies that configurations give the same results side by side as alone.

use super::Trial;
use super::verify::largest_error;
use crate::backend::{Backend, Task};
use crate::{Bytes, Error, Nanos};

/// The result of running a group of kernels side by side.
#[derive(Clone, Debug, PartialEq)]
pub struct Overlapped {
    /// The kernels, as indices into those of the network.
    pub kernels: Vec<usize>,
    /// Streams that they ran on.
    pub streams: usize,
    /// Time of all of them side by side.
    pub time: Nanos,
    /// Sum of their times alone.
    pub alone: Nanos,
    /// Workspace of all of them: their segments together.
    pub workspace: Bytes,
    /// The largest difference of any output from that of the same kernel alone, relative to the kernel's largest
    /// output. 0 if all algorithms give the same bits every time.
    pub error: f64,
}

/// Runs the configurations of a group alone and side by side, each in its own segment of one workspace, and compares
/// every output.
///
/// `kernels` are the places of the trials in their network.
///
/// # Errors
/// As [`Backend::run_together`].
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
