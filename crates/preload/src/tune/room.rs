//! The room of a step for a measurement: its expected time must be within the allowed delay, unless it is the first.

use std::time::{Duration, Instant};

use tightfit_conv::{Algorithm, Notes, Problem};

use super::builds::{Builds, Built, Target};
use super::pace::{IGNORED_DELAY, MAX_DELAY_PER_STEP};
use super::rates::Rates;
use super::similar::Similar;
use super::task::CALLS;
use crate::choose::Prover;

/// The room of a step, and the known facts about the device.
pub(super) struct Room<'a> {
    /// Bounds.
    pub rates: &'a Rates,
    /// The achievements of algorithms.
    pub similar: &'a Similar,
    /// Which algorithms compute slices right.
    pub prover: Prover<'a>,
    /// Plans that are built while the program runs.
    pub builds: &'a Builds,
    /// The time that all measurements of the step may take, or `None` for any time.
    pub builds_for: Option<Duration>,
    /// Whether hardly anything has held the step up yet, so that one measurement may take any time.
    pub is_untouched: bool,
    /// The deadline for queries of the library and for enqueuing the measurement.
    pub until: Instant,
    /// Whether time is left to try an unpromising candidate.
    pub is_thorough: bool,
}

impl Room<'_> {
    /// Whether a step has room for the measurement of a candidate with these notes.
    pub fn allows(&self, problem: &Problem, algorithm: &Algorithm, notes: Notes) -> bool {
        let left = self.until.saturating_duration_since(Instant::now());
        if self.is_untouched && left + IGNORED_DELAY >= MAX_DELAY_PER_STEP {
            return true;
        }
        let call = self.similar.expected(problem, algorithm, self.rates);
        self.similar.setup(problem, algorithm, notes) + CALLS as u32 * Duration::from_nanos(call.0) <= left
    }

    /// The state of plans for a problem. The first request starts building them. Whether they need a build follows from
    /// the library's report about their algorithms, and from the time that other plans of the same engines took.
    pub fn built(&self, problem: &Problem, target: Target, notes: Notes) -> Built {
        let is_quick = match &target {
            Target::Part(algorithm) => self.similar.is_quick_to_build(problem, algorithm),
            Target::Division => false,
            Target::Configuration(ours, ..) => {
                let mut all = ours.parts().iter().flat_map(|part| part.algorithm.plain());
                all.all(|algorithm| self.similar.is_quick_to_build(problem, algorithm))
            }
        };
        let place = (self.prover.host, self.prover.device);
        self.builds.ask(place, problem, target, is_quick && !notes.contains(Notes::COMPILED), self.builds_for)
    }
}
