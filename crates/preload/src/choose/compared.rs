//! Comparisons of configurations with 64-bit arithmetic. Known ones come from this process or the cache; new ones are made
//! here, before anything runs.
//!
//! ```text
//! found between calls                    compared there (`tune`)
//! first, its own choice fits or not      compared here, alternating with that choice if it fits (`judged`)
//! for a total                            compared here, all that may get a part
//! by queries alone                       runs; compared between calls
//! cached, or the budget is spent         what is known; the rest runs only under an explicit limit
//! ```

use std::time::{Duration, Instant};

use tightfit_conv::optimize::front;
use tightfit_conv::{Algorithm, Configuration, Device, Notes};
use tightfit_cuda::{Course, CourseResult, Host};
use tightfit_profile::Comparison;

use super::chooser::{Chooser, Knowledge};
use super::unsaved::Entry;
use crate::judge::{ATTEMPTS, Errors, RESERVE, Truth, comparisons, is_own, log_inaccurate, own, sampled};
use crate::kernel::{Answer, Question};
use crate::lock::lock;
use crate::log::trace;
use crate::session::Session;
use crate::settings::{Settings, Terms, Tune};

/// The most configurations that run on the same data at once: their outputs fit one buffer.
const MAX_AT_ONCE: usize = 8;
/// The longest wait for a result.
const MAX_WAIT: Duration = Duration::from_secs(20);
/// The time between two looks for the end.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

impl Chooser {
    /// The known errors of a question's configurations. Under capture, no file is opened for them.
    pub fn errors(
        &self,
        question: &Question,
        terms: Terms,
        settings: &Settings,
        device: &Device,
        is_capturing: bool,
    ) -> Errors {
        let key = (device.clone(), question.comparison_key());
        if let Some(known) = lock(&self.compared).get(&key) {
            return known.clone();
        }
        let is_read = !is_capturing && terms.tune != Tune::Heuristic;
        let Some(cache) = is_read.then(|| self.cache(settings, terms.tune)).flatten() else { return Errors::default() };
        let read = Errors::new(self.cache.read(cache.comparisons(device, &key.1)).unwrap_or_default());
        lock(&self.compared).entry(key).or_insert(read).clone()
    }

    /// Records comparisons for a question, also for later processes.
    pub fn keep_compared(&self, question: &Question, new: Vec<Comparison>, settings: &Settings, device: &Device) {
        if new.is_empty() {
            return;
        }
        let key = question.comparison_key();
        let mut all = lock(&self.compared);
        let known = all.entry((device.clone(), key.clone())).or_default();
        for one in &new {
            let beside = one.own.as_ref().map_or(String::new(), |(own, error)| format!(", {own} by {error:.1e}"));
            trace!("{}: {} errs by {:.1e}{beside}", question.problem, one.configuration, one.error);
            known.add(one.clone());
        }
        drop(all);
        if let Some(cache) = self.cache(settings, Tune::Measure) {
            self.unsaved.write(cache, device, Entry::Compared(key, new));
        }
    }

    /// Compares configurations that are about to run with 64-bit arithmetic, and with the framework's choice if that has room; which
    /// are then known. Returns whether that was possible.
    pub(super) fn compare(
        &self,
        question: &Question,
        settings: &Settings,
        session: &mut Session,
        host: &Host,
        ours: &[Configuration],
    ) -> bool {
        let own = own(question);
        let mut all = true;
        for group in ours.chunks(MAX_AT_ONCE) {
            let with_own: Vec<Configuration> = group.iter().chain([&own]).cloned().collect();
            let new = compare(question, &with_own, session, host).or_else(|| compare(question, group, session, host));
            all &= new.is_some();
            self.keep_compared(question, new.unwrap_or_default(), settings, session.guest.device());
        }
        all
    }

    /// Compares all that may get a part of a total, until all of them are accurate enough.
    pub(super) fn compare_front(
        &self,
        question: &Question,
        terms: Terms,
        settings: &Settings,
        session: &mut Session,
        host: &Host,
        known: &Knowledge,
    ) {
        let device = session.guest.device().clone();
        let mut is_counted = false;
        for _ in 0..ATTEMPTS {
            let errors = self.errors(question, terms, settings, &device, false);
            let known = accurate(known, question, terms, &errors, session);
            let front =
                front(&question.problem, &known.candidates, terms.limit.bytes(), known.cost).unwrap_or_default();
            let is_new = |one: &Configuration| {
                let is_unknown = errors.allow(question, terms, one).is_none() && !is_own(one, question);
                is_unknown && !session.is_refused(question, one)
            };
            let new: Vec<Configuration> = front.into_iter().filter(is_new).collect();
            if new.is_empty() || !self.compare(question, settings, session, host, &new) {
                return;
            }
            let errors = self.errors(question, terms, settings, &device, false);
            for one in new.iter().filter(|one| errors.allow(question, terms, one) == Some(false)) {
                log_inaccurate(question, one);
                if !std::mem::replace(&mut is_counted, true) {
                    self.spending().add_inaccurate();
                }
            }
        }
    }
}

/// The choice that runs without a comparison now. It is never one that is known to be less accurate. If nothing may be
/// worse than the framework's choice, it is one that is known to be as accurate.
pub(super) fn unless_unknown(answer: Answer, question: &Question, terms: Terms, errors: &Errors) -> Answer {
    match answer {
        Answer::Ours(ours) if terms.is_auto && errors.allow(question, terms, &ours) != Some(true) => {
            trace!("{}: {ours} was not compared with {} yet", question.problem, question.chosen.algorithm);
            Answer::Kept
        }
        answer => answer,
    }
}

/// The known candidates, without algorithms that are known to be less accurate than the framework's choice.
pub(super) fn accurate(
    known: &Knowledge,
    question: &Question,
    terms: Terms,
    errors: &Errors,
    session: &mut Session,
) -> Knowledge {
    let mut notes = notes(question, session);
    let inaccurate = errors.inaccurate(question, terms, &mut notes);
    let mut known = known.clone();
    if !inaccurate.is_empty() {
        known.candidates.retain(|one| !one.algorithm.plain().any(|plain| inaccurate.contains(plain, notes(plain))));
    }
    known
}

/// The library's report about algorithms for a question's convolution, which is asked for once it exists.
pub(super) fn notes(question: &Question, session: &mut Session) -> impl FnMut(&Algorithm) -> Notes {
    let mut offers = None;
    move |algorithm| {
        let offers = offers.get_or_insert_with(|| session.guest.offers(&question.problem).unwrap_or_default());
        offers.iter().find(|offer| offer.algorithm == *algorithm).map_or(Notes::NONE, |offer| offer.notes)
    }
}

/// Compares configurations, which run once on the same data, without the ones that cannot be set up. Returns `None` if that
/// is not possible, for example because the device is full.
fn compare(question: &Question, ours: &[Configuration], session: &mut Session, host: &Host) -> Option<Vec<Comparison>> {
    let problem = question.problem;
    let set_up = ours.iter().filter_map(|one| Some((one.clone(), session.set_up(question, one)?)));
    let (ours, programs): (Vec<_>, Vec<_>) = set_up.unzip();
    let mut outputs: Vec<usize> = ours.iter().flat_map(|one| sampled(&problem, one)).collect();
    outputs.sort_unstable();
    outputs.dedup();
    let course = Course { programs: &programs, rounds: 1, outputs: &outputs, reserve: RESERVE };
    let outcome = run(question, course, session, host)?;
    let pattern = host.pattern(question.device, problem.types().storage()).ok()?;
    let truth = Truth::begin(problem, question.scale(), pattern, outputs)?;
    Some(comparisons(question, ours.into_iter().zip(truth.errors(&outcome.outputs)?).collect()))
}

/// Runs a course on the program's stream and waits for its end.
pub(super) fn run(question: &Question, course: Course<'_>, session: &Session, host: &Host) -> Option<CourseResult> {
    let _beside = host.beside_captures().ok()?;
    let failed = |error| trace!("{}: not compared: {error}", question.problem);
    let stream = session.guest.stream().map_err(failed).ok()?;
    // SAFETY: the stream belongs to the session's handle, which the program is calling with, on the question's device,
    // and not capturing, or nothing would have been measured; the programs were made on the handle.
    let trial = unsafe { host.trial(question.device, stream, course) }.map_err(failed).ok()?;
    let started = Instant::now();
    loop {
        match trial.outcome().map_err(failed).ok()? {
            Some(outcome) => return Some(outcome),
            None if started.elapsed() > MAX_WAIT => return None,
            None => std::thread::sleep(POLL_INTERVAL),
        }
    }
}
