//! Answers without measurements: an earlier process's decision, a shipped one, or a choice to run until `tune` finds a
//! better one.

use std::collections::BTreeMap;
use std::sync::Arc;

use tightfit_conv::{Configuration, Device, DivisionCost, Measurement, Problem};
use tightfit_cuda::Host;
use tightfit_profile::survey::Sizes;
use tightfit_profile::{Decision, DecisionKey};
use tightfit_units::Bytes;

use super::choice::{Choice, answer, answer_of, own_if_fits};
use super::chooser::{Chooser, admission, is_deterministic};
use super::heuristic;
use super::unsaved::Entry;
use crate::kernel::{Answer, Question};
use crate::log::trace;
use crate::session::Session;
use crate::settings::{Limit, Settings, Terms, Tune};

/// Everything a decision depends on.
fn key(question: &Question, terms: Terms, settings: &Settings) -> DecisionKey {
    // A choice under an explicit limit may be less accurate.
    let of_auto = if terms.is_auto { " auto" } else { "" };
    DecisionKey {
        problem: question.problem,
        chosen: question.chosen.algorithm.clone(),
        chosen_workspace: question.chosen.workspace,
        limit: terms.limit.bytes(),
        sizes: format!("{}{of_auto}", terms.division()),
        admission: admission(question, settings),
        factors: question.factors,
        base: question.base,
    }
}

impl Chooser {
    /// An earlier process's decision, or else a shipped one, if it can be set up; opens the cache.
    pub(super) fn decided(
        &self,
        question: &Question,
        terms: Terms,
        settings: &Settings,
        session: &mut Session,
    ) -> Option<Choice> {
        if matches!(terms.limit, Limit::Total(_)) {
            return None;
        }
        let device = session.guest.device();
        let own = self.decision(question, terms, settings, device);
        let is_shipped = own.is_none();
        let shipped = || self.shipped.decision(settings, device, &key(question, terms, settings));
        let Decision { configuration, framework_time, is_final } = own.or_else(shipped)?;
        let answer = answer_of(configuration, question, terms, session)?;
        self.spending().add_cached(1);
        if is_shipped {
            self.spending().add_shipped();
            trace!("{}: begins with a shipped decision", question.problem);
        }
        let is_open = !is_final && self.can_tune(terms, settings);
        // A later choice is not bound to an earlier one.
        let in_play = is_open.then(|| most_in_play(question, terms, settings, session)).flatten();
        let reported = own_if_fits(question, terms).max(in_play);
        Some(Choice { answer, reported, is_open, framework_time, is_lasting: true })
    }

    /// A decision that the cache holds.
    pub fn decision(
        &self,
        question: &Question,
        terms: Terms,
        settings: &Settings,
        device: &Device,
    ) -> Option<Decision> {
        let cache = self.cache(settings, terms.tune)?;
        self.cache.read(cache.decision(device, &key(question, terms, settings))).flatten()
    }

    /// Saves a decision for later processes.
    pub fn keep_decision(
        &self,
        question: &Question,
        terms: Terms,
        settings: &Settings,
        device: &Device,
        decision: &Decision,
    ) {
        let Some(cache) = self.cache(settings, terms.tune) else { return };
        let entry = Entry::Decision(key(question, terms, settings), decision.clone());
        self.unsaved.write(cache, device, entry);
    }

    /// The cache's entries of a convolution: times, and the cost of dividing.
    pub fn known(
        &self,
        question: &Question,
        terms: Terms,
        settings: &Settings,
        device: &Device,
    ) -> (Vec<Measurement>, Option<DivisionCost>) {
        let Some(cache) = self.cache(settings, terms.tune) else { return (Vec::new(), None) };
        let measured = self.cached(&question.problem, settings, device);
        (measured, self.cache.read(cache.division_cost(device, &question.problem)).flatten())
    }

    /// The times that the cache has of a problem at any size.
    pub fn cached(&self, problem: &Problem, settings: &Settings, device: &Device) -> Vec<Measurement> {
        let Some(cache) = self.cache(settings, Tune::Measure) else { return Vec::new() };
        self.cache.read(cache.measurements(device, problem)).unwrap_or_default()
    }

    /// Counts and saves new times, each with its problem at its size.
    pub fn keep_measured(&self, new: Vec<(Problem, Measurement)>, settings: &Settings, tune: Tune, device: &Device) {
        self.spending().add_measured(new.len());
        self.save(new, settings, tune, device);
    }

    /// Saves times, each with its problem at its size.
    pub fn save(&self, new: Vec<(Problem, Measurement)>, settings: &Settings, tune: Tune, device: &Device) {
        if new.is_empty() {
            return;
        }
        let mut shapes: BTreeMap<String, (Problem, Vec<Measurement>)> = BTreeMap::new();
        for (problem, measurement) in new {
            shapes.entry(problem.shape()).or_insert((problem, Vec::new())).1.push(measurement);
        }
        let Some(cache) = self.cache(settings, tune) else { return };
        for (problem, new) in shapes.into_values() {
            self.unsaved.write(cache, device, Entry::Measured(problem, new));
        }
    }

    /// Saves the results that another process has delayed; called when the process ends.
    pub fn end(&self, settings: &Settings) {
        if !self.unsaved.is_empty()
            && let Some(cache) = self.cache(settings, Tune::Measure)
        {
            self.unsaved.end(cache);
        }
    }

    /// The choice that runs until a faster one is found.
    pub(super) fn choose_anytime(
        &self,
        question: &Question,
        terms: Terms,
        settings: &Settings,
        session: &mut Session,
        host: &Arc<Host>,
        is_capturing: bool,
    ) -> Choice {
        // Also if the program asks for determinism: the cache is the same in every run.
        if !is_capturing && let Some(choice) = self.decided(question, terms, settings, session) {
            return choice;
        }
        let is_open = !is_capturing && self.can_tune(terms, settings);
        let sliced = if is_open { self.in_slices(question, terms, settings, session, host) } else { None };
        let errors = self.errors(question, terms, settings, session.guest.device(), is_capturing);
        let answer = match sliced.filter(|sliced| errors.allow(question, terms, sliced) != Some(false)) {
            Some(sliced) => Answer::Ours(sliced),
            None => answer(question, terms, None, &errors, settings, session),
        };
        let reported = is_open.then(|| most_in_play(question, terms, settings, session)).flatten();
        Choice { answer, reported, is_open, framework_time: None, is_lasting: !is_capturing }
    }

    /// The choice by queries alone for a framework's choice that does not fit, unless it is known to be wrong. `None` if no
    /// choice fits.
    pub fn guess(
        &self,
        question: &Question,
        terms: Terms,
        settings: &Settings,
        session: &mut Session,
    ) -> Option<Configuration> {
        let errors = self.errors(question, terms, settings, session.guest.device(), false);
        heuristic::shrink(question, terms, &errors, settings, session).ok().flatten()
    }

    /// Whether anything may still be measured between the program's calls.
    fn can_tune(&self, terms: Terms, settings: &Settings) -> bool {
        terms.is_anytime() && !is_deterministic(settings) && !self.is_spent(settings)
    }
}

/// The largest workspace within the limit that a configuration may ask for, by queries alone, or `None` if that is no more
/// than the framework's own choice asks for.
fn most_in_play(question: &Question, terms: Terms, settings: &Settings, session: &mut Session) -> Option<Bytes> {
    let (problem, limit) = (&question.problem, terms.limit.bytes());
    if limit <= question.chosen.workspace {
        // Nothing that fits needs more; where the own choice does not fit, anything up to the limit may.
        return (limit < question.chosen.workspace).then_some(limit);
    }
    let admission = admission(question, settings);
    let offers = session.guest.offers(problem).unwrap_or_default();
    let mut most = Bytes::ZERO;
    for offer in offers.iter().filter(|offer| admission.admits(offer.notes)) {
        let Ok(workspace) = offer.workspace else { continue };
        let mut fitting = (workspace <= limit).then_some(workspace);
        let mut parts = 2;
        while fitting.is_none() && parts <= problem.batch() && terms.micro_batches() != Sizes::Undivided {
            let part = problem.with_batch(problem.batch().div_ceil(parts)).ok();
            let bytes = part.and_then(|part| session.guest.workspace(&part, &offer.algorithm).ok().flatten());
            fitting = bytes.filter(|bytes| *bytes <= limit);
            parts *= 2;
        }
        most = most.max(fitting.unwrap_or_default());
    }
    (most > question.chosen.workspace).then_some(most)
}
