//! Decides for every idle interval of every movable tensor whether it stays, moves or is computed again, and for every
//! operation its point between time and workspace, so that a step takes the least time.

mod bound;
mod evaluate;
mod least;
mod min_cut;
mod model;
mod moving;
mod parts;
mod pool;
mod search;
mod slots;
mod starts;

use std::sync::{Mutex, PoisonError};

use bound::Relaxation;
pub(super) use least::{Least, least};
use model::Model;
pub(super) use parts::{DraftInParts, least as least_in_parts, proven as proven_in_parts};
use pool::{PHASES, Pool};

use super::vdnn::{self, Offloads};
use super::{Floors, Outcome, Trials};
use crate::plan::draft::Drafter;
use crate::plan::lower_bound::LowerBound;
use crate::plan::parts::Stretch;
use crate::plan::place::Effort;
use crate::plan::side_by_side::side_by_side;
use crate::plan::stop::End;
use crate::plan::{Algorithms, Bounded, Decision, InParts};
use crate::{Error, Nanos};

/// A plan whose time is above that of everything resident by at most one part in so many needs no stretch in parts.
const NEAR: u64 = 100;

/// Rounds of prices before the search, and after it, for usual networks; fewer for large steps.
const ROUNDS: [usize; 2] = [120, 160];

/// Rounds for large steps, at least.
const LEAST_ROUNDS: usize = 60;

/// Operations of a step above which nothing is computed again for the forward pass, where it hardly ever pays, unless
/// nothing else fits.
const LARGE: usize = 200;

/// Bytes that every plan with whole mini-batches needs at once, and the operation that does.
pub(super) fn floor(drafter: &Drafter<'_>) -> (u64, usize) {
    Model::of(drafter).floor()
}

/// Plans a step: whole mini-batches first, then stretches in parts where memory is short.
///
/// # Errors
/// [`Error::OverBudget`] or [`Error::OverHostBudget`] if nothing fits; [`Error::Interrupted`] if the flag is set and nobody
/// waits for a plan, or there is none.
pub(super) fn choose(drafter: &Drafter<'_>, floors: &Floors) -> Result<Outcome, Error> {
    let options = &drafter.options;
    let floor = floors.of_policy(options.policy);
    let too_large = |decisions: Vec<Decision>| drafter.too_large(floor, &decisions, floors.least());
    if floor.peak > options.budget {
        let is_stopped = drafter.end.is_stopped();
        return Err(if is_stopped { Error::Interrupted } else { too_large(vec![floor.decision("least", options)]) });
    }
    let mut trials = Trials::new(drafter);
    trials.consider("least", floors.whole().clone());
    if !try_keeping_everything(drafter, &mut trials) {
        // Parts of the mini-batch pay where memory is short; what fits well needs none.
        let stretches = parts::worth(drafter);
        if floors.whole().peak <= options.budget {
            let end = drafter.end.part(1 + stretches.len());
            let bound = search(drafter, floors.optimal.as_ref(), Some(floors), &mut trials, end)?;
            bound.into_iter().for_each(|bound| trials.add_bound(bound));
        }
        try_parts(drafter, floors, &stretches, &mut trials)?;
    }
    trials.outcome().map_err(too_large)
}

/// Tries everything resident with the fastest algorithms; returns whether that fits, as no plan is faster.
fn try_keeping_everything(drafter: &Drafter<'_>, trials: &mut Trials<'_>) -> bool {
    if drafter.options.algorithms != Algorithms::Memory {
        let kept = vdnn::script(drafter, Offloads::None, None);
        trials.consider("none(p)", drafter.draft(&kept, Algorithms::Performance, Effort::Plan));
    }
    let fastest = parts::fastest(drafter);
    let fits = trials.best().is_some_and(|best| best.time == fastest);
    if fits {
        trials.add_bound(LowerBound::whole(fastest, Bounded::Any));
    }
    fits
}

/// Plans the step with each of these stretches in parts.
///
/// # Errors
/// [`Error::Interrupted`] if the flag is set and nobody waits for a plan.
fn try_parts(
    drafter: &Drafter<'_>,
    floors: &Floors,
    stretches: &[Stretch],
    trials: &mut Trials<'_>,
) -> Result<(), Error> {
    let consider = |name: &str, found: DraftInParts, trials: &mut Trials<'_>| {
        trials.add_bound(found.bound);
        trials.consider(name, found.draft);
    };
    if let Some(least) = &floors.in_parts {
        consider("least in parts", least.clone(), trials);
    }
    let fastest = parts::fastest(drafter);
    for (place, stretch) in stretches.iter().enumerate() {
        let best = trials.best().map_or(Nanos(u64::MAX), |best| best.time);
        let is_late = drafter.end.is_over() && trials.best().is_some();
        if is_late || best.0 <= fastest.0 + fastest.0 / NEAR {
            break;
        }
        if let Some(found) = parts::plan(drafter, stretch, best, drafter.end.part(stretches.len() - place)) {
            let name = found.bound.in_parts.as_ref().map_or_else(String::new, InParts::words);
            consider(&name, found, trials);
        }
        drafter.end.proceed()?;
    }
    Ok(())
}

/// Searches for decisions, beginning with `least` among others, and places what it finds. Returns a bound, if it knows one.
/// With `floors`, the policies that only move tensors compete.
///
/// # Errors
/// [`Error::Interrupted`] if the flag is set and nobody waits for a plan.
fn search(
    drafter: &Drafter<'_>,
    least: Option<&Least>,
    floors: Option<&Floors>,
    trials: &mut Trials<'_>,
    end: End<'_>,
) -> Result<Option<LowerBound>, Error> {
    let whole = Model::of(drafter);
    let late = (drafter.step.operations.len() > LARGE).then(|| {
        let mut model = Model::of(drafter);
        model.compute_again_late();
        model
    });
    end.proceed()?;
    let late = late.as_ref().map(|model| Pool::started(model, least, end)).filter(|pool| !pool.is_empty());
    let bounded = if late.is_some() { Bounded::ForwardOnce } else { Bounded::Any };
    let mut pool = late.unwrap_or_else(|| Pool::started(&whole, least, end));
    end.proceed()?;
    let model = pool.model;
    let rounds = ROUNDS.map(|rounds| (rounds * 600 / model.touches.len().max(600)).max(LEAST_ROUNDS));
    let mut relaxation = Relaxation::new(model, drafter.options.budget.0);
    let bound = relaxation.improve(target(trials, &pool), rounds[0], end.part(PHASES));
    pool.follow(&bound);
    end.proceed()?;
    pool.place(trials);
    end.proceed()?;
    let target = target(trials, &pool);
    let rivals = floors.map_or(&[][..], |_| moving::rivals(model, trials, end));
    let relaxation = Mutex::new(relaxation);
    let improved = || relaxation.lock().unwrap_or_else(PoisonError::into_inner).improve(target, rounds[1], end).time;
    let found = side_by_side(1 + rivals.len(), |place| match (place.checked_sub(1), floors) {
        (Some(rival), Some(floors)) => (0, moving::draft(drafter, floors, rivals[rival])),
        _ => (improved(), None),
    });
    let bound = found.iter().map(|(time, _)| *time).fold(bound.time, u64::max);
    for (policy, (_, draft)) in rivals.iter().zip(found.into_iter().skip(1)) {
        draft.into_iter().for_each(|draft| _ = trials.consider(policy.name(), draft));
    }
    end.proceed()?;
    Ok((bound > 0).then_some(LowerBound::whole(Nanos(bound), bounded)))
}

/// The time of the fastest plan or decisions, in ns, which prices need not exceed.
fn target(trials: &Trials<'_>, pool: &Pool<'_, '_>) -> u64 {
    let placed = trials.best().map(|best| best.time.0);
    placed.into_iter().chain(pool.best()).min().unwrap_or(u64::MAX >> 8)
}
