//! The search for plans of one step: first decisions and prices, which predict how good its plans can be, then placements.

use std::sync::{Mutex, PoisonError};

use tightfit_place::Effort;
use tightfit_units::{Error, Nanos};

use crate::attempts::Attempts;
use crate::attempts::LowerBound;
use crate::memory::arena::{Draft, Drafter};
use crate::search::bound::Relaxation;
use crate::search::floors::Floors;
use crate::search::incumbents::{Incumbents, PHASE_TIME_DIVISOR, visits};
use crate::search::least::Least;
use crate::search::model::Model;
use crate::stop::End;
use crate::threads::on_threads;
use crate::vdnn::overlap;
use crate::vdnn::scripts::{Offloads, baseline, script};
use crate::{Bounded, Direction, Policy};

/// Rounds of price updates before and after the placements, for networks of usual size. Large steps get fewer.
const ROUNDS: [usize; 2] = [120, 160];

/// The fewest rounds for large steps.
const MIN_ROUNDS: usize = 60;

/// A step with more operations recomputes nothing for its forward pass, where recomputation hardly ever pays, unless nothing else fits.
const MAX_EARLY_RECOMPUTE_OPERATIONS: usize = 200;

/// The models of a step that a search uses.
pub(super) struct Models<'a> {
    whole: Model<'a>,
    /// For a large step: the model without recomputation for the forward pass.
    late: Option<Model<'a>>,
}

impl<'a> Models<'a> {
    pub(super) fn of(drafter: &'a Drafter<'a>) -> Models<'a> {
        let late = (drafter.step.operations.len() > MAX_EARLY_RECOMPUTE_OPERATIONS).then(|| {
            let mut model = Model::of(drafter);
            model.compute_again_late();
            model
        });
        Models { whole: Model::of(drafter), late }
    }

    /// Visits of operations that a search may take.
    pub(super) fn visits(&self) -> u64 {
        visits(&self.whole)
    }
}

pub(super) struct PlanSearch<'m, 'a> {
    pub(super) models: &'m Models<'a>,
    incumbents: Incumbents<'m, 'a>,
    relaxation: Relaxation<'m, 'a>,
    rounds: [usize; 2],
    bound: u64,
    bounded: Bounded,
}

impl<'m, 'a> PlanSearch<'m, 'a> {
    /// Tries many decisions (`least` among them) with a budget of `visits`, and follows the prices. Only plans faster than `most` are useful.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the flag is set and no caller waits for a plan.
    pub(super) fn begun(
        models: &'m Models<'a>,
        least: Option<&Least>,
        most: Option<Nanos>,
        visits: u64,
        end: End<'a>,
    ) -> Result<PlanSearch<'m, 'a>, Error> {
        end.proceed()?;
        let late = models
            .late
            .as_ref()
            .map(|model| Incumbents::started(model, least, visits, end))
            .filter(|incumbents| !incumbents.is_empty());
        let bounded = if late.is_some() { Bounded::ForwardOnce } else { Bounded::Any };
        let mut incumbents = late.unwrap_or_else(|| Incumbents::started(&models.whole, least, visits, end));
        end.proceed()?;
        let model = incumbents.model;
        let rounds = ROUNDS.map(|rounds| (rounds * 600 / model.touches.len().max(600)).max(MIN_ROUNDS));
        let mut relaxation = Relaxation::new(model, model.drafter.options.budget.0);
        let bound = relaxation.improve(target(most, &incumbents), rounds[0], end.part(PHASE_TIME_DIVISOR));
        incumbents.follow(&bound);
        end.proceed()?;
        Ok(PlanSearch { models, incumbents, relaxation, rounds, bound: bound.time, bounded })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.incumbents.is_empty()
    }

    /// The time of the fastest decisions so far; very large if none fit.
    pub(super) fn found(&self) -> Nanos {
        Nanos(self.incumbents.best().unwrap_or(u64::MAX >> 8))
    }

    /// A lower bound on the time of its plans.
    pub(super) fn bound(&self) -> Nanos {
        Nanos(self.bound)
    }

    /// The lower bound, with the plans that it covers.
    pub(super) fn lower_bound(&self) -> LowerBound {
        LowerBound::whole(self.bound(), self.bounded)
    }

    /// Searches with a budget of `visits` until `end`, places the plans found, and improves the bound. With `floors`, the policies that only move
    /// tensors compete. Returns the bound if one is known.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the flag is set and no caller waits for a plan.
    pub(super) fn placed(
        mut self,
        floors: Option<&Floors>,
        attempts: &mut Attempts<'_>,
        visits: u64,
        end: End<'a>,
    ) -> Result<Option<LowerBound>, Error> {
        self.incumbents.end = end;
        self.incumbents.allow(visits);
        self.incumbents.place(attempts);
        end.proceed()?;
        let PlanSearch { incumbents, relaxation, rounds, bound, bounded, .. } = self;
        let (model, drafter) = (incumbents.model, incumbents.model.drafter);
        let target = target(attempts.time(), &incumbents);
        let competitors = floors.map_or(&[][..], |_| competitors(model, attempts, end));
        let relaxation = Mutex::new(relaxation);
        let improved =
            || relaxation.lock().unwrap_or_else(PoisonError::into_inner).improve(target, rounds[1], end).time;
        let found = on_threads(1 + competitors.len(), |place| match (place.checked_sub(1), floors) {
            (Some(competitor), Some(floors)) => (0, competing(drafter, floors, competitors[competitor])),
            _ => (improved(), None),
        });
        let bound = found.iter().map(|(time, _)| *time).fold(bound, u64::max);
        for (policy, (_, draft)) in competitors.iter().zip(found.into_iter().skip(1)) {
            draft.into_iter().for_each(|draft| _ = attempts.consider(policy.name(), draft));
        }
        end.proceed()?;
        Ok((bound > 0).then_some(LowerBound::whole(Nanos(bound), bounded)))
    }
}

/// The time of the fastest plan or decisions in ns. Prices need not prove more.
fn target(most: Option<Nanos>, incumbents: &Incumbents<'_, '_>) -> u64 {
    most.map(|most| most.0).into_iter().chain(incumbents.best()).min().unwrap_or(u64::MAX >> 8)
}

/// The policies that may beat the best placed plan. Placing them takes long, so none are tried once time is over.
fn competitors(model: &Model<'_>, attempts: &Attempts<'_>, end: End<'_>) -> &'static [Policy] {
    let least = least_time(model, model.drafter.options.budget.0);
    match attempts.best().is_none_or(|best| !end.is_over() && best.time > least) {
        true => &[Policy::Overlap, Policy::VdnnAll, Policy::VdnnConv, Policy::Baseline],
        false => &[],
    }
}

/// The draft of one of these policies; `None` if none of its drafts fits.
fn competing(drafter: &Drafter<'_>, floors: &Floors, policy: Policy) -> Option<Draft> {
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
