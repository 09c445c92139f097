//! From a network to its plan: shared by `plan` and `train`.

use std::collections::HashMap;
use std::path::Path;

use tightfit_conv::problem::Storage;
use tightfit_conv::{Device, Layout, Operation, Problem};
use tightfit_network::{Kernel, Network, Sgd};
use tightfit_plan::step::Step;
use tightfit_plan::{
    self as plan, CostModel, Fronts, Mode, NamedMachine, Options, Plan, Rivals, Stop, Swept, Workload, check_budget,
    part_sizes, plan_until,
};
use tightfit_profile::survey::{Divide, Scope, Silent, survey, tensor_memory};
use tightfit_train::machine::cuda::RESERVED;
use tightfit_units::{Bytes, Error, Nanos};

use crate::estimate::{Work, foresee, usable};
use crate::failure::Failure;
use crate::interrupt;
use crate::message;
use crate::options::{Batch, Budget, Common, Planning, Share, Shares, SolverName, sizes};
use crate::progress::{Bar, Measuring};
use crate::session::{Session, env, is_replay, must_support, report_spent};

/// The default mini-batch of a plan.
const BATCH: usize = 32;

/// A note is printed if a plan takes at least this multiple of another plan's time.
const NOTABLY: f64 = 1.05;

/// The goal of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Training, by a solver that has momentum or not, or by AdamW with two moments.
    Training { momentum: bool, adamw: bool },
    /// Forward passes alone.
    Inference,
}

impl Goal {
    /// Training by this solver; SGD without momentum keeps nothing.
    ///
    /// # Errors
    /// As [`must_be_of_sgd`].
    pub fn training(solver: SolverName, momentum: Option<f32>) -> Result<Goal, Failure> {
        must_be_of_sgd(solver, momentum)?;
        let momentum = momentum.unwrap_or(Sgd::default().momentum);
        Ok(Goal::Training { momentum: momentum != 0.0, adamw: solver == SolverName::Adamw })
    }
}

/// Refuses a momentum with a solver that has none.
///
/// # Errors
/// [`Failure::Usage`] with both options.
pub fn must_be_of_sgd(solver: SolverName, momentum: Option<f32>) -> Result<(), Failure> {
    match (solver, momentum) {
        (SolverName::Adamw, Some(momentum)) => Err(Failure::Usage(format!(
            "--momentum {momentum} is an option of SGD, and AdamW has none; leave it out, or use --solver sgd"
        ))),
        _ => Ok(()),
    }
}

/// A step with everything that a plan of it depends on.
pub struct Prepared {
    pub step: Step,
    pub costs: CostModel,
    pub options: Options,
    /// The share that the budget was given as, and plain.
    share: Option<(Share, Bytes)>,
}

/// The request for a plan.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub planning: &'a Planning,
    pub network: &'a Network,
    pub goal: Goal,
    pub common: &'a Common,
    /// Names the options that measure less.
    pub choices: &'a str,
}

impl Request<'_> {
    /// Measures the convolutions that are not known yet. Refuses a network whose tensors alone exceed the budget before
    /// measuring anything.
    ///
    /// # Errors
    /// The errors of [`check_budget`], of [`foresee`] and of measuring; [`Failure::Usage`] without a mini-batch, without a
    /// budget if the device does not report one, and for `--layout nhwc` in 32 bits; [`Error::BadNetwork`] for a layout
    /// that the network does not allow; [`Error::BadOption`] for algorithms under a policy that chooses them.
    pub fn prepare(&self, session: &mut Session) -> Result<Prepared, Failure> {
        let &Request { planning, network, goal, common, choices } = self;
        let workload = workload(planning, network, goal, common)?;
        let costs = costs(planning, session.device())?;
        let free = free(session);
        let options = options(planning, free)?;
        // A recording answers immediately, including the workspaces needed.
        if !session.backends.iter().any(|backend| backend.is_replay()) {
            check_budget(&workload, &costs, &options)?;
        }
        let parts = part_sizes(&workload, &costs, &options)?;
        let fronts = measure(planning, &workload, (options.budget, free, parts), session, common, choices)?;
        Prepared { step: workload.step(&fronts, &costs)?, costs, options, share: None }.within(planning)
    }
}

/// Prepares a recorded step; the machine of the file counts unless the options name other rates.
///
/// # Errors
/// The errors of [`plan::Prepared::recorded`], and of the options.
pub fn recorded_step(planning: &Planning, path: &Path) -> Result<(Prepared, Device), Failure> {
    let room = || options(planning, Some(room(planning)));
    split(plan::Prepared::recorded(path, planning.costs.as_deref(), room)?, planning)
}

impl Prepared {
    /// The options with a budget in bytes. A share of plain becomes bytes.
    fn within(mut self, planning: &Planning) -> Result<Prepared, Failure> {
        if let Some(Budget::Share(share)) = planning.budget {
            let plain = self.plain()?;
            self.options.budget = share.of(plain);
            self.share = Some((share, plain));
        }
        Ok(self)
    }

    /// The memory that the step needs without a plan.
    pub fn plain(&self) -> Result<Bytes, Failure> {
        let flag = interrupt::current();
        let stop = flag.as_deref().map_or(Stop::Never, Stop::WithNothing);
        Ok(plan::plain(&self.step, &self.costs, &self.options, stop)?)
    }

    /// Plans under several shares of the bytes of [`Prepared::plain`], as others do, too; also returns these bytes.
    ///
    /// # Errors
    /// The errors of [`plan::sweep`].
    pub fn sweep(&self, shares: Shares) -> Result<(Vec<Swept>, Vec<Rivals>, Bytes), Failure> {
        let bar = Bar::new(format!("planning {}", self.step.name), None);
        let whole = self.plain()?;
        let flag = interrupt::current();
        let stop = flag.as_deref().map_or(Stop::Never, Stop::WithNothing);
        let budgets: Vec<Bytes> =
            shares.iter().map(|share| Bytes((u128::from(whole.0) * u128::from(share) / 100) as u64)).collect();
        let plans = plan::sweep(&self.step, &self.costs, &self.options, &budgets, stop)?;
        let rivals = plan::rivals(&self.step, &self.costs, &self.options, &budgets, stop)?;
        drop(bar);
        Ok((plans, rivals, whole))
    }

    /// Searches for the plan, with a progress bar; notes it if the default policy has a clearly faster one.
    ///
    /// # Errors
    /// The errors of [`plan()`].
    pub fn plan(&self) -> Result<Plan, Failure> {
        let Prepared { step, costs, options, share } = self;
        drawn_up(step, costs, options).map_err(|failure| match (share, &failure) {
            (Some((share, plain)), Failure::Error(Error::OverBudget { needed, .. })) => {
                let enough = (u128::from(needed.0) * 100).div_ceil(u128::from(plain.0.max(1)));
                Failure::TooLarge(format!(
                    "{}. The budget is {share} of plain's {plain}; at least {enough}% is needed",
                    failure.text()
                ))
            }
            _ => failure,
        })
    }
}

fn drawn_up(step: &Step, costs: &CostModel, options: &Options) -> Result<Plan, Failure> {
    let bar = Bar::new(format!("planning {}", step.name), None);
    let flag = interrupt::current();
    let stop = flag.as_deref().map_or(Stop::Never, Stop::WithNothing);
    let chosen = plan_until(step, costs, options, stop)?;
    let is_slower = |time: Nanos| chosen.step_time.0 as f64 > time.0 as f64 * NOTABLY;
    // No plan is much faster than plain, so a plan that is as fast needs no other to compare with.
    let is_default = options.policy == plan::Policy::default();
    let other = (!is_default && is_slower(chosen.baseline_time))
        .then(|| plan_until(step, costs, &Options { policy: plan::Policy::default(), ..*options }, stop))
        .and_then(Result::ok);
    drop(bar);
    if let Some(other) = other.filter(|other| is_slower(other.step_time)) {
        message::note(format_args!(
            "a step takes {} under the policy {} and {} under {}; use --policy {}",
            chosen.step_time, options.policy, other.step_time, other.options.policy, other.options.policy
        ));
    }
    Ok(chosen)
}

/// Free device memory for an arena; on a GPU, less what the libraries take.
fn free(session: &Session) -> Option<Bytes> {
    let free = session.backends.iter().filter_map(|backend| backend.free_memory()).min()?;
    Some(if session.device().backend == "cuda" { free.saturating_sub(RESERVED) } else { free })
}

/// Prepares a plan of a network without measuring anything: needs no backend, and offloads nothing if no budget is given. Also
/// returns the assumed device.
///
/// # Errors
/// As [`Request::prepare`].
pub fn assumed_of(
    planning: &Planning,
    network: &Network,
    goal: Goal,
    common: &Common,
) -> Result<(Prepared, Device), Failure> {
    let workload = workload(planning, network, goal, common)?;
    let room = || options(planning, Some(room(planning)));
    split(plan::Prepared::assumed(&workload, planning.costs.as_deref(), room)?, planning)
}

/// The budget of a plan that measures nothing, if none is given: the room of the named card.
fn room(planning: &Planning) -> Bytes {
    let named = planning.costs.as_deref().and_then(|name| NamedMachine::named(name).ok());
    let Some((card, room)) = named.and_then(|card| Some((card, card.room()?))) else { return Bytes::UNLIMITED };
    if planning.budget.is_none() {
        message::note(format_args!(
            "the budget is {room}: the {} has {}, and the driver and libraries take 1 GiB; set another with --budget",
            card.name,
            room + Bytes::gib(1)
        ));
    }
    room
}

fn split(prepared: plan::Prepared, planning: &Planning) -> Result<(Prepared, Device), Failure> {
    let plan::Prepared { step, costs, options, device } = prepared;
    Ok((Prepared { step, costs, options, share: None }.within(planning)?, device))
}

fn workload<'a>(
    planning: &Planning,
    network: &'a Network,
    goal: Goal,
    common: &Common,
) -> Result<Workload<'a>, Failure> {
    let batch = match planning.batch {
        Some(Batch::Samples(samples)) => samples,
        Some(Batch::Max) => return Err(Failure::Usage("--batch max is for `plan`; give a number".to_owned())),
        None => {
            message::note(format_args!("assuming a mini-batch of {BATCH}; set another with --batch"));
            BATCH
        }
    };
    let of = |mode| Workload::new(network, batch, common.types, mode);
    let workload = match goal {
        Goal::Training { momentum, adamw } => {
            of(Mode::Training)?.with_momentum(momentum).with_adamw(adamw).with_frozen(&planning.freeze)?
        }
        Goal::Inference if !planning.freeze.is_empty() => {
            let why = "--freeze is for training: no layer changes in inference; leave the option out";
            return Err(Failure::Usage(why.to_owned()));
        }
        Goal::Inference => of(Mode::Inference)?,
    };
    if common.layout == Some(Layout::Nhwc) && common.types.storage() == Storage::F32 {
        let types = common.types;
        return Err(Failure::Usage(format!(
            "--layout nhwc: plans in {types} support nchw only; nhwc is for f16, f16-f32 and bf16"
        )));
    }
    Ok(match common.layout {
        Some(layout) => workload.with_layout(layout)?,
        None => workload.with_usual_layout(is_replay(common)),
    })
}

fn options(planning: &Planning, free: Option<Bytes>) -> Result<Options, Failure> {
    let unknown = || Failure::Usage("the amount of memory is unknown; set it with --budget, such as 8GiB".to_owned());
    if let (plan::Policy::VdnnDynamic, Some(algorithms)) = (planning.policy, planning.algorithms) {
        let others: Vec<&str> = plan::Policy::ALL
            .iter()
            .filter(|policy| **policy != plan::Policy::VdnnDynamic)
            .map(|policy| policy.name())
            .collect();
        let what = format!(
            "--algorithms {algorithms}: the policy vdnn-dynamic chooses the algorithms itself; drop the option, or \
             choose another --policy ({})",
            others.join(", ")
        );
        return Err(Error::BadOption { what }.into());
    }
    Ok(Options {
        policy: planning.policy,
        algorithms: planning.algorithms.unwrap_or_default(),
        divide: planning.divide.divide != Some(Divide::Off),
        lanes: planning.lanes,
        // The bytes of a share are computed when the step is known.
        budget: match planning.budget {
            Some(Budget::Bytes(bytes)) => bytes,
            Some(Budget::Share(_)) => Bytes::UNLIMITED,
            None => free.ok_or_else(unknown)?,
        },
        host_budget: planning.host_budget,
        plan_time: planning.plan_time,
    })
}

/// The rates that the options name, or else the device's.
fn costs(planning: &Planning, device: &Device) -> Result<CostModel, Failure> {
    match CostModel::of_device(planning.costs.as_deref(), device)? {
        Some(costs) => Ok(costs),
        None => {
            message::note(format_args!(
                "assuming that copies on {} are as fast as on an H200; set other rates with --costs",
                device.name
            ));
            Ok(CostModel::of_unknown_device())
        }
    }
}

/// The fronts of every convolution that the workload runs, for a budget, what is free on the device, and smaller
/// mini-batches.
fn measure(
    planning: &Planning,
    workload: &Workload<'_>,
    (budget, free, parts): (Bytes, Option<Bytes>, HashMap<Problem, Vec<usize>>),
    session: &mut Session,
    common: &Common,
    choices: &str,
) -> Result<Fronts, Failure> {
    let problems = workload.problems()?;
    must_support(session.device(), &problems)?;
    // On a CPU, measuring takes the same memory as the arena: workspaces get what the tensors leave.
    let room = (session.device().backend == "cpu").then(usable).flatten();
    let room = room.map(|usable| usable.saturating_sub(tensor_memory(&problems)));
    let (budget, free) = room.map_or((budget, free), |room| (budget.min(room), Some(room)));
    let sizes = sizes(planning.sizes)?;
    let scope = Scope {
        sizes,
        divide: planning.divide.get(),
        // The free part of the arena differs from step to step.
        limits: plan::limits(budget),
        parts,
        // Plans are compared with the time of the fastest algorithms, whatever their workspace.
        baseline: Some(free.map_or(Bytes::UNLIMITED, |free| free.max(budget))),
        deterministic: common.deterministic,
        exact_class: common.exact_class,
    };
    let work = Work { network: workload.network.name(), problems: &problems, beside: Bytes::ZERO, choices };
    let Session { backends, cache, stop } = session;
    let expected = foresee(&work, &scope, backends[0].as_mut(), &env(cache, stop, &Silent))?;
    let bar = Measuring::new(&kernels_of(workload)?, expected);
    let found = survey(&problems, &scope, backends, &env(cache, stop, &bar))?;
    drop(bar);
    report_spent(&found.spent, common);
    Ok(Fronts::of(&found.candidates)?)
}

/// The convolutions of a workload with the layers that they belong to.
fn kernels_of(workload: &Workload<'_>) -> Result<Vec<Kernel>, Failure> {
    Ok(workload.network.kernels(Some(workload.batch), &Operation::ALL, workload.types, workload.layout)?)
}
