//! How accurate configurations are: what won in turns, and what runs without anybody having compared it.

use tightfit_core::{Configuration, Nanos};

use super::{Job, Stage, Verdict};
use crate::judge::{self, ATTEMPTS, Truth, log_inaccurate, sampled};
use crate::kernel::Running;
use crate::session::Session;
use crate::tune::task::{Own, Purpose, Task};

/// Configurations whose outputs are still to be compared.
pub(super) struct Comparison {
    /// A faster configuration, or what runs.
    pub ours: Configuration,
    pub truth: Truth,
    /// It and others that ran on the same data, and their outputs, as far as they had room.
    pub compared: Vec<Configuration>,
    pub outputs: Vec<Vec<f32>>,
}

impl Job {
    /// What runs, if nobody has compared it.
    pub(super) fn guessed(&self) -> Option<&Configuration> {
        self.kernel.running().configuration().map(|now| &**now).filter(|now| self.allows(now).is_none())
    }

    /// What was guessed, and the framework's choice as long as there is memory for it.
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

    /// Accepts what won, if it is known to be accurate; compares it if nobody has, with the framework's choice if that had room.
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
            Some(truth) => Stage::Compare(Box::new(Comparison { ours, truth, compared, outputs })),
            None if !is_comparable => Stage::Done(Verdict::Ours(ours)),
            None => Stage::Done(Verdict::Stays),
        }
    }

    /// What follows from the comparison of what won.
    pub(super) fn compare(&mut self) {
        let Stage::Compare(comparison) = std::mem::replace(&mut self.stage, Stage::Done(Verdict::Stays)) else {
            return;
        };
        let ours = self.take_down(*comparison);
        self.stage = match self.allows(&ours) {
            Some(true) => Stage::Done(Verdict::Ours(ours)),
            Some(false) => self.reject(&ours),
            None => Stage::Done(Verdict::Stays),
        };
    }

    /// What follows from the comparison of what runs: nothing if it is right, or does not run any more.
    pub(super) fn compare_guess(&mut self) {
        let Some(comparison) = self.guess.take() else { return };
        let now = self.take_down(*comparison);
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

    /// Takes down the errors that a comparison has shown; gives whose they are.
    fn take_down(&mut self, Comparison { ours, truth, compared, outputs }: Comparison) -> Configuration {
        for (one, error) in compared.into_iter().zip(truth.errors(&outputs).unwrap_or_default()) {
            self.errors.add(&one, error);
            self.new_errors.push((one, error));
        }
        ours
    }

    /// What runs is not accurate enough, and gives way to the framework's choice if that fits, else to whatever is.
    fn give_way(&mut self, now: &Configuration) {
        log_inaccurate(&self.kernel.question, now);
        self.attempts += 1;
        self.wrong = Some(now.clone());
        if self.kernel.can_run_own() {
            // It fits, as was just asked.
            let _ = self.kernel.adopt(Running::Kept);
        }
    }

    /// Leaves out what is not accurate enough, with all by the same algorithms, and chooses again.
    fn reject(&mut self, ours: &Configuration) -> Stage {
        log_inaccurate(&self.kernel.question, ours);
        self.attempts += 1;
        // What runs and is wrong must give way to something.
        let goes_on = self.attempts < ATTEMPTS || self.runs_wrong();
        self.best().filter(|_| goes_on).map_or(Stage::Done(Verdict::Stays), Stage::Duel)
    }
}
