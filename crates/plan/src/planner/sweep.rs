//! Plans a step under several budgets; a larger budget is never slower.

use tightfit_units::{Bytes, Error, Nanos};

use crate::attempts::PolicyResult;
use crate::memory::arena::Drafter;
use crate::planner::assemble::assemble;
use crate::planner::chosen;
use crate::planner::policy::choose;
use crate::search::checkpointing::checkpointing;
use crate::search::floors::Floors;
use crate::step::Step;
use crate::{CostModel, Options, Plan, Policy, Stop, plain, simulate};

/// A budget, and its plan or the reason for having none.
pub type Swept = (Bytes, Result<Plan, Error>);

/// Plans a step under each of these budgets, in rising order. If the plan of a smaller budget is faster, it is reused.
///
/// - Cost: one [`crate::plan()`] per budget.
///
/// # Errors
/// Errors of [`crate::plan_until`] that no budget changes. An error that a budget is too small is returned for that budget.
pub fn sweep(
    step: &Step,
    costs: &CostModel,
    options: &Options,
    budgets: &[Bytes],
    stop: Stop<'_>,
) -> Result<Vec<Swept>, Error> {
    let mut budgets = budgets.to_vec();
    budgets.sort_unstable();
    budgets.dedup();
    let mut plans: Vec<Swept> = Vec::with_capacity(budgets.len());
    for budget in budgets {
        let drafter = Drafter::new(step, costs, Options { budget, ..*options }, stop)?;
        let floors = Floors::of(&drafter)?;
        let smaller = plans.iter().rev().find_map(|(_, plan)| plan.as_ref().ok());
        let planned = chosen(&drafter, &floors).and_then(|chosen| {
            let bound = chosen.bound.clone();
            let plan = assemble(&drafter, &floors, chosen)?;
            match smaller.filter(|smaller| smaller.step_time < plan.step_time) {
                None => Ok(plan),
                Some(smaller) => {
                    let draft = drafter.drafted(smaller.schedule.clone().into_schedule());
                    let mut attempt = draft.attempt("plan of a smaller budget", &drafter.options);
                    attempt.taken = true;
                    let mut attempts = plan.decisions;
                    attempts.iter_mut().for_each(|attempt| attempt.taken = false);
                    attempts.push(attempt);
                    let bound = bound.filter(|bound| bound.covers(smaller.in_parts.as_ref(), smaller.step_time));
                    assemble(&drafter, &floors, PolicyResult { draft, attempts, bound })
                }
            }
        });
        match planned {
            Err(error) if !error.is_over_limit() => return Err(error),
            planned => plans.push((budget, planned)),
        }
    }
    Ok(plans)
}

/// The step time of existing methods under a budget; `None` if their plans do not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rivals {
    /// The policy vdnn-dynamic, which copies feature maps to the host and chooses algorithms.
    pub vdnn: Option<Nanos>,
    /// Checkpoints: the forward pass is cut into segments of equal bytes, and everything inside them is recomputed. The fastest of several numbers of
    /// segments that fits counts. It uses the fastest algorithms that fit in the remaining memory.
    pub checkpoints: Option<Nanos>,
}

/// The time that checkpoints add to a step under each of these shares of plain, as a share of its time; `None` where none fit.
///
/// **Source**: Chen et al. 2016, 4.
///
/// # Errors
/// The errors of [`crate::plain()`].
pub fn checkpoints(
    step: &Step,
    costs: &CostModel,
    options: &Options,
    shares: &[f64],
    stop: Stop<'_>,
) -> Result<Vec<Option<f64>>, Error> {
    let whole = plain(step, costs, options, stop)?;
    let under = |share: &f64| {
        let options = Options { budget: Bytes((whole.0 as f64 * share) as u64), ..*options };
        let drafter = Drafter::new(step, costs, options, stop)?;
        let fastest: Nanos = drafter.fastest_times().into_iter().sum();
        let found = checkpointing(&drafter);
        Ok(found.map(|found| simulate(step, &found.draft.schedule, costs).time.ratio(fastest) - 1.0))
    };
    shares.iter().map(under).collect()
}

/// Plans a step under each of these budgets with existing methods, to compare [`sweep`] with.
///
/// **Source**: Rhu et al. 2016, 3.4 (vDNN); Chen et al. 2016, 4 (checkpoints).
///
/// # Errors
/// Errors of [`crate::plan_until`] that no budget changes.
pub fn rivals(
    step: &Step,
    costs: &CostModel,
    options: &Options,
    budgets: &[Bytes],
    stop: Stop<'_>,
) -> Result<Vec<Rivals>, Error> {
    let under = |budget: &Bytes| {
        let options = Options { policy: Policy::VdnnDynamic, budget: *budget, ..*options };
        let drafter = Drafter::new(step, costs, options, stop)?;
        let floors = Floors::of(&drafter)?;
        let time = |outcome: PolicyResult| assemble(&drafter, &floors, outcome).map(|plan| plan.step_time);
        let vdnn = match choose(&drafter, &floors) {
            Ok(outcome) => Some(time(outcome)?),
            Err(error) if error.is_over_limit() => None,
            Err(error) => return Err(error),
        };
        let checkpoints = checkpointing(&drafter).map(time);
        Ok(Rivals { vdnn, checkpoints: checkpoints.transpose()? })
    };
    budgets.iter().map(under).collect()
}
