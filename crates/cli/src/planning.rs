//! From a network to its plan: what `plan` and `train` share.

use tightfit_core::candidate::Limit;
use tightfit_core::network::Network;
use tightfit_core::plan::{self, Costs, Kernels, Options, Plan, Workload, plan};
use tightfit_core::survey::{Policy, Scope, survey};
use tightfit_core::{Bytes, Device, Error, Layout};
use tightfit_train::machine::cuda::BESIDE;

use crate::failure::Failure;
use crate::message;
use crate::options::{Common, Planning};
use crate::progress::Bar;
use crate::session::{Session, tell_of};

/// Plans a network as the options ask, after measuring its convolutions where they are not known yet.
///
/// # Errors
/// Those of measuring and of [`plan()`]; [`Failure::Usage`] without a mini-batch, without a budget where the device tells
/// none, and for a layout that plans are not made for; [`Error::BadOption`] for algorithms under a policy that chooses them.
pub fn plan_of(
    planning: &Planning,
    network: &Network,
    inference: bool,
    session: &mut Session,
    common: &Common,
) -> Result<Plan, Failure> {
    let workload = workload(planning, network, inference, common)?;
    let costs = costs(planning, session.device())?;
    let free = free(session);
    let options = options(planning, free)?;
    let kernels = measure(planning, &workload, options.budget, free, session, common)?;
    Ok(plan(&workload, &kernels, &costs, &options)?)
}

/// What is free on the device for an arena: on a GPU, without what the libraries take beside it.
fn free(session: &Session) -> Option<Bytes> {
    let free = session.backends.iter().filter_map(|backend| backend.free_memory()).min()?;
    Some(if session.device().backend == "cuda" { free.saturating_sub(BESIDE) } else { free })
}

/// Plans a network without measuring anything: no backend is needed. Also gives the device that is assumed.
///
/// # Errors
/// As [`plan_of`].
pub fn assumed_plan_of(
    planning: &Planning,
    network: &Network,
    inference: bool,
    common: &Common,
) -> Result<(Plan, Device), Failure> {
    let workload = workload(planning, network, inference, common)?;
    let costs = Costs::named(planning.costs.as_deref().unwrap_or("h200"))?;
    let kernels = Kernels::assumed(&workload, &costs)?;
    let device =
        Device { backend: "assumed".to_owned(), name: costs.name.clone(), library: "assumed".to_owned(), threads: 0 };
    Ok((plan(&workload, &kernels, &costs, &options(planning, None)?)?, device))
}

fn workload<'a>(
    planning: &Planning,
    network: &'a Network,
    inference: bool,
    common: &Common,
) -> Result<Workload<'a>, Failure> {
    if common.layout != Layout::Nchw {
        return Err(Failure::Usage(format!("--layout {}: plans are made for nchw", common.layout.name())));
    }
    let batch = planning
        .batch
        .ok_or_else(|| Failure::Usage("a plan needs a mini-batch; give one with --batch N".to_owned()))?;
    Ok(Workload::new(network, batch, common.types, inference)?)
}

fn options(planning: &Planning, free: Option<Bytes>) -> Result<Options, Failure> {
    let unknown =
        || Failure::Usage("nothing says how much memory there is; give it with --budget, as in 8GiB".to_owned());
    if let (plan::Policy::VdnnDynamic, Some(algorithms)) = (planning.policy, planning.algorithms) {
        let others: Vec<&str> =
            plan::Policy::ALL.iter().filter(|of| **of != plan::Policy::VdnnDynamic).map(|of| of.name()).collect();
        let what = format!(
            "--algorithms {algorithms}: the policy vdnn-dynamic chooses the algorithms itself; leave it out, or name \
             another policy with --policy ({})",
            others.join(", ")
        );
        return Err(Error::BadOption { what }.into());
    }
    Ok(Options {
        policy: planning.policy,
        algorithms: planning.algorithms.unwrap_or_default(),
        divide: planning.divide,
        budget: planning.budget.or(free).ok_or_else(unknown)?,
        host_budget: planning.host_budget,
    })
}

/// The rates that the options name, else those of the device.
fn costs(planning: &Planning, device: &Device) -> Result<Costs, Failure> {
    if let Some(name) = &planning.costs {
        return Ok(Costs::named(name)?);
    }
    let known = [("H200", Costs::h200 as fn() -> Costs), ("K40", Costs::k40)];
    match known.iter().find(|(name, _)| device.name.contains(name)) {
        Some((_, costs)) => Ok(costs()),
        None if device.library.starts_with("tightfit-cpu") => Ok(Costs::cpu()),
        None => {
            message::note(format_args!(
                "copies on {} are taken to be as fast as an H200's; --costs names other rates",
                device.name
            ));
            Ok(Costs::h200())
        }
    }
}

/// The fronts of every convolution that the workload runs.
fn measure(
    planning: &Planning,
    workload: &Workload<'_>,
    budget: Bytes,
    free: Option<Bytes>,
    session: &mut Session,
    common: &Common,
) -> Result<Kernels, Failure> {
    let problems = Kernels::problems(workload)?;
    let scope = Scope {
        policy: if planning.divide { planning.sizes } else { Policy::Undivided },
        // What the arena leaves free differs from step to step.
        limits: Limit::Total(budget).ladder(),
        // The time that a plan is compared with is that of the fastest algorithms, whatever their workspace.
        baseline: Some(free.map_or(Bytes::UNLIMITED, |free| free.max(budget))),
        deterministic: common.deterministic,
        exact_class: common.exact_class,
        cache: session.cache.as_ref(),
        stop: &session.stop,
    };
    let found = survey(&problems, &scope, &mut session.backends, &Bar::new())?;
    tell_of(&found.spent, common);
    Ok(Kernels::of(&found.candidates)?)
}
