//! The smallest arena of each policy, which an error for an insufficient budget reports.

use std::sync::{Mutex, PoisonError};

use tightfit_place::Effort;
use tightfit_units::{Bytes, Error};

use crate::memory::arena::{Draft, Drafter};
use crate::schedule::script::Script;
use crate::search::least::{Least, least};
use crate::search::model::Model;
use crate::search::parts::{self, DraftInParts};
use crate::step::Residence;
use crate::stop::End;
use crate::threads::on_threads;
use crate::vdnn::overlap;
use crate::vdnn::scripts::{Offloads, baseline, limited, script};
use crate::vdnn::smallest::Smallest;
use crate::{Algorithms, Attempt, Options, Policy};

/// The search for the smallest arenas gets a quarter of the planning time.
const FLOORS_TIME_DIVISOR: usize = 4;

/// A peak within this share of the proven minimum counts as minimal: placement wastes about that much.
const NEAR_PERCENT: u64 = 1;

/// The smallest host limit above 0, and the ratio of one to the next.
const FIRST_HOST: u64 = 16 << 20;
const HOST_RATIO: u64 = 4;

/// The least bytes at once that any plan of the step needs, with any policy, and the operation that needs them.
pub(crate) fn proven(drafter: &Drafter<'_>) -> (Bytes, usize) {
    let (bytes, at) = parts::proven(drafter).unwrap_or_else(|| Model::of(drafter).floor());
    (Bytes(bytes), at)
}

/// The step without a plan: keeps every tensor until its last use, with the fastest algorithms.
pub(crate) fn plain(drafter: &Drafter<'_>, end: End<'_>) -> Draft {
    let draft = drafter.draft(&Script::new(drafter.step.operations.len()), Algorithms::Performance, Effort::Draft);
    drafter.tightened(draft, Effort::Plan, end)
}

/// The smallest arena of each policy, with memory-optimal algorithms.
pub(crate) struct Floors {
    pub(crate) moving: Smallest,
    pub(crate) plain: Draft,
    /// With recomputation; searched only for the policy that uses it.
    pub(super) optimal: Option<Least>,
    /// The smallest arena with a stretch in parts of the mini-batch.
    pub(super) in_parts: Option<DraftInParts>,
}

impl Floors {
    /// # Errors
    /// [`Error::Interrupted`] if the flag is set and no caller waits for a plan.
    pub(crate) fn of(drafter: &Drafter<'_>) -> Result<Floors, Error> {
        let scripts = scripts(drafter);
        let end = drafter.end.part(FLOORS_TIME_DIVISOR);
        let recomputes = drafter.options.policy == Policy::Optimal;
        let optimal = Mutex::new(None);
        let in_parts = Mutex::new(None);
        // The search of the policy optimal takes longest, so it comes first.
        let drafts = on_threads(3 + scripts.len(), |place| match place.checked_sub(2) {
            None if !recomputes => None,
            None if place == 0 => {
                *optimal.lock().unwrap_or_else(PoisonError::into_inner) = least(drafter);
                None
            }
            None => {
                *in_parts.lock().unwrap_or_else(PoisonError::into_inner) = parts::least_in_parts(drafter);
                None
            }
            // Without time for its own draft, a floor falls back to another script's draft.
            Some(place) if drafter.end.proceed().is_err() || place > 1 && end.is_over() => None,
            // This draft takes longest of the rest, so it starts first.
            Some(0) => Some(plain(drafter, end)),
            Some(script) => {
                let draft = drafter.draft(&scripts[script - 1], Algorithms::Memory, Effort::Draft);
                Some(drafter.tightened(draft, Effort::Plan, end))
            }
        });
        drafter.end.proceed()?;
        let none = || drafter.draft(&scripts[0], Algorithms::Memory, Effort::Draft);
        let mut drafts = drafts.into_iter().skip(2);
        let plain = drafts.next().flatten().unwrap_or_else(none);
        let none = drafts.next().flatten().unwrap_or_else(none);
        let mut next = || drafts.next().flatten().unwrap_or_else(|| none.clone());
        let [conv, all, on_demand, overlap, baseline] = [next(), next(), next(), next(), next()];
        let mut floors = Floors {
            moving: Smallest { none, conv, all, on_demand, overlap, baseline },
            plain,
            optimal: optimal.into_inner().unwrap_or_else(PoisonError::into_inner),
            in_parts: in_parts.into_inner().unwrap_or_else(PoisonError::into_inner),
        };
        let least = floors.of_policy(Policy::Optimal).peak;
        if recomputes && least > drafter.options.budget {
            let found = parts::least_in_parts_slowly(drafter).filter(|found| found.draft.peak < least);
            floors.in_parts = found.or(floors.in_parts);
        }
        if recomputes && !drafter.end.is_timed() && proven(drafter).0 <= drafter.options.budget {
            floors.copy_less(drafter)?;
        }
        Ok(floors)
    }

    /// Searches with less host memory if nothing fits: a search that may copy more takes another course, and may end at a larger arena.
    fn copy_less(&mut self, drafter: &Drafter<'_>) -> Result<(), Error> {
        for host_budget in hosts(drafter) {
            let [whole, parts] =
                [self.optimal.as_ref().map(|of| &of.draft), self.in_parts.as_ref().map(|of| &of.draft)];
            if parts.into_iter().chain([self.whole()]).any(|draft| draft.fits(&drafter.options)) {
                break;
            }
            let options = Options { host_budget, ..drafter.options };
            let less = Drafter::until(drafter.step, drafter.costs, options, drafter.end)?;
            let is_smaller = |found: &Draft, known: Option<&Draft>| known.is_none_or(|known| found.peak < known.peak);
            let found = least(&less).filter(|found| is_smaller(&found.draft, whole));
            let found_parts = parts::least_in_parts(&less).filter(|found| is_smaller(&found.draft, parts));
            self.optimal = found.or(self.optimal.take());
            self.in_parts = found_parts.or(self.in_parts.take());
        }
        Ok(())
    }

    /// A policy's draft with the smallest arena.
    pub(crate) fn of_policy(&self, policy: Policy) -> &Draft {
        if policy != Policy::Optimal {
            return self.moving.of_policy(policy);
        }
        let parts = self.in_parts.as_ref().map(|parts| &parts.draft);
        parts.filter(|parts| parts.peak < self.whole().peak).unwrap_or(self.whole())
    }

    /// The smallest arena of all policies whose operations compute the whole mini-batch.
    pub(super) fn whole(&self) -> &Draft {
        let moving = self.moving.of_policy(Policy::Optimal);
        let recomputing = self.optimal.as_ref().map(|least| &least.draft);
        recomputing.filter(|draft| draft.peak <= moving.peak).unwrap_or(moving)
    }

    /// The smallest arena of all policies. Covers the recomputing policy only if it was requested.
    pub(crate) fn least(&self) -> Bytes {
        Policy::ALL.into_iter().map(|policy| self.of_policy(policy).peak).min().unwrap_or_default()
    }

    /// The smallest arena of all policies, including `optimal`, for the error of another policy.
    ///
    /// - Cost: a search.
    pub(crate) fn least_of_all(&self, drafter: &Drafter<'_>) -> Bytes {
        let whole = least(drafter).map(|least| least.draft.peak);
        let parts = parts::least_in_parts(drafter).map(|found| found.draft.peak);
        whole.into_iter().chain(parts).chain([self.least()]).min().unwrap_or_default()
    }
}

/// The host limits below the drafter's: nothing, then rising powers, up to the bytes of all tensors that may move.
pub(super) fn hosts(drafter: &Drafter<'_>) -> impl Iterator<Item = Bytes> {
    let movable = drafter.step.tensors.iter().filter(|tensor| tensor.residence == Residence::Movable);
    let most = drafter.options.host_budget.min(movable.map(|tensor| tensor.bytes).sum());
    let powers = std::iter::successors(Some(FIRST_HOST), |host| host.checked_mul(HOST_RATIO));
    std::iter::once(0).chain(powers).map(Bytes).take_while(move |host| *host < most)
}

/// The script of each draft of [`Smallest`], in the order of its fields.
fn scripts(drafter: &Drafter<'_>) -> [Script; 6] {
    [
        Script::new(drafter.step.operations.len()),
        script(drafter, Offloads::Convolutions, None),
        script(drafter, Offloads::All, None),
        limited(drafter, Offloads::All, 0),
        overlap::floor(drafter),
        baseline(drafter.step),
    ]
}

/// The error if no attempt fits: the host budget if some attempt fits the device, otherwise the device budget, from the draft with the smallest
/// arena. `least` is the least budget of any policy.
pub(crate) fn too_large(drafter: &Drafter<'_>, draft: &Draft, attempts: &[Attempt], least: Bytes) -> Error {
    let (network, options) = (drafter.step.name.clone(), &drafter.options);
    let fits_device = |attempt: &&Attempt| attempt.needed <= options.budget;
    if let Some(needed) = attempts.iter().filter(fits_device).map(|attempt| attempt.host).min() {
        return Error::OverHostBudget { network, needed, budget: options.host_budget };
    }
    let proven = proven(drafter).0;
    let is_near = draft.peak.0 <= proven.0 + proven.0 * NEAR_PERCENT / 100;
    let may_need_less = options.policy == Policy::Optimal && !is_near;
    Error::OverBudget {
        network,
        policy: options.policy.name().to_owned(),
        needed: draft.peak,
        budget: options.budget,
        layer: drafter.binding_layer(draft),
        least,
        proven: may_need_less.then_some(proven),
    }
}
