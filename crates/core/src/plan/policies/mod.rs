//! Policies: which maps move and when, as scripts, and which script becomes the plan.

mod baseline;
mod dynamic;
mod overlap;
mod vdnn;

use vdnn::Moved;

use super::draft::{Draft, Drafter};
use super::place::Effort;
use super::{Algorithms, Decision, Policy};
use crate::{Bytes, Error};

/// What a policy decided, and what it tried on the way.
pub(super) struct Chosen {
    pub(super) draft: Draft,
    pub(super) decisions: Vec<Decision>,
}

/// Carries the policy of the options out.
///
/// # Errors
/// [`Error::OverBudget`] or [`Error::OverHostBudget`] if none of its attempts fits.
pub(super) fn choose(drafter: &Drafter<'_>, floors: &Floors) -> Result<Chosen, Error> {
    match drafter.options.policy {
        Policy::Baseline => one(drafter, floors, "baseline", &baseline::script(drafter.step)),
        Policy::VdnnAll => one(drafter, floors, "all", &vdnn::script(drafter, Moved::All, None)),
        Policy::VdnnConv => one(drafter, floors, "conv", &vdnn::script(drafter, Moved::Convolutions, None)),
        Policy::VdnnDynamic => dynamic::choose(drafter, floors),
        Policy::Overlap => overlap::choose(drafter, floors),
    }
}

/// A policy of one script, with the algorithms that the options ask for.
fn one(drafter: &Drafter<'_>, floors: &Floors, name: &str, script: &super::script::Script) -> Result<Chosen, Error> {
    let options = &drafter.options;
    let mut draft = drafter.draft(script, options.algorithms, Effort::Plan);
    if !draft.fits(options) {
        // What is told to be needed is to be enough.
        draft = drafter.tightened(draft);
    }
    let mut decision = draft.decision(&format!("{name}{}", suffix(options.algorithms)), options);
    if !decision.fits {
        return Err(drafter.too_large(&draft, &[decision], floors.least()));
    }
    decision.taken = true;
    Ok(Chosen { draft, decisions: vec![decision] })
}

/// The papers' letter for algorithms.
fn suffix(algorithms: Algorithms) -> &'static str {
    match algorithms {
        Algorithms::Memory => "(m)",
        Algorithms::Performance => "(p)",
        Algorithms::Fit => "(fit)",
    }
}

/// The arena of the network-wide baseline with the fastest algorithms.
pub(super) fn baseline(drafter: &Drafter<'_>) -> Draft {
    drafter.tightened(drafter.draft(&baseline::script(drafter.step), Algorithms::Performance, Effort::Draft))
}

/// The least arena of each script, with memory-optimal algorithms.
pub(super) struct Floors {
    none: Draft,
    conv: Draft,
    all: Draft,
    /// All moved, every map fetched on demand.
    on_demand: Draft,
    overlap: Draft,
    baseline: Draft,
}

impl Floors {
    pub(super) fn of(drafter: &Drafter<'_>) -> Floors {
        let least = |script| drafter.tightened(drafter.draft(&script, Algorithms::Memory, Effort::Draft));
        let vdnn = |moved| least(vdnn::script(drafter, moved, None));
        Floors {
            none: vdnn(Moved::None),
            conv: vdnn(Moved::Convolutions),
            all: vdnn(Moved::All),
            on_demand: least(dynamic::limited(drafter, Moved::All, 0)),
            overlap: least(overlap::floor(drafter)),
            baseline: least(baseline::script(drafter.step)),
        }
    }

    /// The draft with the least arena of a policy.
    pub(super) fn of_policy(&self, policy: Policy) -> &Draft {
        let candidates: &[&Draft] = match policy {
            Policy::Baseline => &[&self.baseline],
            Policy::VdnnAll => &[&self.all],
            Policy::VdnnConv => &[&self.conv],
            Policy::VdnnDynamic => &[&self.all, &self.conv, &self.none, &self.on_demand],
            Policy::Overlap => &[&self.overlap, &self.none],
        };
        candidates.iter().min_by_key(|draft| draft.peak).copied().unwrap_or(candidates[0])
    }

    /// The least arena of all.
    pub(super) fn least(&self) -> Bytes {
        Policy::ALL.into_iter().map(|policy| self.of_policy(policy).peak).min().unwrap_or_default()
    }
}
