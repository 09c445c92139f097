//! What a step has room for: a measurement that is expected to hold it up no longer than it may be, or the first one.

use std::time::Duration;

use tightfit_core::{Algorithm, Notes, Problem};

use super::rates::Rates;
use super::similar::Similar;
use super::task::CALLS;
use crate::choose::Prover;

/// What must be left of a step for an algorithm of which nothing is known.
const NEW: Duration = Duration::from_millis(150);

/// What a step has room for, by what is known of the device.
pub(super) struct Room<'a> {
    /// Bounds.
    pub rates: &'a Rates,
    /// What algorithms have achieved.
    pub similar: &'a Similar,
    /// Which algorithms compute slices right.
    pub prover: Prover<'a>,
    /// What may still be enqueued; none for anything.
    pub left: Option<Duration>,
    /// Whether there is time to try what promises nothing.
    pub is_thorough: bool,
}

impl Room<'_> {
    /// Whether a step has room for the measurement of a candidate with these notes.
    pub fn allows(&self, problem: &Problem, algorithm: &Algorithm, notes: Notes) -> bool {
        let Some(left) = self.left else { return true };
        let call = self.similar.expected(problem, algorithm, self.rates);
        let all = self.similar.setup(problem, algorithm, notes) + CALLS as u32 * Duration::from_nanos(call.0);
        // Nobody knows whether it is compiled first, which takes longer than anything else.
        let is_early = left >= NEW || !self.similar.is_new(problem, algorithm);
        is_early && all <= left
    }
}
