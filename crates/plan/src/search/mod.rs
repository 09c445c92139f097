//! Searches for the fastest step within the budget. For each idle interval of each movable tensor, the search decides whether the tensor stays, moves
//! or is recomputed. For each operation, it picks a configuration (a trade of time for workspace).
//!
//! 1. `model` turns a step into idle intervals; `lists` stores them for fast reading.
//! 2. `decisions` and `least` produce initial decisions; `evaluate` computes the memory and time of decisions; `local` improves them.
//! 3. `bound` proves a lower bound by prices and a minimum cut (`min_cut`), and suggests decisions.
//! 4. `incumbents` keeps the best decisions of all searches and places them; `plan_search` runs both phases for one step.
//! 5. `parts` builds steps with a stretch in parts of the mini-batch; `variants` divides the time between these variants.
//! 6. `smaller` searches under smaller limits, so that more memory is hardly ever slower.
//! 7. `checkpointing` is plain checkpointing, to compare with; `floors` has the smallest arena of each policy.

mod bound;
pub(crate) mod checkpointing;
mod decisions;
mod evaluate;
pub(crate) mod floors;
mod incumbents;
pub(crate) mod lanes;
mod least;
mod lists;
mod local;
mod min_cut;
mod model;
mod parts;
mod plan_search;
mod smaller;
mod variants;

use tightfit_units::Error;

use crate::Attempt;
use crate::attempts::{Attempts, PolicyResult};
use crate::memory::arena::Drafter;
use crate::search::floors::{Floors, too_large};

/// Plans a step with whole mini-batches, and with stretches in parts where parts may be faster.
///
/// # Errors
/// [`Error::OverBudget`] or [`Error::OverHostBudget`] if nothing fits; [`Error::Interrupted`] if the flag is set and no caller waits for a plan, or
/// no plan was found.
pub(crate) fn choose(drafter: &Drafter<'_>, floors: &Floors) -> Result<PolicyResult, Error> {
    let options = &drafter.options;
    let floor = floors.of_policy(options.policy);
    let too_large = |attempts: Vec<Attempt>| too_large(drafter, floor, &attempts, floors.least());
    if floor.peak > options.budget {
        let is_stopped = drafter.end.is_stopped();
        return Err(if is_stopped { Error::Interrupted } else { too_large(vec![floor.attempt("least", options)]) });
    }
    let mut attempts = Attempts::new(drafter);
    variants::search(drafter, floors, &mut attempts)?;
    smaller::search(drafter, floors, &mut attempts)?;
    attempts.outcome().map_err(too_large)
}
