//! Under `--tune first`, before anything runs, the fastest configuration alternates with the framework's choice. (Otherwise
//! this happens between calls.) The result is kept for later processes.

use std::time::Instant;

use tightfit_conv::Configuration;
use tightfit_cuda::{Course, Host};
use tightfit_profile::Decision;
use tightfit_units::Nanos;

use super::choice::{Choice, answer, answer_of, own_if_fits};
use super::chooser::{Chooser, Knowledge};
use super::compared::run;
use super::surveyed::Survey;
use crate::judge::{ATTEMPTS, RESERVE, Speedup, Truth, comparisons, log_inaccurate, own, rounds, sampled, timed};
use crate::kernel::{Answer, Question};
use crate::log::trace;
use crate::session::Session;
use crate::settings::{Limit, Settings, Terms, Tune};

impl Chooser {
    /// The choice within a limit by the measurements, and the time of the framework's choice. A framework's choice that
    /// fits is only replaced by one that is faster when both alternate, and accurate enough if that can be found out.
    pub(super) fn judged(
        &self,
        question: &Question,
        terms: Terms,
        settings: &Settings,
        session: &mut Session,
        host: &Host,
        known: &Knowledge,
    ) -> (Answer, Option<Nanos>) {
        let (fits, device) = (question.chosen.workspace <= terms.limit.bytes(), session.guest.device().clone());
        let errors = || self.errors(question, terms, settings, &device, false);
        let mut theirs = known.framework_time;
        for attempt in 0..ATTEMPTS {
            let mut ours = match answer(question, terms, Some(known), &errors(), settings, session) {
                Answer::Ours(ours) => ours,
                answer => return (answer, theirs),
            };
            let started = Instant::now();
            let is_new = errors().allow(question, terms, &ours).is_none();
            if fits {
                let speedup = self.duel(question, settings, &ours, is_new, session, host);
                self.spending.add(started.elapsed());
                // A configuration that could not be compared replaces nothing, for example because the device is full.
                let Some(speedup) = speedup else { return (Answer::Kept, theirs) };
                theirs = Some(speedup.theirs);
                if !speedup.is_clear {
                    return (Answer::Kept, theirs);
                }
                ours = timed(ours, speedup.ours);
            } else if is_new {
                self.compare(question, settings, session, host, std::slice::from_ref(&ours));
                self.spending.add(started.elapsed());
            }
            match errors().allow(question, terms, &ours) {
                Some(true) => return (Answer::Ours(ours), theirs),
                None => return (if fits { Answer::Kept } else { Answer::Ours(ours) }, theirs),
                Some(false) => {
                    log_inaccurate(question, &ours);
                    if attempt == 0 {
                        self.spending.add_inaccurate();
                    }
                }
            }
        }
        let answer =
            if fits { Answer::Kept } else { answer(question, terms, Some(known), &errors(), settings, session) };
        (answer, known.framework_time)
    }

    /// Alternates the framework's choice and a configuration on separate data. If the configuration is faster and new,
    /// notes the errors of both. Returns `None` if that is not possible.
    fn duel(
        &self,
        question: &Question,
        settings: &Settings,
        ours: &Configuration,
        is_new: bool,
        session: &mut Session,
        host: &Host,
    ) -> Option<Speedup> {
        let (problem, own) = (question.problem, own(question));
        let programs = [session.set_up(question, &own)?, session.set_up(question, ours)?];
        let outputs = sampled(&problem, ours);
        let course =
            Course { programs: &programs, rounds: rounds(ours.time(), false), outputs: &outputs, reserve: RESERVE };
        let outcome = run(question, course, session, host)?;
        let speedup = Speedup::of(&outcome, ours.parts().len().saturating_sub(1))?;
        if !speedup.is_clear {
            trace!("{}: {ours} takes {}, the framework's choice {}", problem, speedup.ours, speedup.theirs);
        } else if is_new {
            let pattern = host.pattern(question.device, problem.types().storage()).ok()?;
            let errors = Truth::begin(problem, question.scale(), pattern, outputs)?.errors(&outcome.outputs)?;
            let new = comparisons(question, [own, ours.clone()].into_iter().zip(errors).collect());
            self.keep_compared(question, new, settings, session.guest.device());
        }
        Some(speedup)
    }

    /// The choice of an earlier process under `--tune first`.
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
        // If the framework's choice does not fit, the measurements are enough. Decisions found between calls may come from
        // a shorter survey.
        let is_compared = question.chosen.workspace <= terms.limit.bytes();
        let is_whole = || Survey::new(&self.cache, question, terms, settings, &device).is_done();
        if !is_final || !(is_sliced || is_compared && is_whole()) {
            return None;
        }
        let answer = answer_of(configuration, question, terms, session)?;
        self.spending().add_cached(1);
        let reported = own_if_fits(question, terms);
        Some(Choice { answer, reported, is_open: false, framework_time, is_lasting: true })
    }

    /// Saves the decision under `--tune first`, when everything was measured.
    pub(super) fn remember(
        &self,
        question: &Question,
        terms: Terms,
        settings: &Settings,
        session: &Session,
        (answer, framework_time): (&Answer, Option<Nanos>),
    ) {
        let configuration = match answer {
            // A choice by queries alone has no time, and is not worth remembering.
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
