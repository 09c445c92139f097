//! The state of tuning: the kernels met, a job for each that is worth one, and the measurements on their way.

mod prospects;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tightfit_conv::{Device, Problem};
use tightfit_cuda::sys::driver::Stream;
use tightfit_cuda::{CudaError, Moment, Trial};
use tightfit_units::Nanos;

use super::call::{Around, TunedCall};
use super::job::{Job, Next};
use super::ledger::Ledger;
use super::outcome::{adopt, finish, keep_proofs, leave, run, save};
use super::pace::{MAX_DELAY_PER_STEP, Pace};
use super::rates::Rates;
use super::room::Room;
use super::similar::Similar;
use super::steps::Steps;
use super::task::{Purpose, Task};
use crate::choose::{Chooser, Prover, admission};
use crate::judge::{RESERVE, Truth};
use crate::kernel::Kernel;
use crate::log::trace;
use crate::ranks;
use crate::session::Session;
use crate::settings::Settings;

/// The most measurements whose results are pending.
const MAX_IN_FLIGHT: usize = 32;
/// After this number of jobs that have to wait, no further job is asked at the same call.
const MAX_WAITING_JOBS: usize = 8;
/// The time between two looks in the cache for decisions of other ranks, and the time after the last one when this rank
/// takes over their share.
const CACHE_POLL_INTERVAL: Duration = Duration::from_millis(500);
const RANK_TIMEOUT: Duration = Duration::from_secs(5);
/// Host time between two calls, with nothing enqueued, that is ignored.
const IGNORED_HOST_TIME: Duration = Duration::from_micros(100);
/// A measurement that holds up the host for this time is logged.
const LOGGED_DELAY: Duration = Duration::from_millis(100);

/// See the module.
#[derive(Default)]
pub(super) struct State {
    pace: Pace,
    rates: Rates,
    similar: Similar,
    steps: Steps,
    /// The kernels met.
    kernels: Vec<Arc<Kernel>>,
    jobs: Vec<Job>,
    /// Kernels that another rank measures.
    others: Vec<Arc<Kernel>>,
    /// The times of the other ranks' last decision in the cache, and of the last look there.
    heard: Option<Instant>,
    asked: Option<Instant>,
    flights: Vec<Flight>,
    held: Vec<Held>,
    /// The possible and the real gain of finished kernels in a step, in nanoseconds.
    hoped: f64,
    gained: f64,
    measured: u64,
    /// The number of these that are in the log.
    reported: u64,
    /// Whether only pending measurements are left.
    is_ending: bool,
    is_over: bool,
    /// Whether the first step was seen to be over.
    has_begun: bool,
}

/// A measurement on its way.
struct Flight {
    job: usize,
    task: Task,
    trial: Trial,
    /// The host's time to set it up.
    setup: Duration,
}

/// The work between two calls, until the device is past it. Host time only holds the program up if the device waits for it.
struct Held {
    from: Moment,
    to: Moment,
    /// The host's time, which counts until then.
    host: Duration,
    /// The number of the execution that was held up.
    at: u64,
}

impl State {
    /// Whether nothing is left to do.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Whether an execution may continue a measurement.
    pub fn has_work(&self) -> bool {
        self.pace.is_steady() || !self.flights.is_empty()
    }

    /// Whether this is asked for the first time.
    pub fn begins(&mut self) -> bool {
        !std::mem::replace(&mut self.has_begun, true)
    }

    /// Adds time spent on the host.
    pub fn spend(&mut self, call: &TunedCall<'_>, time: Duration) {
        self.pace.spend(time);
        call.around.chooser.spending().add(time);
    }

    /// The time spent in all.
    pub fn spent(&self) -> Duration {
        self.pace.spent()
    }

    /// Saves the measurements so far.
    pub fn save(&mut self, chooser: &Chooser, settings: &Settings) {
        self.jobs.iter_mut().for_each(|job| save(chooser, settings, job));
        keep_proofs(chooser, settings);
    }

    /// Records an execution.
    pub fn meet(&mut self, kernel: &Arc<Kernel>) {
        let address = Arc::as_ptr(kernel).addr();
        let is_new = !self.steps.knows(address);
        if is_new {
            self.kernels.push(kernel.clone());
        }
        self.is_over &= !kernel.is_open();
        self.is_ending &= !kernel.is_open();
        let is_end_of_step = self.steps.on_execution(address, Instant::now());
        self.pace.on_execution(is_new, self.steps.length(), is_end_of_step);
    }

    /// Reads the results of ended measurements.
    fn receive(&mut self, call: &TunedCall<'_>) {
        let pace = &mut self.pace;
        self.held.retain(|Held { from, to, host, at }| match to.since(from) {
            Ok(Some(device)) => {
                let device = Duration::from_nanos(device.0);
                if device.max(*host) > MAX_DELAY_PER_STEP {
                    trace!("measuring held up a step by {device:.1?}, {host:.1?} of it on the host");
                }
                pace.correct(*at, *host, device);
                call.around.chooser.spending().correct(*host, device);
                false
            }
            Ok(None) => true,
            Err(_) => false,
        });
        let (mut place, before) = (0, self.flights.len());
        while let Some(flight) = self.flights.get(place) {
            let outcome = match flight.trial.outcome() {
                Ok(None) => {
                    place += 1;
                    continue;
                }
                Ok(outcome) => outcome,
                Err(error) => {
                    trace!("a measurement failed: {error}");
                    None
                }
            };
            let Flight { job, task, trial, setup } = self.flights.swap_remove(place);
            drop(trial);
            let Some(job) = self.jobs.iter_mut().find(|known| id(known) == job) else { continue };
            if let Some(outcome) = &outcome {
                let took = Duration::from_nanos(outcome.took.0);
                if took > MAX_DELAY_PER_STEP {
                    trace!("{}: {} took {took:.1?}, {} expected", job.problem(), task.purpose, task.expected);
                }
                job.spend(took, 1);
                self.measured += outcome.times.iter().flatten().count() as u64;
                if let (Purpose::Part(problem, algorithm) | Purpose::Pilot(problem, algorithm), Some(time)) =
                    (&task.purpose, outcome.times.first().and_then(|times| times.last()))
                {
                    self.rates.add(problem, *time);
                    self.similar.add(problem, algorithm, *time);
                    self.similar.add_setup(problem, algorithm, setup);
                }
            }
            let (problem, scale) = (*job.problem(), job.kernel.question.scale());
            let device = job.kernel.question.device;
            let truth = |at| {
                let pattern = call.around.host.pattern(device, problem.types().storage()).ok()?;
                Truth::begin(problem, scale, pattern, at)
            };
            job.receive(task, outcome, truth);
            if let Some(theirs) = job.theirs() {
                self.rates.add(&problem, theirs);
                job.kernel.set_framework_time(theirs);
            }
        }
        // A program may train for long without waiting for the device. Only such a wait would free the memory.
        if self.flights.is_empty()
            && before > 0
            && let Err(error) = call.around.host.give_back(call.device)
        {
            trace!("memory of measurements: {error}");
        }
    }

    /// Reads the results that are there, and goes on with the next measurement.
    ///
    /// # Safety
    /// As [`super::Tuner::between_calls`].
    pub unsafe fn go_on(&mut self, call: &TunedCall<'_>, session: &mut Session) {
        self.receive(call);
        if self.is_ending {
            self.is_over = self.flights.is_empty();
        }
        if self.is_ending || !self.pace.is_steady() {
            return;
        }
        for (problem, algorithm, time) in call.builds.take_new() {
            self.similar.add_build(&problem, &algorithm, time);
        }
        let device = session.guest.device().clone();
        self.listen(call, &device);
        self.leave_closed(call, session);
        self.begin_jobs(call, &device);
        if let Some(job) = self.jobs.iter_mut().find(|job| Arc::ptr_eq(&job.kernel, call.own.kernel)) {
            job.meet(call.handle);
        }
        let (started, host) = (Instant::now(), call.around.host);
        // SAFETY: forwarded to the caller.
        let Ok(stream) = (unsafe { host.stream(call.handle) }) else { return };
        // SAFETY: the stream belongs to the handle, on the device, and not capturing.
        let moment = || unsafe { host.moment(call.device, stream) }.ok();
        let before = self.flights.len();
        // SAFETY: forwarded to the caller.
        let from = unsafe { self.enqueue(call, session, stream, started, &moment) };
        call.builds.go_on();
        let host = started.elapsed();
        if (self.flights.len() > before || host > IGNORED_HOST_TIME)
            && let Some((from, to)) = from.zip(moment())
        {
            self.held.push(Held { from, to, host, at: self.pace.executions() });
        }
    }

    /// Enqueues the jobs' next measurements on the stream, while this step has room. Returns the moment before the first
    /// job was asked. If no job can continue here, enqueues nothing and returns `None`.
    ///
    /// # Safety
    /// As [`super::Tuner::between_calls`]; the stream belongs to the handle.
    unsafe fn enqueue(
        &mut self,
        call: &TunedCall<'_>,
        session: &mut Session,
        stream: Stream,
        started: Instant,
        moment: &dyn Fn() -> Option<Moment>,
    ) -> Option<Moment> {
        let budget = call.around.settings.budget;
        let (mut waiting, mut from) = (HashSet::new(), None);
        loop {
            if self.pace.is_over(budget) {
                self.give_up();
                return from;
            }
            let coming: Nanos = self.flights.iter().map(|flight| flight.task.expected).sum();
            let coming = Duration::from_nanos(coming.0) + started.elapsed();
            if self.flights.len() >= MAX_IN_FLIGHT || !self.pace.has_room(coming, budget) {
                return from;
            }
            let is_half_left = self.pace.is_half_left(coming);
            let Some(place) = self.most_promising(call, &waiting, is_half_left) else {
                self.is_over = self.is_all_done();
                return from;
            };
            from = from.or_else(moment);
            if budget.limit().is_some() && self.is_little_left() {
                self.close_jobs(call, session);
                continue;
            }
            let is_late = self.pace.is_late(budget);
            let (left, is_thorough) = (self.pace.left(coming), budget.limit().is_none());
            let (is_untouched, until) = (left.is_none(), Instant::now() + left.unwrap_or(MAX_DELAY_PER_STEP));
            let (around, device) = (call.around, session.guest.device().clone());
            let cached = |problem: &Problem| around.chooser.cached(problem, around.settings, &device);
            let prover =
                Prover { proofs: around.chooser.proofs(), device: call.device, host: around.host, cached: &cached };
            let (rates, similar, builds) = (&self.rates, &self.similar, call.builds);
            // Building plans does not hold the program up, but its time is limited.
            let builds_for = budget.limit();
            let room = Room { rates, similar, prover, builds, builds_for, is_untouched, until, is_thorough };
            let (job, begun) = (&mut self.jobs[place], Instant::now());
            let next = job.next(session, Some(&call.own), is_late, &room);
            let chosen = begun.elapsed();
            job.spend(chosen, 0);
            match next {
                Next::Wait => {
                    waiting.insert(id(job));
                    if waiting.len() >= MAX_WAITING_JOBS {
                        return from;
                    }
                }
                Next::Later => return from,
                Next::Swap(ours) => run(&job.kernel, ours),
                Next::End(verdict) => {
                    let job = self.jobs.swap_remove(place);
                    self.learn(&job, &verdict);
                    finish(call, job, verdict);
                }
                Next::Run(task) => {
                    let task = (*task).expecting(job.problem(), job.now(), &self.rates, &self.similar);
                    if !self.pace.is_within(coming + Duration::from_nanos(task.expected.0), budget) {
                        leave(call, session, self.jobs.swap_remove(place));
                        continue;
                    }
                    // SAFETY: the stream belongs to the handle, on the device, and not capturing; the programs were made on
                    // the handle just now.
                    let trial = unsafe { call.around.host.trial(call.device, stream, task.course(RESERVE)) };
                    let setup = begun.elapsed();
                    if setup > LOGGED_DELAY {
                        trace!(
                            "{}: setting up {} took {setup:.1?}, {chosen:.1?} of it before its first launch",
                            job.problem(),
                            task.purpose
                        );
                    }
                    match trial {
                        Ok(trial) => self.flights.push(Flight { job: id(job), task, trial, setup }),
                        Err(error) => {
                            trace!("{}: not measured: {error}", job.problem());
                            if matches!(error, CudaError::Cudnn { .. }) {
                                call.builds.turn_off(call.around.host, call.device);
                            }
                            if matches!(error, CudaError::Driver { .. }) && !error.is_out_of_memory() {
                                // The program will see it soon enough.
                                self.give_up();
                                return from;
                            }
                            job.receive(task, None, |_| None);
                        }
                    }
                }
            }
        }
    }

    /// A choice that is still open stays as it is.
    fn give_up(&mut self) {
        self.kernels.iter().for_each(|kernel| kernel.close());
        self.is_ending = true;
        self.is_over = self.flights.is_empty();
    }

    /// Ends the jobs of kernels that are no longer tuned.
    fn leave_closed(&mut self, call: &TunedCall<'_>, session: &mut Session) {
        while let Some(place) = self.jobs.iter().position(|job| !is_open(&job.kernel)) {
            leave(call, session, self.jobs.swap_remove(place));
        }
    }

    /// Whether a kernel was executed in the last steps. A kernel of a validation, or one that a framework only tried,
    /// may never be again: its job rests until it is.
    fn is_executed(&self, kernel: &Kernel) -> bool {
        self.steps.calls_a_step(std::ptr::from_ref(kernel).addr()) > 0.0
    }

    /// Whether a kernel is tuned again when it is executed.
    fn rests(&self, kernel: &Kernel) -> bool {
        is_open(kernel) && !self.is_executed(kernel)
    }

    /// The kernels that have a job, here or in another rank.
    fn known(&self) -> impl Iterator<Item = &Arc<Kernel>> {
        self.jobs.iter().map(|job| &job.kernel).chain(&self.others)
    }

    /// Whether this kernel needs a job.
    fn is_due(&self, kernel: &Arc<Kernel>) -> bool {
        kernel.is_undecided() && self.is_executed(kernel) && !self.known().any(|it| Arc::ptr_eq(it, kernel))
    }

    /// Whether nothing is left to do for the executed kernels.
    fn is_all_done(&self) -> bool {
        self.flights.is_empty()
            && self.known().all(|kernel| self.rests(kernel))
            && !self.kernels.iter().any(|kernel| self.is_due(kernel))
    }

    /// Adds a job for each kernel that is still executed, when the kernel executed now is a new one.
    fn begin_jobs(&mut self, call: &TunedCall<'_>, device: &Device) {
        self.others.retain(|kernel| is_open(kernel));
        let is_due = |kernel: &&Arc<Kernel>| kernel.question.device == call.device && self.is_due(kernel);
        if !is_due(&call.own.kernel) {
            return;
        }
        let due: Vec<Arc<Kernel>> = self.kernels.iter().filter(is_due).cloned().collect();
        for kernel in due {
            if !ranks::is_own(&kernel.question.problem)
                && call.around.chooser.cache(call.around.settings, kernel.terms.tune).is_some()
            {
                self.heard.get_or_insert_with(Instant::now);
                self.others.push(kernel);
            } else {
                self.begin(kernel, call, device);
            }
        }
    }

    fn begin(&mut self, kernel: Arc<Kernel>, call: &TunedCall<'_>, device: &Device) {
        let question = &kernel.question;
        let (cached, division) = call.around.chooser.known(question, kernel.terms, call.around.settings, device);
        let ledger = Ledger::new(&question.problem, cached, division);
        let admission = admission(question, call.around.settings);
        let Around { chooser, settings, .. } = *call.around;
        let errors = chooser.errors(question, kernel.terms, settings, device, false);
        self.jobs.push(Job::new(kernel, device.clone(), ledger, errors, admission));
    }

    /// Takes over the decisions of other ranks. Kernels that they leave undecided for long become jobs of this one.
    fn listen(&mut self, call: &TunedCall<'_>, device: &Device) {
        if self.others.is_empty() || self.asked.is_some_and(|asked| asked.elapsed() < CACHE_POLL_INTERVAL) {
            return;
        }
        self.asked = Some(Instant::now());
        let is_here = |kernel: &Arc<Kernel>| kernel.question.device == call.device;
        let (here, elsewhere) = std::mem::take(&mut self.others).into_iter().partition(is_here);
        self.others = elsewhere;
        let mut left = Vec::new();
        for kernel in here {
            let decision = call.around.chooser.decision(&kernel.question, kernel.terms, call.around.settings, device);
            match decision {
                Some(decision) => {
                    self.heard = Some(Instant::now());
                    adopt(&kernel, decision);
                }
                None => left.push(kernel),
            }
        }
        let is_silent = self.heard.is_none_or(|heard| heard.elapsed() > RANK_TIMEOUT);
        if self.jobs.is_empty() && self.flights.is_empty() && is_silent {
            left.drain(..).for_each(|kernel| self.begin(kernel, call, device));
        }
        self.others.append(&mut left);
    }

    /// Shows the progress of tuning on a terminal.
    pub fn show(&self, call: &TunedCall<'_>) {
        let done = self.kernels.iter().filter(|kernel| !kernel.is_open()).count();
        let left = call.around.settings.budget.limit().map(|limit| limit.saturating_sub(self.pace.spent()));
        call.around.progress.show(call.around.settings, done, self.kernels.len(), left);
    }

    /// Drops the jobs that are left, except resting ones.
    fn close_jobs(&mut self, call: &TunedCall<'_>, session: &mut Session) {
        let jobs = std::mem::take(&mut self.jobs);
        let (resting, left) = jobs.into_iter().partition(|job| self.rests(&job.kernel));
        self.jobs = resting;
        left.into_iter().for_each(|job: Job| leave(call, session, job));
    }

    /// Drops all jobs that are left. Returns whether anything was measured since the last end.
    pub fn end(&mut self, call: &TunedCall<'_>, session: &mut Session) -> bool {
        self.close_jobs(call, session);
        call.builds.end();
        call.around.chooser.proofs().end();
        keep_proofs(call.around.chooser, call.around.settings);
        let others = std::mem::take(&mut self.others);
        let (resting, left): (_, Vec<_>) = others.into_iter().partition(|kernel| self.rests(kernel));
        self.others = resting;
        left.iter().for_each(|kernel| kernel.close());
        let is_news = self.measured > self.reported;
        self.reported = self.measured;
        is_news
    }
}

/// Whether a better choice is still looked for.
fn is_open(kernel: &Kernel) -> bool {
    kernel.is_open() && !kernel.is_captured()
}

/// A job's own number: its kernel's address.
fn id(job: &Job) -> usize {
    Arc::as_ptr(&job.kernel).addr()
}
