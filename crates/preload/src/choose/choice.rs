//! A choice, and the answer within a limit.

use tightfit_conv::Configuration;
use tightfit_conv::optimize::divide;
use tightfit_units::{Bytes, Nanos};

use super::chooser::Knowledge;
use super::compared::accurate;
use super::heuristic;
use crate::judge::{Errors, is_own, is_worth_it};
use crate::kernel::{Answer, Question};
use crate::log::trace;
use crate::reason::Reason;
use crate::session::Session;
use crate::settings::{Settings, Terms};

/// An answer, and the facts about it.
pub struct Choice {
    /// The answer itself.
    pub answer: Answer,
    /// The least workspace to report to the program.
    pub reported: Option<Bytes>,
    /// Whether a better choice is still to be found.
    pub is_open: bool,
    /// Time of the framework's choice, if known.
    pub framework_time: Option<Nanos>,
    /// Whether the answer is final: one found during a capture lacks measurements.
    pub is_lasting: bool,
}

/// The choice within a limit, by the known measurements, without configurations that are known to be less accurate than the
/// framework's choice.
pub(super) fn answer(
    question: &Question,
    terms: Terms,
    known: Option<&Knowledge>,
    errors: &Errors,
    settings: &Settings,
    session: &mut Session,
) -> Answer {
    let limit = terms.limit.bytes();
    let fits = question.chosen.workspace <= limit;
    let framework_time = known.and_then(|known| known.framework_time);
    let known = known.map(|known| accurate(known, question, terms, errors, session));
    let divided = known.and_then(|known| divide(&question.problem, &known.candidates, limit, known.cost).ok());
    let is_wanted = |ours: &Configuration| {
        let is_faster = framework_time.is_some_and(|theirs| is_worth_it(ours.time(), theirs, ours.parts().len()));
        let is_inaccurate = errors.allow(question, terms, ours) == Some(false);
        !is_inaccurate && (!fits || is_faster && !is_own(ours, question))
    };
    // A configuration that cannot be set up on the program's handle, for example for its alignment, cannot be chosen.
    let ours = divided.filter(is_wanted).filter(|ours| session.set_up(question, ours).is_some());
    match (ours, fits) {
        (Some(ours), _) => Answer::Ours(ours),
        (None, true) => Answer::Kept,
        (None, false) => match heuristic::shrink(question, terms, errors, settings, session) {
            Ok(Some(ours)) => Answer::Ours(ours),
            Ok(None) => Answer::Left(Reason::NothingFits),
            Err(error) => {
                trace!("{}: {error}", question.problem);
                Answer::Left(Reason::Failed)
            }
        },
    }
}

/// The decision, if it can be set up within the limit.
pub(super) fn answer_of(
    configuration: Option<Configuration>,
    question: &Question,
    terms: Terms,
    session: &mut Session,
) -> Option<Answer> {
    let Some(ours) = configuration else { return Some(Answer::Kept) };
    let fits = ours.workspace() <= terms.limit.bytes() && session.set_up(question, &ours).is_some();
    fits.then_some(Answer::Ours(ours))
}

/// The least workspace to report to the program, so that the framework's choice can run while others are tried, and if
/// another fails.
pub(super) fn own_if_fits(question: &Question, terms: Terms) -> Option<Bytes> {
    Some(question.chosen.workspace).filter(|own| *own <= terms.limit.bytes())
}
