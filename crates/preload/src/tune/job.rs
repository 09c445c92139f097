//! One kernel's way to a decision.
//!
//! ```text
//! own        times the framework's choice                     -> how much could be gained
//! survey     times candidates, one after another, first the   -> the fastest configuration within what was told
//!            parts of what runs now if nobody has timed it
//! duel       it and what runs now, in turns, on the same data -> faster by more than the noise?
//! compare    the outputs of both, against 64-bit arithmetic   -> as accurate? (under a limit: not plainly wrong?)
//! ```
//!
//! What is far faster than what runs need not wait for the end of the survey, which goes on behind it.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tightfit_core::optimize::divide;
use tightfit_core::profile::{Admission, Profiler};
use tightfit_core::survey::{Screen, Sizes, add_slices, screened};
use tightfit_core::{Algorithm, Bytes, Candidate, Configuration, Device, DivisionCost, Error, Nanos, Problem};
use tightfit_cuda::{GuestProgram, Outcome};

use super::ledger::{Asking, Hopes, Ledger, Wanted};
use super::pilot::pilot;
use super::room::Room;
use super::task::{Own, Purpose, Task};
use crate::judge::{ATTEMPTS, Inaccurate, Speedup, Truth, is_worth_it, rounds, sampled, timed};
use crate::kernel::{Kernel, Running};
use crate::log::trace;
use crate::session::Session;

/// Each measurement is expected to gain this share of what the one before it did: libraries name their best algorithms first.
const PROSPECTS: f64 = 0.85;
/// What is known to be faster by this is used before the survey has ended.
const FAR: f64 = 1.5;

/// A kernel on its way.
pub(super) struct Job {
    pub kernel: Arc<Kernel>,
    /// What its measurements are valid for.
    pub device: Device,
    stage: Stage,
    ledger: Ledger,
    admission: Admission,
    /// Time of the framework's choice, once measured.
    theirs: Option<Nanos>,
    inaccurate: Inaccurate,
    attempts: usize,
    /// Whether every candidate was measured that the survey asks for.
    is_surveyed: bool,
    /// Whether there is memory for the framework's choice beside what runs in its place.
    is_own_there: bool,
    /// The candidate to measure next, if that is known.
    wanted: Option<Wanted>,
    /// Algorithms that were tried on a small convolution first.
    piloted: HashSet<Algorithm>,
    /// Whether what is being tried was chosen before the end of the survey, and the time of the last that was.
    is_early: bool,
    early: Option<Nanos>,
    /// What its measurements have cost so far, and their number.
    spent: (Duration, u32),
}

enum Stage {
    Own,
    Survey,
    Duel(Configuration),
    Compare(Box<Comparison>),
    Done(Verdict),
}

/// A faster configuration whose outputs are still to be compared.
struct Comparison {
    ours: Configuration,
    truth: Truth,
    /// Of the framework's choice, where that has room, and of the configuration.
    theirs: Option<Vec<f32>>,
    own: Vec<f32>,
}

/// How it ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    /// What runs stays.
    Stays,
    /// This runs from now on.
    Ours(Configuration),
}

/// What comes next.
pub(super) enum Next {
    Run(Box<Task>),
    /// This runs from now on, and the survey goes on.
    Swap(Configuration),
    /// Nothing in this step, which has no room for it.
    Later,
    /// Nothing yet: something is being computed, or the kernel must be about to be executed.
    Wait,
    End(Verdict),
}

impl Job {
    /// A kernel, what its measurements are valid for, and what is known of its candidates.
    pub fn new(kernel: Arc<Kernel>, device: Device, ledger: Ledger, admission: Admission) -> Job {
        Job {
            kernel,
            device,
            stage: Stage::Own,
            ledger,
            admission,
            theirs: None,
            inaccurate: Inaccurate::default(),
            attempts: 0,
            is_surveyed: false,
            is_own_there: true,
            wanted: None,
            piloted: HashSet::new(),
            is_early: false,
            early: None,
            spent: (Duration::ZERO, 0),
        }
    }

    /// Adds what was spent on it.
    pub fn spend(&mut self, time: Duration, measurements: u32) {
        self.spent = (self.spent.0 + time, self.spent.1 + measurements);
    }

    /// How much less the next measurement is expected to gain than the first.
    pub fn prospects(&self) -> f64 {
        PROSPECTS.powi(self.spent.1 as i32)
    }

    /// What a measurement costs, if there were any.
    pub fn cost(&self) -> Option<Duration> {
        self.spent.0.checked_div(self.spent.1)
    }

    /// Time of the framework's choice, once known.
    pub fn theirs(&self) -> Option<Nanos> {
        self.theirs
    }

    /// Whether every candidate was measured.
    pub fn is_surveyed(&self) -> bool {
        self.is_surveyed
    }

    /// What was measured and is not in the cache yet.
    pub fn ledger(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// The convolution.
    pub fn problem(&self) -> &Problem {
        &self.kernel.question.problem
    }

    /// What was told, within the limit of the decision.
    fn limit(&self) -> Bytes {
        self.kernel.terms.limit.bytes().min(self.kernel.told().workspace())
    }

    /// Whether what comes next runs the framework's own choice, for which its plan must be at hand.
    pub fn needs_own(&self) -> bool {
        matches!(self.stage, Stage::Own | Stage::Duel(_))
    }

    /// What a call takes as it runs now, if that was measured.
    pub fn now(&self) -> Option<Nanos> {
        match self.kernel.running().configuration() {
            Some(now) if now.time() > Nanos::ZERO => Some(now.time()),
            Some(guess) => self.ledger.time_of(guess),
            None => self.theirs,
        }
    }

    /// What to do next on this handle in a step with so much room, where `own` is the framework's choice; if it is late, decides by
    /// what is known.
    pub fn next(&mut self, session: &mut Session, own: Option<&Own>, is_late: bool, room: &Room<'_>) -> Next {
        loop {
            if self.needs_own() && own.is_none_or(|own| !Arc::ptr_eq(own.kernel, &self.kernel)) {
                return Next::Wait;
            }
            match &self.stage {
                Stage::Own => match self.own(session, own) {
                    Some(task) => return Next::Run(Box::new(task)),
                    None => self.stage = Stage::Survey,
                },
                Stage::Survey if is_late => self.choose(),
                Stage::Survey => match self.survey(session, room) {
                    Some(next) => return next,
                    None => self.choose(),
                },
                Stage::Duel(ours) => match self.duel(ours.clone(), session, own) {
                    Some(task) => return Next::Run(Box::new(task)),
                    None => self.stage = Stage::Done(Verdict::Stays),
                },
                Stage::Compare(comparison) if !comparison.truth.is_known() => return Next::Wait,
                Stage::Compare(_) => self.compare(),
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

    /// The framework's choice as it would run; where it does not fit what was told, so that it can be compared with.
    fn own(&self, session: &mut Session, own: Option<&Own<'_>>) -> Option<Task> {
        let program = self.own_program(session, own)?;
        Some(Task::alone(Purpose::Own, program))
    }

    fn own_program(&self, session: &mut Session, own: Option<&Own<'_>>) -> Option<Arc<GuestProgram>> {
        let chosen = &self.kernel.question.chosen;
        if let Some(Own { plan: Some((plan, ids)), .. }) = own {
            // SAFETY: the plan is about to be executed by the program, for this convolution, so it is alive and stays so until
            // the stream has done what is enqueued before that execution.
            let program = unsafe { session.guest.own(self.problem(), *plan, *ids, chosen.workspace) };
            return Some(Arc::new(program));
        }
        let question = &self.kernel.question;
        session.set_up(question, &Configuration::new(vec![question.own()], DivisionCost::default()))
    }

    /// The next candidate to time, if the step has room for it; none if there is none.
    fn survey(&mut self, session: &mut Session, room: &Room<'_>) -> Option<Next> {
        loop {
            let Some(wanted) = self.wanted.take().or_else(|| self.wanted(session, room)) else {
                self.is_surveyed = true;
                return None;
            };
            if let Wanted::Proof(slice, algorithm) = &wanted {
                if room.prover.is_right(slice, algorithm).is_some() {
                    continue;
                }
                self.wanted = Some(wanted);
                return Some(Next::Wait);
            }
            if let Wanted::Part(problem, algorithm) = &wanted
                && !room.allows(problem, algorithm, self.ledger.notes(algorithm))
            {
                self.wanted = Some(wanted);
                return Some(Next::Later);
            }
            if let Some(task) = self.pilot(&wanted, session, room) {
                return Some(Next::Run(Box::new(task)));
            }
            if let Some(task) = self.task(wanted, session) {
                return Some(Next::Run(Box::new(task)));
            }
        }
    }

    /// A small convolution to time first, where nothing is known of the algorithm and it may take long; the candidate is asked for
    /// again afterwards, unless it is hopeless by then.
    fn pilot(&mut self, wanted: &Wanted, session: &mut Session, room: &Room<'_>) -> Option<Task> {
        let Wanted::Part(problem, algorithm) = wanted else { return None };
        if room.is_thorough || !room.similar.is_new(problem, algorithm) || !self.piloted.insert(algorithm.clone()) {
            return None;
        }
        let small = pilot(problem, room.rates)?;
        let program = session.guest.part(&small, algorithm).ok()?;
        Some(Task::alone(Purpose::Pilot(Box::new(small), algorithm.clone()), Arc::new(program)))
    }

    /// Times what stopped the survey; none if that needs no time or cannot be set up, which is taken down.
    fn task(&mut self, wanted: Wanted, session: &mut Session) -> Option<Task> {
        match wanted {
            Wanted::Part(problem, algorithm) => match session.guest.part(&problem, &algorithm) {
                Ok(program) => Some(Task::alone(Purpose::Part(Box::new(problem), algorithm), Arc::new(program))),
                Err(error) => {
                    trace!("{algorithm} on {problem}: {}", error.chain());
                    self.ledger.refuse(problem, algorithm);
                    None
                }
            },
            Wanted::Division(problem) => {
                let cost = match session.guest.division(&problem) {
                    Ok(Some(program)) => return Some(Task::alone(Purpose::Division, Arc::new(program))),
                    Ok(None) => DivisionCost::default(),
                    Err(error) => {
                        trace!("dividing {problem}: {}", error.chain());
                        DivisionCost::NEVER
                    }
                };
                self.ledger.take_down_division(cost);
                None
            }
            Wanted::Proof(..) => None,
        }
    }

    /// What stops the survey; none if it is complete.
    fn wanted(&mut self, session: &mut Session, room: &Room<'_>) -> Option<Wanted> {
        let (terms, problem, limit) = (self.kernel.terms, *self.problem(), self.limit());
        let hopes = Hopes { similar: room.similar, now: self.now().filter(|_| !room.is_thorough) };
        let mut asking = Asking {
            ledger: &mut self.ledger,
            guest: &mut session.guest,
            limit,
            is_fit: terms.micro_batches() == Sizes::Fit,
            prover: room.prover,
            hopes,
            wanted: None,
        };
        if let Some(guess) = self.kernel.running().configuration().filter(|now| now.time() == Nanos::ZERO)
            && let Err(Error::Interrupted) = asking.time(guess)
        {
            return asking.wanted;
        }
        let admits = |notes| self.admission.admits(notes);
        let (sizes, is_sliced) = match asking.is_worth_dividing(&problem, terms.slices(), admits) {
            Ok(true) => (terms.micro_batches(), terms.slices()),
            Ok(false) => (Sizes::Undivided, false),
            Err(error) => {
                trace!("{problem}: {}", error.chain());
                return None;
            }
        };
        let stop = AtomicBool::new(false);
        let mut profiler = Profiler::new(&mut asking, None, &stop);
        profiler.admit(self.admission);
        let screen = if room.is_thorough { Screen::Twice } else { Screen::Once };
        let mut sliced = Vec::new();
        let surveyed = screened(sizes, screen, &problem, &[limit], &mut profiler).and_then(|mut found| {
            let added = if is_sliced {
                add_slices(&problem, &[limit], terms.divide, screen, &mut profiler, &mut found)
            } else {
                Ok(())
            };
            sliced = found.candidates;
            added
        });
        match surveyed {
            Ok(()) | Err(Error::Interrupted) => {}
            Err(error) => trace!("{problem}: {}", error.chain()),
        }
        let wanted = asking.wanted;
        self.ledger.set_sliced(sliced);
        wanted
    }

    /// How many more calls of ours a configuration takes than what runs.
    fn more_calls(&self, ours: &Configuration) -> usize {
        let calls = |one: &Configuration| one.parts().iter().map(Candidate::calls).sum::<usize>();
        calls(ours).saturating_sub(self.kernel.running().configuration().map_or(0, |now| calls(now)))
    }

    /// The fastest configuration of what was measured, if it promises to be faster than what runs.
    fn best(&self) -> Option<Configuration> {
        let admits = |notes| self.admission.admits(notes);
        let (mut known, cost) = self.ledger.candidates(self.limit(), admits);
        let is_inaccurate = |one: &Algorithm| self.inaccurate.contains(one, self.ledger.notes(one));
        known.retain(|Candidate { algorithm, .. }| !algorithm.plain().any(is_inaccurate));
        let running = self.kernel.running();
        let is_better = |ours: &Configuration| {
            let is_faster = self.now().is_none_or(|now| is_worth_it(ours.time(), now, self.more_calls(ours)));
            is_faster && running.configuration().is_none_or(|now| **now != *ours) && !self.is_own(ours)
        };
        divide(self.problem(), &known, self.limit(), cost).ok().filter(is_better)
    }

    /// Chooses the best configuration, or what runs.
    fn choose(&mut self) {
        self.stage = match self.best() {
            Some(ours) => Stage::Duel(ours),
            None => Stage::Done(self.now().map_or(Verdict::Stays, |time| self.stays(time))),
        };
    }

    /// Chooses the best configuration if it is far faster than what runs, and than what was chosen in this way before.
    fn choose_early(&mut self) {
        let known = [self.now(), self.early].into_iter().flatten().min();
        if let Some(ours) = self.best().filter(|ours| is_far(ours, known)) {
            (self.is_early, self.early) = (true, Some(ours.time()));
            self.stage = Stage::Duel(ours);
        }
    }

    /// Whether a configuration is the framework's choice itself.
    fn is_own(&self, ours: &Configuration) -> bool {
        let chosen = &self.kernel.question.chosen.algorithm;
        self.kernel.can_run_own() && matches!(ours.parts(), [part] if part.algorithm == *chosen)
    }

    /// The configuration and what runs now, in turns; none if one of them cannot be set up. With the framework's choice if that
    /// is neither, to compare with, as long as there is memory for it.
    fn duel(&self, ours: Configuration, session: &mut Session, own: Option<&Own<'_>>) -> Option<Task> {
        let mut programs = match self.kernel.running() {
            Running::Ours(now) => vec![session.set_up(&self.kernel.question, now)?],
            _ => vec![self.own_program(session, own)?],
        };
        programs.push(session.set_up(&self.kernel.question, &ours)?);
        if matches!(self.kernel.running(), Running::Ours(_)) && self.is_own_there {
            programs.extend(self.own_program(session, own));
        }
        let rounds = rounds(self.now().or(self.theirs).unwrap_or_default(), is_far(&ours, self.now()));
        let outputs = sampled(self.problem(), &ours);
        Some(Task { purpose: Purpose::Duel, programs, rounds, outputs, expected: Nanos::ZERO })
    }

    /// Takes what a task has shown; none if it failed. Begins to compute the truth where there is a faster configuration.
    pub fn receive(&mut self, task: Task, outcome: Option<Outcome>, truth: impl FnOnce(Vec<usize>) -> Option<Truth>) {
        let last = |outcome: &Outcome| outcome.times.first().and_then(|times| times.last().copied());
        let time = outcome.as_ref().and_then(last);
        match (task.purpose, std::mem::replace(&mut self.stage, Stage::Survey)) {
            (Purpose::Own, _) => match time {
                Some(time) => self.theirs = Some(time.max(Nanos(1))),
                // Without its time nothing can be judged, unless it cannot run anyway.
                None if self.kernel.can_run_own() => self.stage = Stage::Done(Verdict::Stays),
                None => {}
            },
            (Purpose::Part(problem, algorithm), _) => match time {
                Some(time) => {
                    self.ledger.take_down(*problem, algorithm, time);
                    self.choose_early();
                }
                None => self.ledger.refuse(*problem, algorithm),
            },
            (Purpose::Pilot(..), _) => {}
            (Purpose::Division, _) => {
                let workspace = tightfit_cuda::Guest::division_workspace(self.problem());
                let cost = time.map_or(DivisionCost::NEVER, |time| DivisionCost { time, workspace });
                self.ledger.take_down_division(cost);
            }
            (Purpose::Duel, Stage::Duel(ours)) if outcome.is_none() && task.programs.len() > 2 && self.is_own_there => {
                self.is_own_there = false;
                self.stage = Stage::Duel(ours);
            }
            (Purpose::Duel, Stage::Duel(ours)) => {
                let is_comparable = task.programs.len() > 2 || self.kernel.can_run_own();
                let won = outcome.and_then(|outcome| Some((Speedup::of(&outcome, self.more_calls(&ours))?, outcome)));
                self.stage = match won {
                    Some((speedup, outcome)) if speedup.is_clear => {
                        self.set_theirs(speedup.theirs);
                        let ours = timed(ours, speedup.ours);
                        // Of the framework's choice, which is the last if it is not what runs now.
                        let mut outputs = outcome.outputs;
                        let theirs = if outputs.len() > 2 { outputs.pop() } else { outputs.first().cloned() };
                        let theirs = theirs.filter(|_| is_comparable);
                        let own = outputs.pop().filter(|_| theirs.is_some() || !is_comparable);
                        match own.zip(truth(task.outputs)) {
                            Some((own, truth)) => Stage::Compare(Box::new(Comparison { ours, truth, theirs, own })),
                            None if !is_comparable => Stage::Done(Verdict::Ours(ours)),
                            None => Stage::Done(Verdict::Stays),
                        }
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

    /// What runs stays, with its time if that was not known.
    fn stays(&self, time: Nanos) -> Verdict {
        match self.kernel.running().configuration() {
            Some(now) if now.time() == Nanos::ZERO => Verdict::Ours(timed((**now).clone(), time)),
            _ => Verdict::Stays,
        }
    }

    /// The time in turns counts, if the framework's choice took part.
    fn set_theirs(&mut self, time: Nanos) {
        if self.kernel.can_run_own() && !matches!(self.kernel.running(), Running::Ours(_)) {
            self.theirs = Some(time);
        }
    }

    fn compare(&mut self) {
        let Stage::Compare(comparison) = std::mem::replace(&mut self.stage, Stage::Done(Verdict::Stays)) else {
            return;
        };
        let Comparison { ours, truth, theirs, own } = *comparison;
        let is_strict = self.kernel.terms.is_auto;
        if truth.allows(self.problem().types().storage(), is_strict, theirs.as_deref(), &own) {
            self.stage = Stage::Done(Verdict::Ours(ours));
            return;
        }
        trace!("{}: {ours} is less accurate than {}", self.problem(), self.kernel.question.chosen.algorithm);
        let chosen = &self.kernel.question.chosen.algorithm;
        let parts = ours.parts().iter().flat_map(|part| part.algorithm.plain()).filter(|one| *one != chosen);
        self.inaccurate.extend(parts.map(|one| (one.clone(), self.ledger.notes(one))).collect());
        self.attempts += 1;
        if self.attempts < ATTEMPTS {
            self.choose();
        }
    }

    /// Whether a configuration was left out for its error.
    pub fn was_inaccurate(&self) -> bool {
        self.attempts > 0
    }
}

/// Whether a configuration is far faster than what takes so long, or nobody knows how long.
fn is_far(ours: &Configuration, known: Option<Nanos>) -> bool {
    known.is_none_or(|time| ours.time().ratio(time) * FAR < 1.0)
}
