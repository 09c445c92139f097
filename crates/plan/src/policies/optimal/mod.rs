//! Searches for the fastest step within the budget. For each idle interval of each movable tensor, the search decides whether the tensor stays, moves
//! or is recomputed. For each operation, it picks a configuration (a trade of time for workspace).
//!
//! 1. `model` turns a step into idle intervals; `slots` groups operations between changes.
//! 2. `starts` and `least` produce initial decisions; `evaluate` computes the memory and time of decisions; `search` improves them.
//! 3. `bound` proves a lower bound by prices and a minimum cut (`min_cut`), and suggests decisions.
//! 4. `incumbents` keeps the best decisions of all searches and places them; `plan_search` runs both phases for one step.
//! 5. `parts` builds steps with a stretch in parts of the mini-batch; `variants` divides the time between these variants.
//! 6. `moving` drafts the policies that only move tensors, and `checkpointing` plain checkpointing, to compare with.

mod bound;
mod checkpointing;
mod evaluate;
mod incumbents;
mod least;
mod min_cut;
mod model;
mod moving;
mod parts;
mod plan_search;
mod search;
mod slots;
mod starts;
mod variants;

pub(crate) use checkpointing::checkpointing;
pub(super) use least::{Least, least};
use model::Model;
pub(super) use parts::{
    DraftInParts, least as least_in_parts, least_slowly as least_in_parts_slowly, proven as proven_in_parts,
};

use tightfit_place::Effort;
use tightfit_units::Error;

use super::vdnn::{self, Offloads};
use super::{Floors, PolicyResult, Trials};
use crate::draft::Drafter;
use crate::lower_bound::LowerBound;
use crate::{Algorithms, Attempt, Bounded};

/// The least bytes at once that any plan with whole mini-batches needs, and the operation that needs them.
pub(super) fn floor(drafter: &Drafter<'_>) -> (u64, usize) {
    Model::of(drafter).floor()
}

/// Plans a step with whole mini-batches, and with stretches in parts where parts may be faster.
///
/// # Errors
/// [`Error::OverBudget`] or [`Error::OverHostBudget`] if nothing fits; [`Error::Interrupted`] if the flag is set and no caller waits for a plan, or
/// no plan was found.
pub(super) fn choose(drafter: &Drafter<'_>, floors: &Floors) -> Result<PolicyResult, Error> {
    let options = &drafter.options;
    let floor = floors.of_policy(options.policy);
    let too_large = |attempts: Vec<Attempt>| drafter.too_large(floor, &attempts, floors.least());
    if floor.peak > options.budget {
        let is_stopped = drafter.end.is_stopped();
        return Err(if is_stopped { Error::Interrupted } else { too_large(vec![floor.attempt("least", options)]) });
    }
    let mut trials = Trials::new(drafter);
    trials.consider("least", floors.whole().clone());
    let keeps_all = try_keeping_everything(drafter, &mut trials);
    if let Some(least) = floors.in_parts.as_ref().filter(|_| !keeps_all) {
        least.clone().join(&mut trials, "least in parts");
    }
    variants::compare(drafter, floors, keeps_all, &mut trials)?;
    trials.outcome().map_err(too_large)
}

/// Tries everything resident with the fastest algorithms. Returns whether that fits: then no plan of the same operations is faster.
fn try_keeping_everything(drafter: &Drafter<'_>, trials: &mut Trials<'_>) -> bool {
    if drafter.options.algorithms != Algorithms::Memory {
        let kept = vdnn::script(drafter, Offloads::None, None);
        trials.consider("none(p)", drafter.draft(&kept, Algorithms::Performance, Effort::Plan));
    }
    let fastest = parts::fastest(drafter);
    let fits = trials.best().is_some_and(|best| best.time <= fastest);
    if fits {
        trials.add_bound(LowerBound::whole(fastest, Bounded::Any));
    }
    fits
}
