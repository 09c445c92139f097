//! Which configuration runs in place of the framework's choice.
//!
//! ```text
//! measure     an earlier process's decision,       otherwise the heuristic, until `tune` has found what is faster
//! first       measures what the cache lacks        ours if faster when alternating, or if the framework's choice does not fit
//! cached      what the cache has                   the same
//! heuristic   workspace queries                    ours only if the framework's choice does not fit
//! ```
//! If measuring or the cache finds nothing, the heuristic decides. The limit always holds, and a choice that is known to be
//! less accurate than the framework's is left out (`compared`).

mod cache;
mod cached;
mod choice;
mod chooser;
mod compared;
mod decided;
mod heuristic;
mod judged;
mod measured;
mod measurements;
mod proof;
mod shipped;
mod sliced;
mod spending;
mod surveyed;
mod turn;
mod unsaved;

use std::sync::Arc;

pub use choice::Choice;
use choice::{answer, own_if_fits};
pub use chooser::{Chooser, admission};
use chooser::{Knowledge, is_deterministic};
use compared::{accurate, unless_unknown};
pub use proof::Prover;
use tightfit_conv::optimize::front;
use tightfit_conv::{Candidate, Configuration, DivisionCost};
use tightfit_cuda::Host;
use tightfit_units::{Bytes, Nanos};

use crate::judge::{Errors, is_own};
use crate::kernel::{Answer, Question, TotalOptions};
use crate::reason::Reason;
use crate::session::Session;
use crate::settings::{Limit, Settings, Terms, Tune};

impl Chooser {
    /// Answers a question on these terms.
    ///
    /// Under capture, this measures, allocates and waits for nothing, and does not even open a file.
    pub fn choose(
        &self,
        question: &Question,
        terms: Terms,
        settings: &Settings,
        session: &mut Session,
        host: &Arc<Host>,
        is_capturing: bool,
    ) -> Choice {
        let terms = without_measuring(terms, settings);
        if terms.is_anytime() {
            return self.choose_anytime(question, terms, settings, session, host, is_capturing);
        }
        let (mut is_lasting, mut is_whole) = (!is_capturing, false);
        let decided = terms.tune == Tune::Cached && !is_capturing;
        if decided && let Some(choice) = self.decided(question, terms, settings, session) {
            return choice;
        }
        if !is_capturing && let Some(choice) = self.remembered(question, terms, settings, session) {
            return choice;
        }
        let known = match terms.tune {
            _ if is_capturing => self.recall(question, terms, settings),
            Tune::Measure | Tune::First => match self.measure(question, terms, settings, host, &mut session.guest) {
                Ok(known) => {
                    is_whole = true;
                    Some(known)
                }
                // Perhaps the time for it was over. The measurements so far are in the cache then.
                Err(failure) => {
                    is_lasting = !failure.is_capture;
                    self.look_up(question, terms, settings, &mut session.guest).map(|found| found.known)
                }
            },
            Tune::Cached => self.look_up(question, terms, settings, &mut session.guest).map(|found| found.known),
            Tune::Heuristic => None,
        };
        let is_judged = judged::is_remembered(terms) && !is_capturing && !self.is_spent(settings);
        let is_total = matches!(terms.limit, Limit::Total(_));
        if let Some(known) = known.as_ref().filter(|_| is_whole && is_total && !self.is_spent(settings)) {
            self.compare_front(question, terms, settings, session, host, known);
        }
        let errors = self.errors(question, terms, settings, session.guest.device(), is_capturing);
        let (answer, framework_time) = match &known {
            Some(known) if is_judged => self.judged(question, terms, settings, session, host, known),
            known => {
                let answer = answer(question, terms, known.as_ref(), &errors, settings, session);
                let framework_time = known.as_ref().and_then(|known| known.framework_time);
                (unless_unknown(answer, question, terms, &errors), framework_time)
            }
        };
        if is_whole && is_judged {
            self.remember(question, terms, settings, session, (&answer, framework_time));
        }
        let answer = match is_total {
            false => answer,
            true => answer_in_total(question, terms, answer, known, &errors, session),
        };
        let reported = if judged::is_remembered(terms) { own_if_fits(question, terms) } else { None };
        Choice { answer, reported, is_open: false, framework_time, is_lasting }
    }

    /// Answers a question again on other terms than it was `asked` on, for a plan whose workspace was reported to the
    /// program.
    ///
    /// Measures nothing, because the plan is about to run: uses measurements from when it was made, or from the cache.
    pub fn choose_again(
        &self,
        question: &Question,
        asked: Terms,
        terms: Terms,
        settings: &Settings,
        session: &mut Session,
        is_capturing: bool,
    ) -> Answer {
        let is_looked_up = without_measuring(asked, settings).tune == Tune::Cached && !is_capturing;
        let mut look_up = || self.look_up(question, terms, settings, &mut session.guest).map(|found| found.known);
        let measured = self.recall(question, asked, settings);
        let mut known = measured.or_else(|| is_looked_up.then(&mut look_up).flatten());
        if let Some(known) = &mut known
            && let Some(sizes) = terms.sizes.up_to(question.problem.batch())
        {
            let is_allowed = |candidate: &Candidate| candidate.calls() == 1 || terms.slices();
            known.candidates.retain(|candidate| sizes.contains(&candidate.micro_batch) && is_allowed(candidate));
        }
        let errors = self.errors(question, terms, settings, session.guest.device(), is_capturing);
        unless_unknown(answer(question, terms, known.as_ref(), &errors, settings, session), question, terms, &errors)
    }
}

/// The terms by which to choose. If the program asks for determinism, the cache decides.
fn without_measuring(terms: Terms, settings: &Settings) -> Terms {
    let is_measured = !terms.is_anytime() && matches!(terms.tune, Tune::Measure | Tune::First);
    if is_measured && is_deterministic(settings) { Terms { tune: Tune::Cached, ..terms } } else { terms }
}

/// The answer under a total: the program provides no workspace, because the configuration runs in our memory.
fn answer_in_total(
    question: &Question,
    terms: Terms,
    answer: Answer,
    known: Option<Knowledge>,
    errors: &Errors,
    session: &mut Session,
) -> Answer {
    let limit = terms.limit.bytes();
    let time = known.as_ref().and_then(|known| known.framework_time).unwrap_or(Nanos::ZERO);
    let theirs = Candidate { time, ..question.own() };
    let provisional = match answer {
        Answer::Ours(ours) => ours,
        Answer::Kept if question.chosen.workspace > Bytes::ZERO => {
            let theirs = Configuration::new(vec![theirs.clone()], DivisionCost::default());
            match session.set_up(question, &theirs) {
                Some(_) => theirs,
                None => return Answer::Left(Reason::Failed),
            }
        }
        answer => return answer,
    };
    let is_inaccurate = |one: &Configuration| errors.allow(question, terms, one) == Some(false);
    let front = known.map_or(Vec::new(), |known| {
        let mut known = accurate(&known, question, terms, errors, session);
        if theirs.time > Nanos::ZERO && theirs.workspace <= limit {
            known.candidates.push(theirs);
        }
        let mut front = front(&question.problem, &known.candidates, limit, known.cost).unwrap_or_default();
        front.retain(|one| is_own(one, question) || !is_inaccurate(one) && !session.is_refused(question, one));
        front
    });
    Answer::Shared(TotalOptions { provisional: Arc::new(provisional), front })
}
