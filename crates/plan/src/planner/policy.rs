//! Runs the policy of the options.

use tightfit_place::Effort;
use tightfit_units::Error;

use crate::attempts::PolicyResult;
use crate::memory::arena::Drafter;
use crate::schedule::script::Script;
use crate::search::floors::{Floors, too_large};
use crate::vdnn::scripts::{Offloads, baseline, script};
use crate::vdnn::smallest::suffix;
use crate::vdnn::{dynamic, overlap};
use crate::{Policy, search};

/// The draft that the policy of the options chooses.
///
/// # Errors
/// [`Error::OverBudget`] or [`Error::OverHostBudget`] if none of its attempts fits; [`Error::Interrupted`] if the flag is set and no caller waits for
/// a plan.
pub(super) fn choose(drafter: &Drafter<'_>, floors: &Floors) -> Result<PolicyResult, Error> {
    let policy = drafter.options.policy;
    let chosen = match policy {
        Policy::Baseline => return one(drafter, floors, "baseline", &baseline(drafter.step)),
        Policy::VdnnAll => return one(drafter, floors, "all", &script(drafter, Offloads::All, None)),
        Policy::VdnnConv => return one(drafter, floors, "conv", &script(drafter, Offloads::Convolutions, None)),
        Policy::Optimal => return search::choose(drafter, floors),
        Policy::VdnnDynamic => dynamic::choose(drafter, &floors.moving),
        Policy::Overlap => overlap::choose(drafter, &floors.moving),
    };
    drafter.end.proceed()?;
    chosen.map_err(|attempts| too_large(drafter, floors.of_policy(policy), &attempts, floors.least_of_all(drafter)))
}

/// A policy with a single script, with the algorithms from the options.
fn one(drafter: &Drafter<'_>, floors: &Floors, name: &str, script: &Script) -> Result<PolicyResult, Error> {
    let options = &drafter.options;
    let mut draft = drafter.draft(script, options.algorithms, Effort::Plan);
    if !draft.fits(options) {
        // The budget reported as needed must be sufficient.
        draft = drafter.tightened(draft, Effort::Plan, drafter.end);
    }
    let mut attempt = draft.attempt(&format!("{name}{}", suffix(options.algorithms)), options);
    if !attempt.fits {
        return Err(too_large(drafter, &draft, &[attempt], floors.least_of_all(drafter)));
    }
    attempt.taken = true;
    Ok(PolicyResult { draft, attempts: vec![attempt], bound: None })
}
