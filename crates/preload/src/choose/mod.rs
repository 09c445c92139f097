//! Which configuration runs in place of the framework's choice.
//!
//! ```text
//! measure     what the cache lacks is measured     ours if faster, or if the framework's choice does not fit
//! cached      what the cache has                   the same
//! heuristic   workspace queries                    ours only if the framework's choice does not fit
//! ```
//! Where measuring or the cache gives nothing, the heuristic decides: a limit is kept in any case.

mod cached;
mod heuristic;
mod measured;
mod surveyed;

pub use measured::spent;
use tightfit_core::optimize::divide;
use tightfit_core::profile::Admission;
use tightfit_core::{Bytes, Candidate, Configuration, DivisionCost, Nanos, Notes, Types};
use tightfit_cuda::Host;

use crate::kernel::{Answer, Question};
use crate::log::tell;
use crate::reason::Reason;
use crate::session::Session;
use crate::settings::{Settings, Tune};

/// What is known of a problem's candidates, and of the framework's choice among them.
struct Known {
    candidates: Vec<Candidate>,
    cost: DivisionCost,
    framework_time: Option<Nanos>,
}

/// A configuration that is not faster by more than this is not worth changing results for.
const GAIN: f64 = 1.03;

/// Answers a question under a limit; with the time of the framework's choice, if that is known.
///
/// Under capture nothing is measured, allocated or waited for, and a file is not even opened.
pub fn choose(
    question: &Question,
    limit: Bytes,
    settings: &Settings,
    session: &mut Session,
    host: &Host,
    is_capturing: bool,
) -> (Answer, Option<Nanos>) {
    let known = match settings.tune {
        _ if is_capturing => measured::remembered(question, settings),
        Tune::Measure => measured::measure(question, limit, settings, host, session.guest.device()),
        Tune::Cached => cached::look_up(question, limit, settings, session.guest.device()),
        Tune::Heuristic => None,
    };
    let fits = question.chosen.workspace <= limit;
    let framework_time = known.as_ref().and_then(|known| known.framework_time);
    let divided = known.and_then(|known| divide(&question.problem, &known.candidates, limit, known.cost).ok());
    let is_worth_it = |ours: &Configuration| {
        let is_faster = framework_time.is_some_and(|theirs| ours.time().ratio(theirs) * GAIN < 1.0);
        !fits || (is_faster && !is_chosen(ours, question))
    };
    // What cannot be set up on the program's handle, as for its alignment, is no choice.
    let ours = divided.filter(is_worth_it).filter(|ours| {
        let set_up = session.program(&question.problem, ours, question.scale(), question.base);
        set_up.map_err(|error| tell!("{}: {}", question.problem, error.chain())).is_ok()
    });
    let answer = match (ours, fits) {
        (Some(ours), _) => Answer::Ours(ours),
        (None, true) => Answer::Kept,
        (None, false) => match heuristic::shrink(question, limit, settings, session) {
            Ok(Some(ours)) => Answer::Ours(ours),
            Ok(None) => Answer::Left(Reason::NothingFits),
            Err(error) => {
                tell!("{}: {error}", question.problem);
                Answer::Left(Reason::Failed)
            }
        },
    };
    (answer, framework_time)
}

/// Whether a configuration is the framework's choice itself.
fn is_chosen(configuration: &Configuration, question: &Question) -> bool {
    matches!(configuration.parts(), [part] if part.algorithm == question.chosen.algorithm)
}

/// Which algorithms the framework's own mode admits. Tensor cores are only a question of f32: halves always have them.
fn admission(question: &Question, settings: &Settings) -> Admission {
    let is_single = matches!(question.problem.types(), Types::F32 | Types::Tf32);
    let guarded = Notes::DOWN_CONVERT.with(Notes::REDUCED_PRECISION);
    let guarded = if is_single { guarded.with(Notes::TENSOR_CORE) } else { guarded };
    Admission {
        deterministic: !question.admitted.contains(Notes::NONDETERMINISTIC),
        class: settings.is_exact_class.then(|| question.chosen.notes.class()),
        without: Notes(guarded.0 & !question.admitted.0),
    }
}
