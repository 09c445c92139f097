//! Compares the accuracy of configurations: of the winner of a duel, and of a running configuration that was not
//! compared yet.

use tightfit_conv::Configuration;
use tightfit_units::Nanos;

use super::{Job, Stage, Verdict};
use crate::judge::{self, ATTEMPTS, Truth, comparisons, log_inaccurate, sampled};
use crate::kernel::ActiveChoice;
use crate::session::Session;
use crate::tune::task::{Own, Purpose, Task};

/// Configurations whose outputs are still to be compared.
pub(super) struct Pending {
    /// A faster configuration, or the running choice.
    pub ours: Configuration,
    pub truth: Truth,
    /// The winner and others that ran on the same data, and the outputs of those that had room.
    pub compared: Vec<Configuration>,
    pub outputs: Vec<Vec<f32>>,
}

impl Job {
    /// The running choice, if it was not compared yet.
    pub(super) fn guessed(&self) -> Option<&Configuration> {
        self.kernel.running().configuration().map(|now| &**now).filter(|now| self.allows(now).is_none())
    }

    /// The guess, and the framework's choice while memory for it is free.
    pub(super) fn guess(&self, session: &mut Session, own: Option<&Own<'_>>) -> Option<Task> {
        let now = self.guessed()?;
        let mut programs = vec![session.set_up(&self.kernel.question, now)?];
        if self.is_own_there {
            programs.extend(self.own_program(session, own));
        }
        let compared = vec![now.clone(), judge::own(&self.kernel.question)];
        let outputs = sampled(self.problem(), now);
        Some(Task { purpose: Purpose::Guess, programs, rounds: 1, compared, outputs, expected: Nanos::ZERO })
    }

    /// Accepts the winner if it is known to be accurate. Otherwise compares it, together with the framework's choice if
    /// that had room.
    pub(super) fn accept(
        &mut self,
        ours: Configuration,
        (compared, outputs): (Vec<Configuration>, Vec<Vec<f32>>),
        truth: impl FnOnce() -> Option<Truth>,
    ) -> Stage {
        match self.allows(&ours) {
            Some(true) => return Stage::Done(Verdict::Ours(ours)),
            Some(false) => return self.reject(&ours),
            None => {}
        }
        let is_comparable = self.kernel.can_run_own() || outputs.len() > 2;
        match truth() {
            Some(truth) => Stage::Compare(Box::new(Pending { ours, truth, compared, outputs })),
            None if !is_comparable => Stage::Done(Verdict::Ours(ours)),
            None => Stage::Done(Verdict::Stays),
        }
    }

    /// The result of the winner's comparison.
    pub(super) fn compare(&mut self) {
        let Stage::Compare(pending) = std::mem::replace(&mut self.stage, Stage::Done(Verdict::Stays)) else {
            return;
        };
        let ours = self.take_down(*pending);
        self.stage = match self.allows(&ours) {
            Some(true) => Stage::Done(Verdict::Ours(ours)),
            Some(false) => self.reject(&ours),
            None => Stage::Done(Verdict::Stays),
        };
    }

    /// The result of the running choice's comparison. There is nothing to do if it is right, or if it no longer runs.
    pub(super) fn compare_guess(&mut self) {
        let Some(pending) = self.guess.take() else { return };
        let now = self.take_down(*pending);
        if self.is_running(&now) && self.allows(&now) == Some(false) {
            self.give_way(&now);
            let is_over = match &self.stage {
                Stage::Done(Verdict::Stays) => true,
                Stage::Done(Verdict::Ours(ours)) => self.allows(ours) == Some(false),
                _ => false,
            };
            if is_over {
                self.stage = Stage::Survey;
            }
        }
    }

    /// Ends the comparison early, after the current computation. Returns the new choice, if it changes.
    pub fn settle(&mut self) -> Option<Configuration> {
        self.compare_guess();
        if matches!(self.stage, Stage::Compare(_)) {
            self.compare();
        }
        match &self.stage {
            Stage::Done(Verdict::Ours(ours)) => Some(ours.clone()),
            // No time is left to alternate, so the most promising configuration is taken.
            _ if self.runs_wrong() => self.best(),
            _ => None,
        }
    }

    /// Records the result of a comparison. Returns its configuration.
    fn take_down(&mut self, Pending { ours, truth, compared, outputs }: Pending) -> Configuration {
        let errors = compared.into_iter().zip(truth.errors(&outputs).unwrap_or_default()).collect();
        for one in comparisons(&self.kernel.question, errors) {
            self.errors.add(one.clone());
            self.new_compared.push(one);
        }
        ours
    }

    /// The running choice is not accurate enough, and gives way to the framework's choice if that fits, else to any
    /// accurate one.
    fn give_way(&mut self, now: &Configuration) {
        log_inaccurate(&self.kernel.question, now);
        self.attempts += 1;
        self.wrong = Some(now.clone());
        if self.kernel.can_run_own() {
            // It fits, as was just asked.
            let _ = self.kernel.adopt(ActiveChoice::Kept);
        }
    }

    /// Leaves out an inaccurate configuration and all others by the same algorithms, and chooses again.
    fn reject(&mut self, ours: &Configuration) -> Stage {
        log_inaccurate(&self.kernel.question, ours);
        self.attempts += 1;
        // A running choice that is wrong must be replaced by some other.
        let goes_on = self.attempts < ATTEMPTS || self.runs_wrong();
        self.best().filter(|_| goes_on).map_or(Stage::Done(Verdict::Stays), Stage::Duel)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tightfit_conv::{Algorithm, Device, Measurement};
    use tightfit_profile::Admission;
    use tightfit_profile::survey::Sizes;
    use tightfit_units::Bytes;

    use super::*;
    use crate::judge::Errors;
    use crate::kernel::samples::{planned, question, terms};
    use crate::kernel::{Answer, Kernel, Kernels, Planned, samples};
    use crate::limits::Limits;
    use crate::settings::{Limit, Terms};
    use crate::tune::ledger::Ledger;

    fn configuration(algorithm: &str, time: u64) -> Configuration {
        samples::configuration(algorithm, time, 8)
    }

    /// The framework's choice, of 512 bytes, and in its place within a limit perhaps a first guess.
    fn kernel(limit: u64, answer: Answer) -> Arc<Kernel> {
        let terms = Terms { sizes: Sizes::Undivided, ..terms(Limit::PerKernel(Bytes(limit))) };
        let planned = planned(question("own"), terms, answer);
        Kernels::default().keep(
            Planned { reported: Some(Bytes(64)), is_open: true, ..planned },
            &Limits::default(),
            true,
        )
    }

    fn job(kernel: &Arc<Kernel>) -> Job {
        let device = Device { backend: "cuda".into(), name: "a".into(), library: "1".into(), threads: 0 };
        let gemm = Measurement::once(Algorithm::new("gemm"), 4, Nanos(9), Bytes(8));
        let ledger = Ledger::new(&kernel.question.problem, vec![gemm], None);
        Job::new(kernel.clone(), device, ledger, Errors::default(), Admission::default())
    }

    /// A comparison with the framework's choice whose truth is known only after a while.
    fn pending(ours: &Configuration, output: f32, kernel: &Kernel) -> Box<Pending> {
        let truth = Truth::known_after(Duration::from_millis(50), vec![1.0]);
        let compared = vec![ours.clone(), judge::own(&kernel.question)];
        Box::new(Pending { ours: ours.clone(), truth, compared, outputs: vec![vec![output], vec![1.0]] })
    }

    #[test]
    fn a_guess_that_is_still_compared_at_the_end_gives_way_if_it_is_wrong() {
        for (output, found) in [(1.0, None), (2.0, Some(configuration("gemm", 9)))] {
            let guess = configuration("fft", 0);
            let kernel = kernel(64, Answer::Ours(guess.clone()));
            let mut job = job(&kernel);
            job.guess = Some(pending(&guess, output, &kernel));
            assert_eq!(job.settle().map(|ours| ours.without_times()), found.map(|ours| ours.without_times()));
            assert_eq!((job.runs_wrong(), job.was_inaccurate()), (output > 1.0, output > 1.0));
            assert_eq!(job.take_compared().len(), 1, "for later processes");
        }
    }

    #[test]
    fn a_winner_that_is_still_compared_at_the_end_runs_if_it_is_right() {
        for (output, is_right) in [(1.0, true), (2.0, false)] {
            let ours = configuration("fft", 7);
            let kernel = kernel(1024, Answer::Kept);
            let mut job = job(&kernel);
            job.stage = Stage::Compare(pending(&ours, output, &kernel));
            assert_eq!(job.settle(), is_right.then_some(ours));
            assert_eq!(job.was_inaccurate(), !is_right);
        }
    }
}
