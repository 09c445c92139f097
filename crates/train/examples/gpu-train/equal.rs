//! Every policy's losses and gradients, of maps and of parameters, bit by bit; and the refusal of a unit too little.

use std::collections::HashMap;
use std::path::Path;

use tightfit_conv::candidate::Candidates;
use tightfit_conv::{Problem, Types};
use tightfit_cuda::Options;
use tightfit_network::Network;
use tightfit_plan::{
    ALIGNMENT, Algorithms, Budgets, Checked, CostModel, Fronts, Mode, Options as PlanOptions, Plan, Policy, Schedule,
    Workload, plan,
};
use tightfit_profile::Cache;
use tightfit_test_support::train::bits::{Step, bits};
use tightfit_test_support::train::networks::{fork_and_join, residual};
use tightfit_train::machine::cuda::{CudaMachine, Modes};
use tightfit_train::{Engine, Observation, Poison, Solver};
use tightfit_units::Bytes;

use crate::Failure;
use crate::cases::{candidates, numbers};

pub fn equal(cache: &Path) -> Result<(), Failure> {
    let cache = Cache::open(cache)?;
    let networks =
        [Network::open("lenet")?, Network::open("cifar10-quick")?, fork_and_join(32, 8)?, residual(32, [16, 32])?];
    let mut machines = Vec::new();
    for graph in [false, true] {
        machines.push((graph, CudaMachine::open(&Options::default(), Modes { graph, ..Modes::default() })?));
    }
    let mut different = 0;
    for network in &networks {
        let workload = Workload::new(network, 16, Types::F32, Mode::Training)?;
        let kernels = one_each(candidates(&workload, &cache)?)?;
        let mut want: Option<Vec<Step>> = None;
        for policy in Policy::ALL {
            let plan_under = |budget| memory_optimal(&workload, &kernels, policy, budget);
            // Dynamic and overlap choose what moves by the budget: the least makes them move much, by the same algorithms.
            let plan = match plan_under(Bytes::UNLIMITED)? {
                free if matches!(policy, Policy::VdnnDynamic | Policy::Overlap | Policy::Optimal) => {
                    plan_under(free.min_feasible)?
                }
                free => free,
            };
            for (graph, machine) in &mut machines {
                let (steps, copies) =
                    five_steps(&workload, &plan, machine, if *graph { Poison::Nothing } else { Poison::Freed })?;
                let same = want.get_or_insert_with(|| steps.clone()) == &steps;
                different += usize::from(!same);
                let (loss, gradients) =
                    steps.last().map_or((0.0, 0), |(loss, gradients)| (f64::from_bits(*loss), gradients.len()));
                let (how, verdict) =
                    (if *graph { " as a graph" } else { "" }, if same { "the same bits" } else { "DIFFERENT" });
                let (name, peak, offloaded) = (network.name(), plan.peak, plan.offloaded);
                println!(
                    "{name} {policy}{how}: {peak}, {offloaded} offloaded, {copies} copies came back unchanged, loss \
                     {loss}, {gradients} gradients a step: {verdict}"
                );
            }
            let (_, machine) = &mut machines[0];
            refused(&workload, &kernels, policy, plan.min_feasible, machine)?;
            println!("{} {policy}: {} fit, {ALIGNMENT} B less are refused", network.name(), plan.min_feasible);
        }
    }
    if different == 0 { Ok(()) } else { Err(format!("{different} runs differ from the baseline").into()) }
}

/// One algorithm for each kernel under every policy, also under policies that choose by free memory: the undivided one of
/// the least workspace.
fn one_each(mut found: HashMap<Problem, Candidates>) -> Result<Fronts, Failure> {
    for (problem, kernel) in &mut found {
        let whole = kernel.candidates.iter().filter(|candidate| candidate.micro_batch == problem.batch());
        let least = whole.min_by_key(|candidate| (candidate.workspace, candidate.time)).cloned();
        kernel.candidates = Vec::from_iter(least);
    }
    Ok(Fronts::of(&found)?)
}

/// An undivided plan with the algorithms of the least workspace.
pub fn memory_optimal(
    workload: &Workload<'_>,
    kernels: &Fronts,
    policy: Policy,
    budget: Bytes,
) -> Result<Plan, tightfit_units::Error> {
    let algorithms = Algorithms::Memory;
    let options = PlanOptions { policy, algorithms, divide: false, budget, ..PlanOptions::default() };
    plan(&workload.step(kernels, &CostModel::h200())?, &CostModel::h200(), &options)
}

/// Plans with the least budget and carries out its first step. Then the planner, the engine, and the machine without the
/// engine's check each get one unit less, and each has to refuse.
fn refused(
    workload: &Workload<'_>,
    kernels: &Fronts,
    policy: Policy,
    least: Bytes,
    machine: &mut CudaMachine,
) -> Result<(), Failure> {
    let plan = memory_optimal(workload, kernels, policy, least)?;
    let (samples, labels) = mini_batch(workload, 0);
    Engine::new(workload, &plan.schedule, &mut *machine, Solver::default(), Poison::Nothing)?
        .step(&samples, &labels)?;
    let less = Bytes(least.0 - ALIGNMENT);
    match memory_optimal(workload, kernels, policy, less) {
        Err(error) if error.is_over_limit() => {}
        Err(error) => return Err(error.into()),
        Ok(_) => return Err(format!("{policy}: a plan in {less}, below the least of {least}").into()),
    }
    let small = Schedule { device_bytes: less, ..plan.schedule.into_schedule() };
    if Checked::new(&workload.lower()?.step, small.clone(), Budgets::default()).is_ok() {
        return Err(format!("{policy}: the checker takes an arena of {less} for a schedule of {least}").into());
    }
    let small = Checked::assume(&workload.lower()?.step, small);
    if Engine::new(workload, &small, &mut *machine, Solver::default(), Poison::Nothing).is_ok() {
        return Err(format!("{policy}: the machine takes an arena of {less} for a schedule of {least}").into());
    }
    Ok(())
}

fn mini_batch(workload: &Workload<'_>, step: u64) -> (Vec<f32>, Vec<u32>) {
    let samples = numbers(workload.batch * workload.network.layers()[0].shape.len(), step);
    (samples, (0..workload.batch as u32).map(|n| (n + step as u32) % 10).collect())
}

/// Losses and gradients of five steps, and the number of copies that came back as they had been sent.
fn five_steps(
    workload: &Workload<'_>,
    plan: &Plan,
    machine: &mut CudaMachine,
    poison: Poison,
) -> Result<(Vec<Step>, usize), Failure> {
    let observed = Observation::of(workload, &plan.schedule)?;
    let mut engine = Engine::new(workload, &observed.schedule, machine, Solver::default(), poison)?;
    let (steps, copies) = bits(&mut engine, &observed, (0..5).map(|step| mini_batch(workload, step)))?;
    Ok((steps, copies.iter().sum()))
}
