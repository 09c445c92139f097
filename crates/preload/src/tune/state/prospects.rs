//! The gain that is still possible: whether to go on, and which job promises most for its cost.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tightfit_units::Nanos;

use super::{State, id};
use crate::tune::call::TunedCall;
use crate::tune::job::{Job, Verdict};

/// The stand-in for a choice that does not fit is expected to take this number of times its time.
const OVER_LIMIT_SLOWDOWN: u64 = 4;
/// Tuning ends when less than this share of a step is likely to be gained.
const MIN_GAIN_OF_STEP: f64 = 0.01;
/// A possible gain is believed until kernels that could have gained this share of a step have not.
const BELIEVED_GAIN_OF_STEP: f64 = 0.05;

impl State {
    /// The possible gain of a job in a step, in nanoseconds.
    fn gain(&self, job: &Job) -> f64 {
        let calls = self.steps.calls_a_step(id(job));
        if calls == 0.0 {
            return 0.0;
        }
        let a_call = match (job.now(), job.theirs()) {
            (Some(now), _) => self.rates.gain(job.problem(), now),
            (None, Some(theirs)) => theirs * OVER_LIMIT_SLOWDOWN,
            (None, None) => return f64::INFINITY,
        };
        a_call.0 as f64 * calls
    }

    /// Records the possible and the real gain of a job that has ended.
    pub(super) fn learn(&mut self, job: &Job, verdict: &Verdict) {
        let Some(theirs) = job.theirs().filter(|_| job.kernel.can_run_own()) else { return };
        let ours = if let Verdict::Ours(ours) = verdict { ours.time() } else { job.now().unwrap_or(theirs) };
        let a_step = |a_call: Nanos| a_call.0 as f64 * self.steps.calls_a_step(id(job));
        let [hoped, gained] =
            [self.rates.gain(job.problem(), theirs), Nanos(theirs.0.saturating_sub(ours.0))].map(a_step);
        self.hoped += hoped;
        self.gained += gained;
    }

    /// Whether all remaining jobs promise too little, in view of the gains of similar ones.
    pub(super) fn is_little_left(&self) -> bool {
        let Some(step) = self.steps.time().map(|step| step.as_nanos() as f64) else { return false };
        let left: f64 = self.jobs.iter().map(|job| self.gain(job)).sum();
        let doubt = BELIEVED_GAIN_OF_STEP * step;
        left * (self.gained + doubt) / (self.hoped + doubt) < MIN_GAIN_OF_STEP * step
    }

    /// The index of the next job: own choices first, then the largest gain for its cost. `None` if no job can continue. If
    /// the job can only continue on another handle, half of the step is left to it.
    pub(super) fn most_promising(
        &self,
        call: &TunedCall<'_>,
        waiting: &HashSet<usize>,
        is_half_left: bool,
    ) -> Option<usize> {
        let in_flight: HashSet<usize> = self.flights.iter().map(|flight| flight.job).collect();
        let is_free = |job: &Job| {
            let is_here = job.kernel.question.device == call.device;
            let is_possible = !job.needs_own() || Arc::ptr_eq(&job.kernel, call.own.kernel);
            is_here
                && is_possible
                && self.is_executed(&job.kernel)
                && !in_flight.contains(&id(job))
                && !waiting.contains(&id(job))
        };
        let costs: Vec<Duration> = self.jobs.iter().filter_map(Job::cost).collect();
        let typical = costs.iter().sum::<Duration>() / u32::try_from(costs.len().max(1)).unwrap_or(1);
        let worth =
            |job: &Job| self.gain(job) * job.prospects() / job.cost().unwrap_or(typical).as_nanos().max(1) as f64;
        let best = |may_go_on: &dyn Fn(&Job) -> bool| {
            let free = self.jobs.iter().enumerate().filter(|(_, job)| may_go_on(job));
            free.max_by(|(_, a), (_, b)| a.needs_own().cmp(&b.needs_own()).then_with(|| worth(a).total_cmp(&worth(b))))
        };
        let (place, job) = best(&is_free)?;
        if job.may_run_on(call.handle) {
            return Some(place);
        }
        let other = best(&|job| is_free(job) && job.may_run_on(call.handle)).filter(|_| is_half_left);
        other.map(|(place, _)| place)
    }
}
