//! Under `--tune first`, before anything runs: the fastest configuration in turns with the framework's choice, as between calls
//! otherwise, and what came of it for later processes.

use std::time::{Duration, Instant};

use tightfit_core::profile::Decision;
use tightfit_core::{Algorithm, Candidate, Configuration, DivisionCost, Nanos, Notes};
use tightfit_cuda::{Course, Host, Outcome};

use super::chooser::{Chooser, Knowledge};
use super::decided::answer_of;
use super::surveyed::Survey;
use super::{Choice, answer, own_if_fits};
use crate::judge::{ATTEMPTS, Inaccurate, RESERVE, Speedup, Truth, rounds, sampled, timed};
use crate::kernel::{Answer, Question};
use crate::log::trace;
use crate::session::Session;
use crate::settings::{Limit, Settings, Terms, Tune};

/// What takes longer than this is not waited for.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often the end is asked for.
const PAUSE: Duration = Duration::from_micros(200);

/// What turns have shown.
enum Judgment {
    /// Faster by more than the noise and as accurate, with both times.
    Better(Configuration, Nanos),
    /// Not faster by more than the noise.
    NoFaster(Nanos),
    Inaccurate,
}

impl Chooser {
    /// What to run within a limit by what was measured, and the time of the framework's choice; only what holds in turns with the
    /// framework's choice replaces it.
    pub(super) fn judged(
        &self,
        question: &Question,
        terms: Terms,
        settings: &Settings,
        session: &mut Session,
        host: &Host,
        mut known: Knowledge,
    ) -> (Answer, Option<Nanos>) {
        let mut inaccurate = Inaccurate::default();
        for _ in 0..ATTEMPTS {
            let answer = answer(question, terms, Some(&known), settings, session);
            let ours = match answer {
                Answer::Ours(ours) if question.chosen.workspace <= terms.limit.bytes() => ours,
                answer => return (answer, known.framework_time),
            };
            let started = Instant::now();
            let judgment = judge(question, terms, &ours, session, host);
            self.spending.add(started.elapsed());
            match judgment {
                Some(Judgment::Better(ours, theirs)) => return (Answer::Ours(ours), Some(theirs)),
                Some(Judgment::NoFaster(theirs)) => return (Answer::Kept, Some(theirs)),
                Some(Judgment::Inaccurate) => {
                    trace!("{}: {ours} is less accurate than {}", question.problem, question.chosen.algorithm);
                    let offers = session.guest.offers(&question.problem).unwrap_or_default();
                    let notes =
                        |one: &Algorithm| offers.iter().find(|it| it.algorithm == *one).map_or(Notes(0), |it| it.notes);
                    let parts = ours.parts().iter().flat_map(|part| part.algorithm.plain());
                    let parts = parts.filter(|one| **one != question.chosen.algorithm);
                    inaccurate.extend(parts.map(|one| (one.clone(), notes(one))).collect());
                    let is_out = |one: &Candidate| one.algorithm.plain().any(|it| inaccurate.contains(it, notes(it)));
                    known.candidates.retain(|candidate| !is_out(candidate));
                }
                // Nothing is replaced by what could not be compared, for example because the device is full.
                None => return (Answer::Kept, known.framework_time),
            }
        }
        self.spending.add_inaccurate();
        (Answer::Kept, known.framework_time)
    }

    /// What an earlier process found under `--tune first`.
    pub(super) fn remembered(
        &self,
        question: &Question,
        terms: Terms,
        settings: &Settings,
        session: &mut Session,
    ) -> Option<Choice> {
        if !is_remembered(terms) {
            return None;
        }
        let device = session.guest.device().clone();
        let Decision { configuration, framework_time, is_final } = self.decision(question, terms, settings, &device)?;
        let is_sliced = configuration.as_ref().is_some_and(Configuration::is_sliced);
        // Where the framework's choice does not fit, the measurements say as much. Decisions found between calls may come of a
        // shorter survey.
        let is_compared = question.chosen.workspace <= terms.limit.bytes();
        let is_whole = || Survey::new(&self.cache, question, terms, settings, &device).is_done();
        if !is_final || !(is_sliced || is_compared && is_whole()) {
            return None;
        }
        let answer = answer_of(configuration, question, terms, session)?;
        self.spending().add_cached(1);
        let told = own_if_fits(question, terms);
        Some(Choice { answer, told, is_open: false, framework_time, is_lasting: true })
    }

    /// Saves what was found under `--tune first`, when everything was measured.
    pub(super) fn remember(
        &self,
        question: &Question,
        terms: Terms,
        settings: &Settings,
        session: &Session,
        (answer, framework_time): (&Answer, Option<Nanos>),
    ) {
        let configuration = match answer {
            // What only queries found has no time, and is not worth remembering.
            Answer::Ours(ours) if ours.time() > Nanos::ZERO => Some(ours.clone()),
            Answer::Kept if framework_time.is_some() => None,
            _ => return,
        };
        let decision = Decision { configuration, framework_time, is_final: true };
        self.keep_decision(question, terms, settings, session.guest.device(), &decision);
    }
}

/// Whether answers on these terms are remembered; parts of a total are not decided for one kernel alone.
pub(super) fn is_remembered(terms: Terms) -> bool {
    terms.tune == Tune::First && !matches!(terms.limit, Limit::Total(_))
}

/// Runs both in turns on data of ours, and compares their outputs with 64-bit arithmetic; none if that is not possible.
fn judge(
    question: &Question,
    terms: Terms,
    ours: &Configuration,
    session: &mut Session,
    host: &Host,
) -> Option<Judgment> {
    let problem = question.problem;
    let own = session.set_up(question, &Configuration::new(vec![question.own()], DivisionCost::default()))?;
    let programs = [own, session.set_up(question, ours)?];
    let outputs = sampled(&problem, ours);
    let course =
        Course { programs: &programs, rounds: rounds(ours.time(), false), outputs: &outputs, reserve: RESERVE };
    let outcome = run(question, course, session, host)?;
    let speedup = Speedup::of(&outcome, ours.parts().len().saturating_sub(1))?;
    if !speedup.is_clear {
        trace!("{}: {ours} takes {}, and the own choice {}", problem, speedup.ours, speedup.theirs);
        return Some(Judgment::NoFaster(speedup.theirs));
    }
    let storage = problem.types().storage();
    let pattern = host.pattern(question.device, storage).ok()?;
    let truth = Truth::begin(problem, question.scale(), pattern, outputs)?;
    let [theirs, own] = outcome.outputs.as_slice() else { return None };
    Some(match truth.allows(storage, terms.is_auto, Some(theirs), own) {
        true => Judgment::Better(timed(ours.clone(), speedup.ours), speedup.theirs),
        false => Judgment::Inaccurate,
    })
}

/// Runs a course on the program's stream and waits for its end.
fn run(question: &Question, course: Course<'_>, session: &Session, host: &Host) -> Option<Outcome> {
    let _beside = host.beside_captures().ok()?;
    let failed = |error| trace!("{}: not compared: {error}", question.problem);
    let stream = session.guest.stream().map_err(failed).ok()?;
    // SAFETY: the stream is that of the session's handle, which the program is calling with, on the question's device, and not
    // capturing, or nothing would have been measured; the programs were made on the handle.
    let trial = unsafe { host.trial(question.device, stream, course) }.map_err(failed).ok()?;
    let started = Instant::now();
    loop {
        match trial.outcome().map_err(failed).ok()? {
            Some(outcome) => return Some(outcome),
            None if started.elapsed() > PATIENCE => return None,
            None => std::thread::sleep(PAUSE),
        }
    }
}
