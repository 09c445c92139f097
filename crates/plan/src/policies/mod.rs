//! Policies: each writes scripts that say which maps move and when, and chooses the script that becomes the plan.
//!
//! - `baseline`, `vdnn`, `dynamic` and `overlap` only move maps.
//! - `optimal` searches over keeping, moving and recomputing every movable tensor.
//! - `trials` records the attempts of one policy and keeps the fastest that fits.
//!
//! [`Floors`] holds each policy's smallest arena, which an error for an insufficient budget reports.

mod baseline;
mod dynamic;
mod optimal;
mod overlap;
mod trials;
mod vdnn;

use std::sync::{Mutex, PoisonError};

pub(crate) use optimal::checkpointing;
use tightfit_place::Effort;
use tightfit_units::{Bytes, Error};

use super::draft::{Draft, Drafter};
use super::lower_bound::LowerBound;
use super::script::Script;
use super::stop::End;
use super::threads::on_threads;
use super::{Algorithms, Attempt, Policy};
use trials::Trials;
use vdnn::Offloads;

/// The draft that a policy chose, and all its attempts.
pub(super) struct PolicyResult {
    pub(super) draft: Draft,
    pub(super) attempts: Vec<Attempt>,
    pub(super) bound: Option<LowerBound>,
}

/// Runs the policy selected in the options.
///
/// # Errors
/// [`Error::OverBudget`] or [`Error::OverHostBudget`] if none of its attempts fits.
pub(super) fn choose(drafter: &Drafter<'_>, floors: &Floors) -> Result<PolicyResult, Error> {
    match drafter.options.policy {
        Policy::Baseline => one(drafter, floors, "baseline", &baseline::script(drafter.step)),
        Policy::VdnnAll => one(drafter, floors, "all", &vdnn::script(drafter, Offloads::All, None)),
        Policy::VdnnConv => one(drafter, floors, "conv", &vdnn::script(drafter, Offloads::Convolutions, None)),
        Policy::VdnnDynamic => dynamic::choose(drafter, floors),
        Policy::Overlap => overlap::choose(drafter, floors),
        Policy::Optimal => optimal::choose(drafter, floors),
    }
}

/// A policy with a single script, with the algorithms from the options.
fn one(drafter: &Drafter<'_>, floors: &Floors, name: &str, script: &Script) -> Result<PolicyResult, Error> {
    let options = &drafter.options;
    let mut draft = drafter.draft(script, options.algorithms, Effort::Plan);
    if !draft.fits(options) {
        // The budget reported as needed must be sufficient.
        draft = drafter.tightened(draft);
    }
    let mut attempt = draft.attempt(&format!("{name}{}", suffix(options.algorithms)), options);
    if !attempt.fits {
        return Err(drafter.too_large(&draft, &[attempt], floors.least_of_all(drafter)));
    }
    attempt.taken = true;
    Ok(PolicyResult { draft, attempts: vec![attempt], bound: None })
}

/// The paper's suffix for algorithms.
fn suffix(algorithms: Algorithms) -> &'static str {
    match algorithms {
        Algorithms::Memory => "(m)",
        Algorithms::Performance => "(p)",
        Algorithms::Fit => "(fit)",
    }
}

/// The least bytes at once that any plan of the step needs, with any policy, and the operation that needs them.
pub(super) fn proven(drafter: &Drafter<'_>) -> (Bytes, usize) {
    let (bytes, at) = optimal::proven_in_parts(drafter).unwrap_or_else(|| optimal::floor(drafter));
    (Bytes(bytes), at)
}

/// The script that moves nothing.
pub(super) fn resident(drafter: &Drafter<'_>) -> Script {
    vdnn::script(drafter, Offloads::None, None)
}

/// The step without a plan: keeps every tensor until its last use, with the fastest algorithms.
pub(super) fn plain(drafter: &Drafter<'_>, end: End<'_>) -> Draft {
    let draft = drafter.draft(&resident(drafter), Algorithms::Performance, Effort::Draft);
    drafter.tightened_until(draft, Effort::Plan, end)
}

/// The search for the smallest arenas gets a quarter of the planning time.
const FLOORS_TIME_DIVISOR: usize = 4;

/// The smallest arena of each script, with memory-optimal algorithms.
pub(super) struct Floors {
    none: Draft,
    conv: Draft,
    all: Draft,
    /// All maps offloaded, each fetched on demand.
    on_demand: Draft,
    overlap: Draft,
    baseline: Draft,
    pub(super) plain: Draft,
    /// With recomputation; searched only for the policy that uses it.
    optimal: Option<optimal::Least>,
    /// The smallest arena with a stretch in parts of the mini-batch.
    in_parts: Option<optimal::DraftInParts>,
}

impl Floors {
    /// # Errors
    /// [`Error::Interrupted`] if the flag is set and no caller waits for a plan.
    pub(super) fn of(drafter: &Drafter<'_>) -> Result<Floors, Error> {
        // The search of the policy optimal takes longest, so it comes first.
        let scripts = [
            vdnn::script(drafter, Offloads::None, None),
            vdnn::script(drafter, Offloads::Convolutions, None),
            vdnn::script(drafter, Offloads::All, None),
            dynamic::limited(drafter, Offloads::All, 0),
            overlap::floor(drafter),
            baseline::script(drafter.step),
        ];
        let end = drafter.end.part(FLOORS_TIME_DIVISOR);
        let recomputes = drafter.options.policy == Policy::Optimal;
        let optimal = Mutex::new(None);
        let in_parts = Mutex::new(None);
        let drafts = on_threads(3 + scripts.len(), |place| match place.checked_sub(2) {
            None if !recomputes => None,
            None if place == 0 => {
                *optimal.lock().unwrap_or_else(PoisonError::into_inner) = optimal::least(drafter);
                None
            }
            None => {
                *in_parts.lock().unwrap_or_else(PoisonError::into_inner) = optimal::least_in_parts(drafter);
                None
            }
            // Without time for its own draft, a floor falls back to another script's draft.
            Some(place) if drafter.end.proceed().is_err() || place > 1 && end.is_over() => None,
            // This draft takes longest of the rest, so it starts first.
            Some(0) => Some(plain(drafter, end)),
            Some(script) => {
                let draft = drafter.draft(&scripts[script - 1], Algorithms::Memory, Effort::Draft);
                Some(drafter.tightened_until(draft, Effort::Plan, end))
            }
        });
        drafter.end.proceed()?;
        let none = || drafter.draft(&scripts[0], Algorithms::Memory, Effort::Draft);
        let mut drafts = drafts.into_iter().skip(2);
        let plain = drafts.next().flatten().unwrap_or_else(none);
        let none = drafts.next().flatten().unwrap_or_else(none);
        let mut next = || drafts.next().flatten().unwrap_or_else(|| none.clone());
        let mut floors = Floors {
            plain,
            conv: next(),
            all: next(),
            on_demand: next(),
            overlap: next(),
            baseline: next(),
            none,
            optimal: optimal.into_inner().unwrap_or_else(PoisonError::into_inner),
            in_parts: in_parts.into_inner().unwrap_or_else(PoisonError::into_inner),
        };
        let least = floors.of_policy(Policy::Optimal).peak;
        if recomputes && least > drafter.options.budget {
            let found = optimal::least_in_parts_slowly(drafter).filter(|found| found.draft.peak < least);
            floors.in_parts = found.or(floors.in_parts);
        }
        Ok(floors)
    }

    /// A policy's draft with the smallest arena.
    pub(super) fn of_policy(&self, policy: Policy) -> &Draft {
        let whole = match policy {
            Policy::Baseline => &self.baseline,
            Policy::VdnnAll => &self.all,
            Policy::VdnnConv => &self.conv,
            Policy::VdnnDynamic => least(&[&self.all, &self.conv, &self.none, &self.on_demand]),
            Policy::Overlap => least(&[&self.overlap, &self.none]),
            Policy::Optimal => self.whole(),
        };
        let parts = self
            .in_parts
            .as_ref()
            .map(|parts| &parts.draft)
            .filter(|parts| policy == Policy::Optimal && parts.peak < whole.peak);
        parts.unwrap_or(whole)
    }

    /// The smallest arena of all policies whose operations compute the whole mini-batch.
    fn whole(&self) -> &Draft {
        let recomputing = self.optimal.as_ref().map(|least| &least.draft).unwrap_or(&self.overlap);
        least(&[recomputing, &self.overlap, &self.none, &self.all, &self.conv, &self.on_demand])
    }

    /// The smallest arena of all policies. Covers the recomputing policy only if it was requested.
    pub(super) fn least(&self) -> Bytes {
        Policy::ALL.into_iter().map(|policy| self.of_policy(policy).peak).min().unwrap_or_default()
    }

    /// The smallest arena of all policies, including `optimal`, for the error of another policy.
    ///
    /// - Cost: a search.
    pub(super) fn least_of_all(&self, drafter: &Drafter<'_>) -> Bytes {
        let whole = optimal::least(drafter).map(|least| least.draft.peak);
        let parts = optimal::least_in_parts(drafter).map(|found| found.draft.peak);
        whole.into_iter().chain(parts).chain([self.least()]).min().unwrap_or_default()
    }
}

/// The draft with the smallest arena.
fn least<'d>(drafts: &[&'d Draft]) -> &'d Draft {
    drafts.iter().min_by_key(|draft| draft.peak).copied().unwrap_or(drafts[0])
}
