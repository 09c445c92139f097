//! Assembles a [`Plan`] from a draft: checks its schedule, simulates it, and collects the facts known in advance.

use std::collections::HashSet;

use tightfit_conv::Layout;
use tightfit_units::{Bytes, Error, Nanos};

use crate::attempts::PolicyResult;
use crate::memory::arena::Drafter;
use crate::schedule::lives::Lives;
use crate::search::floors::{Floors, proven};
use crate::step::{Access, Cost, Group, GroupId, Residence, Stage, Step, Tensor, TensorId};
use crate::{
    Accounting, Action, BlockId, Budgets, Checked, Compute, Holding, InParts, Kind, KindBytes, LayerPlan, MapPlan,
    MapTreatment, Mode, Plan, Policy, Schedule, Simulation, Span, simulate,
};

/// Turns a draft into a plan, after checking its schedule.
///
/// # Errors
/// [`Error::Unsound`] if the checker rejects the schedule, which would be a bug in the planner.
pub(crate) fn assemble(drafter: &Drafter<'_>, floors: &Floors, chosen: PolicyResult) -> Result<Plan, Error> {
    let (step, plain) = (drafter.step, &floors.plain);
    let PolicyResult { draft, mut attempts, bound } = chosen;
    let schedule = draft.schedule;
    // Bounds hold only for plans with one lane.
    let bound = bound.filter(|_| schedule.lanes() == 1);
    let simulation = simulate(step, &schedule, drafter.costs);
    if let Some(taken) = attempts.iter_mut().find(|attempt| attempt.taken) {
        taken.time = Some(simulation.time);
        taken.needed = draft.peak;
    }
    let floor = floors.of_policy(drafter.options.policy);
    let (at_most, layer_average) = live_in_order(step, &schedule);
    let offloads = |action: &Action| match action {
        Action::Offload(block, _) => schedule.blocks[block.0].bytes,
        _ => 0,
    };
    let of_updates = step.operations.iter().filter(|operation| operation.stage == Stage::Update);
    let updated: HashSet<_> = of_updates.flat_map(|operation| &operation.uses).map(|used| used.tensor).collect();
    let updated = updated.iter().filter(|&&tensor| step.tensor(tensor).kind == Kind::WeightGradients).count();
    let count = |kind| step.tensors.iter().filter(|tensor| tensor.kind == kind).count();
    let plan = Plan {
        network: step.name.clone(),
        batch: step.batch,
        types: step.types,
        layout: layout(step),
        mode: step.mode,
        // Inference has no solver, so momentum does not apply.
        momentum: step.mode == Mode::Inference || step.tensors.iter().any(|tensor| tensor.kind == Kind::Momentum),
        // Every parameter that trains has one gradient, and as many solver tensors as the solver has moments.
        adamw: count(Kind::Momentum) > updated,
        frozen: Vec::new(),
        options: drafter.options,
        device: None,
        peak: draft.peak,
        most_live: draft.most_live,
        average: simulation.average(KindBytes::total),
        layer_average,
        at_most,
        host: draft.host,
        min_feasible: floor.peak,
        binding_layer: drafter.binding_layer(floor),
        least: floors.least(),
        proven: Some(proven(drafter).0).filter(|_| drafter.options.policy == Policy::Optimal),
        baseline: plain.peak,
        step_time: simulation.time,
        baseline_time: drafter.fastest_times().into_iter().sum(),
        gap: bound.as_ref().map(|bound| simulation.time.ratio(bound.time) - 1.0),
        bound: bound.as_ref().map(|bound| bound.time),
        bounded: bound.map(|bound| bound.bounded).unwrap_or_default(),
        offloaded: Bytes(schedule.instructions.iter().map(|instruction| offloads(&instruction.action)).sum()),
        recomputed: recomputed(&schedule, &simulation),
        ours: Accounting {
            maximum: draft.most_live,
            average: simulation.average(KindBytes::total),
            baseline: plain.peak,
        },
        paper: Accounting {
            maximum: simulation.maximum(KindBytes::in_paper),
            average: simulation.average(KindBytes::in_paper),
            baseline: papers_baseline(step, &plain.schedule),
        },
        in_parts: InParts::of(step, &schedule),
        maps: maps(step, &schedule, &simulation),
        layers: layers(step, &schedule, &simulation),
        decisions: attempts,
        schedule: (),
        simulation,
    };
    let budgets = Budgets { device: plan.options.budget, host: plan.options.host_budget };
    Ok(plan.with_schedule(Checked::new(step, schedule, budgets)?))
}

/// The layout of a step's convolutions, which all its maps share.
fn layout(step: &Step) -> Layout {
    let chosen = step.operations.iter().find_map(|operation| match &operation.cost {
        Cost::Choice(front) => Some(front.problem.layout()),
        Cost::Fixed(_) | Cost::Listed(_) => None,
    });
    chosen.unwrap_or_default()
}

/// Live bytes by kind at the peak, and the mean over the computations.
fn live_in_order(step: &Step, schedule: &Schedule) -> (KindBytes, Bytes) {
    let lives = Lives::of(schedule);
    let mut live = KindBytes::default();
    for (block, life) in schedule.blocks.iter().zip(&lives.blocks).filter(|(block, _)| block.resident) {
        live.add(step.kind(block.holds), life.bytes);
    }
    let mut most = live;
    let (mut sum, mut computes) = (0_u128, 0_u128);
    for instruction in &schedule.instructions {
        match &instruction.action {
            Action::Allocate(block) => {
                live.add(step.kind(schedule.blocks[block.0].holds), lives.blocks[block.0].bytes);
                if live.total() > most.total() {
                    most = live;
                }
            }
            Action::Release(block) => {
                live.remove(step.kind(schedule.blocks[block.0].holds), lives.blocks[block.0].bytes);
            }
            Action::Compute(_) => {
                sum += u128::from(live.total().0);
                computes += 1;
            }
            _ => {}
        }
    }
    (most, Bytes(u64::try_from(sum / computes.max(1)).unwrap_or(u64::MAX)))
}

/// Bytes of the paper's baseline: weights, every X, one dX and one dY of the largest size, and one workspace.
///
/// Source: Rhu et al. 2016, figure 2 and 4.1.
fn papers_baseline(step: &Step, plain: &Schedule) -> Bytes {
    let all = || plain.blocks.iter();
    let bytes = |kind| all().filter(move |block| step.kind(block.holds) == kind).map(|block| block.bytes);
    let largest = |kind| bytes(kind).max().unwrap_or(0);
    let sum = |kind| bytes(kind).sum::<u64>();
    Bytes(sum(Kind::Weights) + sum(Kind::FeatureMaps) + 2 * largest(Kind::GradientMaps) + largest(Kind::Workspace))
}

/// Computations with their simulated spans.
fn computes<'a>(schedule: &'a Schedule, simulation: &'a Simulation) -> impl Iterator<Item = (&'a Compute, Span)> + 'a {
    schedule.instructions.iter().zip(&simulation.spans).filter_map(|(instruction, span)| match &instruction.action {
        Action::Compute(compute) => Some((&**compute, *span)),
        _ => None,
    })
}

fn length(span: Span) -> Nanos {
    span.end - span.start
}

fn recomputed(schedule: &Schedule, simulation: &Simulation) -> Nanos {
    computes(schedule, simulation).filter(|(compute, _)| compute.again).map(|(_, span)| length(span)).sum()
}

/// The fate of every movable tensor.
fn maps(step: &Step, schedule: &Schedule, simulation: &Simulation) -> Vec<MapPlan> {
    #[derive(Clone, Copy, Default)]
    struct History {
        offloaded: bool,
        recomputed: bool,
        /// Whether other computations run between its last use and its release.
        lingers: bool,
        last_forward: Option<Nanos>,
        first_backward: Option<Nanos>,
        /// Number of computations up to its last use so far.
        used: usize,
    }
    let mut histories = vec![History::default(); step.tensors.len()];
    let tensor = |block: BlockId| match schedule.blocks[block.0].holds {
        Holding::Tensor(tensor) => Some(tensor.0),
        Holding::Workspace(_) => None,
    };
    for (compute, span) in computes(schedule, simulation) {
        let stage = step.operation(compute.operation).stage;
        if compute.again {
            for ((_, used), block) in step.uses(compute.operation, compute.phase).zip(&compute.blocks) {
                let writes = used.access_in_rerun() != Access::Read;
                if let Some(tensor) = tensor(*block).filter(|_| writes) {
                    histories[tensor].recomputed = true;
                }
            }
        }
        for tensor in compute.touched().filter_map(tensor) {
            let history = &mut histories[tensor];
            match stage {
                Stage::Forward if !compute.again => history.last_forward = Some(span.end),
                Stage::Forward => {}
                _ => {
                    history.first_backward.get_or_insert(span.start);
                }
            }
        }
    }
    let mut computed = 0;
    for instruction in &schedule.instructions {
        match &instruction.action {
            Action::Compute(compute) => {
                computed += 1;
                compute.touched().filter_map(tensor).for_each(|tensor| histories[tensor].used = computed);
            }
            Action::Release(block) => {
                if let Some(history) = tensor(*block).map(|tensor| &mut histories[tensor]) {
                    history.lingers = computed > history.used;
                }
            }
            Action::Offload(block, _) => {
                if let Some(history) = tensor(*block).map(|tensor| &mut histories[tensor]) {
                    history.offloaded = true;
                }
            }
            Action::Allocate(_) | Action::Prefetch(..) | Action::Wait(_) => {}
        }
    }
    let name = |group: &GroupId| step.groups[group.0].name.clone();
    let plan = |(place, (tensor, history)): (usize, (&Tensor, History))| MapPlan {
        map: TensorId(place),
        layers: tensor.groups.iter().map(name).collect(),
        bytes: tensor.bytes,
        fate: match history {
            History { recomputed: true, .. } => MapTreatment::Recomputed,
            History { offloaded: true, .. } => MapTreatment::Offloaded,
            History { lingers: true, .. } | History { first_backward: Some(_), .. } => MapTreatment::Kept,
            _ => MapTreatment::Released,
        },
        // If parts go both ways, some samples are read going backward before others are written.
        reuse_distance: history
            .last_forward
            .zip(history.first_backward)
            .filter(|(last, first)| last <= first)
            .map(|(last, first)| first - last),
    };
    let all = step.tensors.iter().zip(histories).enumerate();
    all.filter(|(_, (tensor, _))| tensor.residence == Residence::Movable).map(plan).collect()
}

/// Each group's memory and computation time.
fn layers(step: &Step, schedule: &Schedule, simulation: &Simulation) -> Vec<LayerPlan> {
    let layer = |group: &Group| LayerPlan {
        name: group.name.clone(),
        input: group.input,
        output: group.output,
        weights: group.weights,
        forward_workspace: Bytes::ZERO,
        backward_workspace: Bytes::ZERO,
        working_set: Bytes::ZERO,
        forward: Nanos::ZERO,
        backward: Nanos::ZERO,
    };
    let mut layers: Vec<LayerPlan> = step.groups.iter().map(layer).collect();
    for (compute, span) in computes(schedule, simulation) {
        let operation = step.operation(compute.operation);
        let layer = &mut layers[operation.group.0];
        let mut blocks: Vec<usize> = compute.touched().map(|block| block.0).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let working_set = Bytes(blocks.into_iter().map(|block| schedule.blocks[block].bytes).sum());
        layer.working_set = layer.working_set.max(working_set);
        let scratch = compute.workspace.map_or(Bytes::ZERO, |block| Bytes(schedule.blocks[block.0].bytes));
        let (workspace, time) = match operation.stage {
            Stage::Forward => (&mut layer.forward_workspace, &mut layer.forward),
            Stage::Backward | Stage::Update => (&mut layer.backward_workspace, &mut layer.backward),
        };
        *workspace = scratch.max(*workspace);
        *time = *time + length(span);
    }
    layers
}
