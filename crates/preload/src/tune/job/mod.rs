//! The stages of one kernel's decision.
//!
//! ```text
//! own        times the framework's choice                     -> how much could be gained
//! guess      a guess within the limit, not compared yet       -> plainly wrong?
//! survey     times candidates, one after another, first the   -> the fastest configuration within the reported workspace
//!            parts of the running choice if it was not timed yet
//! duel       alternates it and the running choice on one data -> faster by more than the noise?
//! compare    the outputs of both, against 64-bit arithmetic   -> as accurate? (under a limit: not plainly wrong?)
//! ```
//!
//! Comparisons of earlier jobs and processes are reused. A wrong choice that runs is replaced by any right one. A choice
//! that is far faster than the running one replaces it before the end of the survey, which continues.

mod compare;
mod survey;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tightfit_conv::optimize::divide;
use tightfit_conv::{Algorithm, Candidate, Configuration, Device, DivisionCost, Notes, Problem};
use tightfit_cuda::sys::cudnn::Handle;
use tightfit_cuda::{CourseResult, Guest, GuestProgram};
use tightfit_profile::{Admission, Comparison};
use tightfit_units::{Bytes, Nanos};

use super::builds::{Built, Target};
use super::ledger::{Ledger, Wanted};
use super::room::Room;
use super::task::{Own, Purpose, Task};
use crate::judge::{self, Errors, Speedup, Truth, is_worth_it, rounds, sampled, timed};
use crate::kernel::{ActiveChoice, Kernel};
use crate::session::Session;
use compare::Pending;

/// Each measurement is expected to gain this share of the gain of the one before: libraries name their best algorithms
/// first.
const GAIN_PER_MEASUREMENT: f64 = 0.85;
/// A kernel that was executed this number of times on other handles, one after another, has moved.
const MOVED_AFTER_CALLS: u32 = 16;
/// A choice that is faster by this factor is used before the survey has ended.
const EARLY_SPEEDUP: f64 = 1.5;

/// A kernel on its way.
pub(super) struct Job {
    pub kernel: Arc<Kernel>,
    /// The terms for which its measurements are valid.
    pub device: Device,
    stage: Stage,
    ledger: Ledger,
    admission: Admission,
    /// Time of the framework's choice, once measured.
    theirs: Option<Nanos>,
    /// Errors of configurations, and comparisons that are not in the cache yet.
    errors: Errors,
    new_compared: Vec<Comparison>,
    attempts: usize,
    /// The program's handle for it, once one is known, and how often it was executed on others since.
    handle: Option<(Handle, u32)>,
    /// The running choice, while its outputs are being compared and the survey continues.
    guess: Option<Box<Pending>>,
    /// Choices that were found wrong while they ran.
    wrong: Option<Configuration>,
    /// Whether every candidate was measured that the survey asks for, except candidates that could not be built in time.
    is_surveyed: bool,
    is_cut: bool,
    /// Whether memory is free for the framework's choice in addition to the running one.
    is_own_there: bool,
    /// The candidate to measure next, if that is known.
    wanted: Option<Wanted>,
    /// Algorithms that were tried on a small convolution first.
    piloted: HashSet<Algorithm>,
    /// Whether the tried configuration was chosen before the end of the survey, and the time of the last such one.
    is_early: bool,
    early: Option<Nanos>,
    /// The cost of its measurements so far, and their number.
    spent: (Duration, u32),
}

enum Stage {
    Own,
    Guess,
    Survey,
    Duel(Configuration),
    Compare(Box<Pending>),
    Done(Verdict),
}

/// How it ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    /// The choice stays.
    Stays,
    /// This runs from now on.
    Ours(Configuration),
}

/// The next step.
pub(super) enum Next {
    Run(Box<Task>),
    /// This choice runs from now on, and the survey continues.
    Swap(Configuration),
    /// Nothing in this step, because it has no room for the measurement.
    Later,
    /// Nothing yet: something is being computed, or the kernel must be about to be executed.
    Wait,
    End(Verdict),
}

impl Job {
    /// A kernel, the terms for which its measurements are valid, its known candidates, and configurations' known errors.
    pub fn new(kernel: Arc<Kernel>, device: Device, ledger: Ledger, errors: Errors, admission: Admission) -> Job {
        Job {
            kernel,
            device,
            stage: Stage::Own,
            ledger,
            admission,
            theirs: None,
            errors,
            new_compared: Vec::new(),
            attempts: 0,
            handle: None,
            guess: None,
            wrong: None,
            is_surveyed: false,
            is_cut: false,
            is_own_there: true,
            wanted: None,
            piloted: HashSet::new(),
            is_early: false,
            early: None,
            spent: (Duration::ZERO, 0),
        }
    }

    /// Adds a cost.
    pub fn spend(&mut self, time: Duration, measurements: u32) {
        self.spent = (self.spent.0 + time, self.spent.1 + measurements);
    }

    /// The expected gain of the next measurement, as a share of the first one's.
    pub fn prospects(&self) -> f64 {
        GAIN_PER_MEASUREMENT.powi(self.spent.1 as i32)
    }

    /// The cost of a measurement, if any was made.
    pub fn cost(&self) -> Option<Duration> {
        self.spent.0.checked_div(self.spent.1)
    }

    /// Time of the framework's choice, once known.
    pub fn theirs(&self) -> Option<Nanos> {
        self.theirs
    }

    /// Whether every candidate was measured.
    pub fn is_surveyed(&self) -> bool {
        self.is_surveyed && !self.is_cut
    }

    /// The measurements that are not in the cache yet.
    pub fn ledger(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// Comparisons that are not in the cache yet.
    pub fn take_compared(&mut self) -> Vec<Comparison> {
        std::mem::take(&mut self.new_compared)
    }

    /// Whether a configuration is accurate enough, or `None` if it was not compared.
    fn allows(&self, ours: &Configuration) -> Option<bool> {
        self.errors.allow(&self.kernel.question, self.kernel.terms, ours)
    }

    /// Whether the running choice was found to be wrong.
    pub fn runs_wrong(&self) -> bool {
        self.wrong.as_ref().is_some_and(|wrong| self.is_running(wrong))
    }

    /// Whether a configuration is the running choice, without regard to its time.
    fn is_running(&self, one: &Configuration) -> bool {
        let running = self.kernel.running();
        running.configuration().is_some_and(|now| now.without_times() == one.without_times())
    }

    /// The convolution.
    pub fn problem(&self) -> &Problem {
        &self.kernel.question.problem
    }

    /// The reported workspace, within the limit of the decision.
    fn limit(&self) -> Bytes {
        self.kernel.terms.limit.bytes().min(self.kernel.reported().workspace())
    }

    /// Whether the next measurement runs the framework's own choice, which needs its plan.
    pub fn needs_own(&self) -> bool {
        matches!(self.stage, Stage::Own | Stage::Guess | Stage::Duel(_))
    }

    /// The kernel is about to be executed on this handle.
    pub fn meet(&mut self, handle: Handle) {
        let (own, elsewhere) = self.handle.unwrap_or((handle, 0));
        self.handle = match () {
            () if own == handle => Some((own, 0)),
            () if elsewhere < MOVED_AFTER_CALLS => Some((own, elsewhere + 1)),
            () => Some((handle, 0)),
        };
    }

    /// Whether its candidates may be set up on a handle. Sums of halves run compiled steps, which are built for one handle alone.
    pub fn may_run_on(&self, handle: Handle) -> bool {
        Guest::division_workspace(self.problem()) == Bytes::ZERO || self.handle.is_none_or(|(own, _)| own == handle)
    }

    /// The time of a call as it runs now, if that was measured and is not wrong.
    pub fn now(&self) -> Option<Nanos> {
        match self.kernel.running().configuration() {
            Some(_) if self.runs_wrong() => None,
            Some(now) if now.time() > Nanos::ZERO => Some(now.time()),
            Some(guess) => self.ledger.time_of(guess),
            None => self.theirs,
        }
    }

    /// The next measurement on this handle in a step with this room, where `own` is the framework's choice. If it is late,
    /// decides by the known measurements.
    pub fn next(&mut self, session: &mut Session, own: Option<&Own>, is_late: bool, room: &Room<'_>) -> Next {
        if self.guess.as_ref().is_some_and(|guess| guess.truth.is_known()) {
            self.compare_guess();
        }
        loop {
            if self.needs_own() && own.is_none_or(|own| !Arc::ptr_eq(own.kernel, &self.kernel)) {
                return Next::Wait;
            }
            match &self.stage {
                Stage::Own => match self.own(session, own) {
                    Some(task) => return Next::Run(Box::new(task)),
                    None => self.stage = self.after_own(),
                },
                Stage::Guess => match self.guess(session, own) {
                    Some(task) => return Next::Run(Box::new(task)),
                    None => self.stage = Stage::Survey,
                },
                Stage::Survey if is_late => self.choose(),
                Stage::Survey => match self.survey(session, room) {
                    Some(next) => return next,
                    None => self.choose(),
                },
                Stage::Duel(ours) => {
                    let ours = ours.clone();
                    match self.built(&ours, room) {
                        Built::Asked => return Next::Wait,
                        // A wrong choice gives way at any cost.
                        built if built.why_not().is_some() && !self.runs_wrong() => {
                            self.is_cut |= built == Built::Late;
                            self.stage = Stage::Done(Verdict::Stays);
                        }
                        _ => match self.duel(ours, session, own) {
                            Some(task) => return Next::Run(Box::new(task)),
                            None => self.stage = Stage::Done(Verdict::Stays),
                        },
                    }
                }
                Stage::Compare(pending) if !pending.truth.is_known() => return Next::Wait,
                Stage::Compare(_) => self.compare(),
                Stage::Done(_) if !self.is_early && self.guess.is_some() => return Next::Wait,
                Stage::Done(verdict) if !self.is_early => return Next::End(verdict.clone()),
                Stage::Done(verdict) => {
                    let verdict = verdict.clone();
                    self.is_early = false;
                    self.stage = Stage::Survey;
                    if let Verdict::Ours(ours) = verdict {
                        return Next::Swap(ours);
                    }
                }
            }
        }
    }

    /// The framework's choice as it would run. If it does not fit the reported workspace, it only serves comparisons.
    fn own(&self, session: &mut Session, own: Option<&Own<'_>>) -> Option<Task> {
        let program = self.own_program(session, own)?;
        Some(Task::alone(Purpose::Own, program))
    }

    /// The survey, unless the running choice has to be compared first, which needs the kernel's next execution.
    fn after_own(&self) -> Stage {
        if self.guessed().is_some() { Stage::Guess } else { Stage::Survey }
    }

    /// The framework's choice: by the program's own plan if it is at hand.
    fn own_program(&self, session: &mut Session, own: Option<&Own<'_>>) -> Option<Arc<GuestProgram>> {
        let chosen = &self.kernel.question.chosen;
        if let Some(Own { plan: Some((plan, ids)), .. }) = own {
            // SAFETY: the plan is about to be executed by the program, for this convolution, so it is alive and stays so until
            // the stream has done what is enqueued before that execution.
            let program = unsafe { session.guest.own(self.problem(), *plan, *ids, chosen.workspace) };
            return Some(Arc::new(program));
        }
        let question = &self.kernel.question;
        session.set_up(question, &judge::own(question))
    }

    /// The calls that a configuration takes in addition to the running choice's.
    fn more_calls(&self, ours: &Configuration) -> usize {
        let calls = |one: &Configuration| one.parts().iter().map(Candidate::calls).sum::<usize>();
        calls(ours).saturating_sub(self.kernel.running().configuration().map_or(0, |now| calls(now)))
    }

    /// The fastest measured configuration, if it promises to be faster than the running choice.
    fn best(&self) -> Option<Configuration> {
        let admits = |notes| self.admission.admits(notes);
        let (mut known, cost) = self.ledger.candidates(self.limit(), admits);
        let (question, terms) = (&self.kernel.question, self.kernel.terms);
        let inaccurate = self.errors.inaccurate(question, terms, |one| self.ledger.notes(one));
        let is_inaccurate = |one: &Algorithm| inaccurate.contains(one, self.ledger.notes(one));
        known.retain(|Candidate { algorithm, .. }| !algorithm.plain().any(is_inaccurate));
        let running = self.kernel.running();
        let is_better = |ours: &Configuration| {
            let is_faster = self.now().is_none_or(|now| is_worth_it(ours.time(), now, self.more_calls(ours)));
            let is_other = running.configuration().is_none_or(|now| **now != *ours) && !self.is_own(ours);
            is_faster && is_other && self.allows(ours) != Some(false)
        };
        divide(self.problem(), &known, self.limit(), cost).ok().filter(is_better)
    }

    /// Chooses the best configuration, which may be the running choice.
    fn choose(&mut self) {
        self.stage = match self.best() {
            Some(ours) => Stage::Duel(ours),
            None => Stage::Done(self.now().map_or(Verdict::Stays, |time| self.stays(time))),
        };
    }

    /// Chooses the best configuration if it is far faster than the running choice, and than an earlier choice of this kind.
    fn choose_early(&mut self) {
        let known = [self.now(), self.early].into_iter().flatten().min();
        if let Some(ours) = self.best().filter(|ours| is_far(ours, known)) {
            (self.is_early, self.early) = (true, Some(ours.time()));
            self.stage = Stage::Duel(ours);
        }
    }

    /// Whether a configuration is the framework's choice itself.
    fn is_own(&self, ours: &Configuration) -> bool {
        self.kernel.can_run_own() && judge::is_own(ours, &self.kernel.question)
    }

    /// The state of a configuration's plans as it runs: with its own factors they are not the plans that were timed.
    fn built(&self, ours: &Configuration, room: &Room<'_>) -> Built {
        let question = &self.kernel.question;
        let mut notes = ours.parts().iter().flat_map(|part| part.algorithm.plain()).map(|one| self.ledger.notes(one));
        let is_compiled = notes.any(|notes| notes.contains(Notes::COMPILED));
        let target = Target::Configuration(ours.clone(), question.scale(), question.base);
        room.built(self.problem(), target, if is_compiled { Notes::COMPILED } else { Notes::NONE })
    }

    /// The configuration and the running choice, alternating, or `None` if one of them cannot be set up. With the
    /// framework's choice if that is neither, to compare with, as long as there is memory for it.
    fn duel(&self, ours: Configuration, session: &mut Session, own: Option<&Own<'_>>) -> Option<Task> {
        let (question, chosen) = (&self.kernel.question, judge::own(&self.kernel.question));
        let is_far = is_far(&ours, self.now());
        let outputs = sampled(self.problem(), &ours);
        let (programs, compared) = match self.kernel.running() {
            ActiveChoice::Ours(now) => {
                let mut programs = vec![session.set_up(question, now)?, session.set_up(question, &ours)?];
                if self.is_own_there {
                    programs.extend(self.own_program(session, own));
                }
                (programs, vec![(**now).clone(), ours, chosen])
            }
            _ => (vec![self.own_program(session, own)?, session.set_up(question, &ours)?], vec![chosen, ours]),
        };
        let rounds = rounds(self.now().or(self.theirs).unwrap_or_default(), is_far);
        Some(Task { purpose: Purpose::Duel, programs, rounds, compared, outputs, expected: Nanos::ZERO })
    }

    /// Takes the result of a task, or `None` if it failed. Begins to compute the truth for a faster configuration.
    pub fn receive(
        &mut self,
        task: Task,
        outcome: Option<CourseResult>,
        truth: impl FnOnce(Vec<usize>) -> Option<Truth>,
    ) {
        let last = |outcome: &CourseResult| outcome.times.first().and_then(|times| times.last().copied());
        let time = outcome.as_ref().and_then(last);
        match (task.purpose, std::mem::replace(&mut self.stage, Stage::Survey)) {
            (Purpose::Own, _) => match time {
                // Without the time of the framework's choice nothing can be judged, unless that choice cannot run
                // anyway.
                None if self.kernel.can_run_own() => self.stage = Stage::Done(Verdict::Stays),
                time => {
                    self.theirs = time.map(|time| time.max(Nanos(1)));
                    self.stage = self.after_own();
                }
            },
            (Purpose::Guess, _) if outcome.is_none() && task.programs.len() > 1 && self.is_own_there => {
                self.is_own_there = false;
                self.stage = Stage::Guess;
            }
            (Purpose::Guess, _) => {
                if let (Some(ours), Some(CourseResult { outputs, .. })) = (task.compared.first().cloned(), outcome)
                    && let Some(truth) = truth(task.outputs)
                {
                    self.guess = Some(Box::new(Pending { ours, truth, compared: task.compared, outputs }));
                }
            }
            (Purpose::Part(problem, algorithm), _) => match time {
                Some(time) => {
                    self.ledger.take_down(*problem, algorithm, time);
                    self.choose_early();
                }
                None => self.ledger.refuse(*problem, algorithm),
            },
            (Purpose::Pilot(..), _) => {}
            (Purpose::Division, _) => {
                let workspace = Guest::division_workspace(self.problem());
                let cost = time.map_or(DivisionCost::NEVER, |time| DivisionCost { time, workspace });
                self.ledger.take_down_division(cost);
            }
            (Purpose::Duel, Stage::Duel(ours)) if outcome.is_none() && task.programs.len() > 2 && self.is_own_there => {
                self.is_own_there = false;
                self.stage = Stage::Duel(ours);
            }
            (Purpose::Duel, Stage::Duel(ours)) => {
                let won = outcome.and_then(|outcome| Some((Speedup::of(&outcome, self.more_calls(&ours))?, outcome)));
                self.stage = match won {
                    Some((speedup, outcome)) if speedup.is_clear || self.runs_wrong() => {
                        self.set_theirs(speedup.theirs);
                        let ours = timed(ours, speedup.ours);
                        self.accept(ours, (task.compared, outcome.outputs), || truth(task.outputs))
                    }
                    Some((speedup, _)) => {
                        self.set_theirs(speedup.theirs);
                        Stage::Done(self.stays(speedup.theirs))
                    }
                    None => Stage::Done(Verdict::Stays),
                };
            }
            (Purpose::Duel, stage) => self.stage = stage,
        }
    }

    /// The choice stays, with its time if that was not known.
    fn stays(&self, time: Nanos) -> Verdict {
        match self.kernel.running().configuration() {
            Some(now) if now.time() == Nanos::ZERO => Verdict::Ours(timed((**now).clone(), time)),
            _ => Verdict::Stays,
        }
    }

    /// The time of alternating counts, if the framework's choice took part.
    fn set_theirs(&mut self, time: Nanos) {
        if self.kernel.can_run_own() && !matches!(self.kernel.running(), ActiveChoice::Ours(_)) {
            self.theirs = Some(time);
        }
    }

    /// Whether a configuration was left out for its error.
    pub fn was_inaccurate(&self) -> bool {
        self.attempts > 0
    }
}

/// Whether a configuration is far faster than this time, or the time is unknown.
fn is_far(ours: &Configuration, known: Option<Nanos>) -> bool {
    known.is_none_or(|time| ours.time().ratio(time) * EARLY_SPEEDUP < 1.0)
}
