//! Policies that only move tensors, to compete with the search.

use tightfit_place::Effort;
use tightfit_units::Nanos;

use crate::memory::arena::{Draft, Drafter};
use crate::search::floors::Floors;
use crate::search::model::Model;
use crate::stop::End;
use crate::trials::Trials;
use crate::vdnn::overlap;
use crate::vdnn::scripts::{Offloads, baseline, script};
use crate::{Direction, Policy};

/// The policies that may beat the best placed plan. Placing them takes long, so none are tried once time is over.
pub(super) fn competitors(model: &Model<'_>, trials: &Trials<'_>, end: End<'_>) -> &'static [Policy] {
    let least = least_time(model, model.drafter.options.budget.0);
    match trials.best().is_none_or(|best| !end.is_over() && best.time > least) {
        true => &[Policy::Overlap, Policy::VdnnAll, Policy::VdnnConv, Policy::Baseline],
        false => &[],
    }
}

/// The draft of one of these policies; `None` if none of its drafts fits.
pub(super) fn draft(drafter: &Drafter<'_>, floors: &Floors, policy: Policy) -> Option<Draft> {
    let script = match policy {
        Policy::VdnnAll => script(drafter, Offloads::All, None),
        Policy::VdnnConv => script(drafter, Offloads::Convolutions, None),
        Policy::Baseline => baseline(drafter.step),
        _ => return Some(overlap::choose(drafter, &floors.moving).ok()?.draft),
    };
    Some(drafter.draft(&script, drafter.options.algorithms, Effort::Plan))
}

/// A lower bound on the time of plans that fit by copies to the host alone: excess bytes at an operation were copied out before it.
fn least_time(model: &Model<'_>, budget: u64) -> Nanos {
    let live = model.drafter.live();
    let times = model.drafter.fastest_times();
    let rate = model.drafter.costs.copy_rate(Direction::ToHost);
    let mut left: u64 = times.iter().map(|time| time.0).sum();
    let mut least = left;
    for (live, time) in live.into_iter().zip(times) {
        let copying = live.saturating_sub(budget) as f64 / rate * 1e9;
        least = least.max(left + copying as u64);
        left -= time.0;
    }
    Nanos(least)
}
