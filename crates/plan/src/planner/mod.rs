//! Plans a step under a budget.

pub(crate) mod assemble;
pub(crate) mod floor;
mod policy;
pub(crate) mod scope;
pub(crate) mod sweep;

use tightfit_place::Effort;
use tightfit_units::{Bytes, Error};

use crate::attempts::PolicyResult;
use crate::memory::arena::Drafter;
use crate::planner::assemble::assemble;
use crate::planner::policy::choose;
use crate::search::floors::{self, Floors};
use crate::search::lanes::side_by_side;
use crate::step::Step;
use crate::{CostModel, Options, Plan, Stop};

/// Plans a step within a memory budget; `costs` gives the copy rates.
///
/// The schedule is complete: every block has an offset in the device arena, every copy a place on the host. The same
/// arguments give the same schedule.
///
/// - Source: Rhu et al. 2016, section 3, for the policies; see [`crate::Policy`].
///
/// # Errors
/// [`Error::OverBudget`], with the least budget and the layer at which memory peaks, or [`Error::OverHostBudget`] if
/// nothing fits; [`Error::NotProfiled`] for an operation without a configuration; the errors of [`Step::check`];
/// [`Error::Unsound`] if the checker rejects the schedule, which would be a bug in the planner.
///
/// ```
/// use tightfit_plan::{CostModel, Fronts, Mode, Options, Workload, plan};
/// use tightfit_units::Bytes;
/// use tightfit_conv::Types;
/// use tightfit_network::Network;
/// let network = Network::open("vgg19")?;
/// let workload = Workload::new(&network, 64, Types::F32, Mode::Training)?;
/// let costs = CostModel::h200();
/// let step = workload.step(&Fronts::assumed(&workload, &costs)?, &costs)?;
/// let plan = plan(&step, &costs, &Options { budget: Bytes::gib(5), ..Options::default() })?;
/// assert!(plan.peak <= Bytes::gib(5) && plan.baseline > Bytes::gib(5));
/// # Ok::<(), tightfit_units::Error>(())
/// ```
pub fn plan(step: &Step, costs: &CostModel, options: &Options) -> Result<Plan, Error> {
    plan_until(step, costs, options, Stop::Never)
}

/// As [`plan()`], but a flag may end the search early. The best plan so far then depends on the time of that.
///
/// # Errors
/// The errors of [`plan()`]; [`Error::Interrupted`] if the flag was set before any plan was found, or if [`Stop`] asks for no plan.
pub fn plan_until(step: &Step, costs: &CostModel, options: &Options, stop: Stop<'_>) -> Result<Plan, Error> {
    let drafter = Drafter::new(step, costs, *options, stop)?;
    let floors = Floors::of(&drafter)?;
    assemble(&drafter, &floors, chosen(&drafter, &floors)?)
}

/// The draft that the policy of the options chooses, placed tightly, with branches side by side where that is faster.
fn chosen(drafter: &Drafter<'_>, floors: &Floors) -> Result<PolicyResult, Error> {
    let mut chosen = choose(drafter, floors)?;
    chosen.draft = drafter.tightened(chosen.draft, Effort::Plan, drafter.end);
    side_by_side(drafter, &mut chosen);
    drafter.end.proceed()?;
    Ok(chosen)
}

/// The bytes that a step needs without a plan: it keeps every tensor until its last use, and runs the fastest algorithms. This is
/// [`Plan::baseline`] of each plan of the step.
///
/// # Errors
/// The errors of [`plan()`] that no budget changes.
pub fn plain(step: &Step, costs: &CostModel, options: &Options, stop: Stop<'_>) -> Result<Bytes, Error> {
    let drafter = Drafter::new(step, costs, *options, stop)?;
    let plain = floors::plain(&drafter, drafter.end).peak;
    drafter.end.proceed()?;
    Ok(plain)
}
