//! Something to run between two calls.

use std::fmt;
use std::sync::Arc;

use tightfit_conv::{Algorithm, Configuration, Problem};
use tightfit_cuda::sys::cudnn::BackendDescriptor;
use tightfit_cuda::{Course, GuestProgram};
use tightfit_units::{Bytes, Nanos};

use super::rates::Rates;
use super::similar::Similar;
use crate::kernel::Kernel;

/// Runs of a candidate: the first is not judged, because it loads kernels.
pub(super) const CALLS: usize = 2;

/// The current measurement.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Purpose {
    /// The framework's choice.
    Own,
    /// A candidate.
    Part(Box<Problem>, Algorithm),
    /// A candidate's algorithm on a small convolution of the same kind.
    Pilot(Box<Problem>, Algorithm),
    /// The cost of dividing.
    Division,
    /// The running choice, to compare it.
    Guess,
    /// A configuration and the running choice.
    Duel,
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Purpose::Own => f.write_str("the program's own choice"),
            Purpose::Part(part, algorithm) => write!(f, "{} {algorithm}", part.batch()),
            Purpose::Pilot(small, algorithm) => write!(f, "{algorithm} on {small} first"),
            Purpose::Division => f.write_str("a division"),
            Purpose::Guess => f.write_str("what runs"),
            Purpose::Duel => f.write_str("turns with what runs"),
        }
    }
}

/// Something to run.
pub(super) struct Task {
    /// Why.
    pub purpose: Purpose,
    /// The programs, in the order of a round.
    pub programs: Vec<Arc<GuestProgram>>,
    /// How often.
    pub rounds: usize,
    /// The configurations that the programs run, where their outputs are looked at, and these outputs, by flat index.
    pub compared: Vec<Configuration>,
    pub outputs: Vec<usize>,
    /// The time that it may take.
    pub expected: Nanos,
}

impl Task {
    /// One program, to be timed.
    pub fn alone(purpose: Purpose, program: Arc<GuestProgram>) -> Task {
        let (compared, outputs) = (Vec::new(), Vec::new());
        Task { purpose, programs: vec![program], rounds: CALLS, compared, outputs, expected: Nanos::ZERO }
    }

    /// Adds the time that it may take. `now` is the current time of a call of the kernel, if known.
    pub fn expecting(self, whole: &Problem, now: Option<Nanos>, rates: &Rates, similar: &Similar) -> Task {
        let call = match (&self.purpose, now) {
            (Purpose::Part(part, algorithm) | Purpose::Pilot(part, algorithm), _) => {
                similar.expected(part, algorithm, rates)
            }
            (_, Some(now)) => Similar::at_most(now),
            (_, None) => Similar::of_unknown(whole, rates),
        };
        let calls = (self.programs.len() * self.rounds) as u64;
        Task { expected: Nanos(call.0.saturating_mul(calls)), ..self }
    }

    /// The course to run.
    pub fn course(&self, reserve: Bytes) -> Course<'_> {
        Course { programs: &self.programs, rounds: self.rounds, outputs: &self.outputs, reserve }
    }
}

/// The framework's choice for the kernel that is about to be executed.
pub(super) struct Own<'a> {
    /// The kernel.
    pub kernel: &'a Arc<Kernel>,
    /// Its plan and the ids of its tensors, if the program has one.
    pub plan: Option<(BackendDescriptor, [i64; 3])>,
}
