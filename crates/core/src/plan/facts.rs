//! What is known of a plan before it runs, gathered from its schedule and its simulation.

use super::draft::{Draft, Drafter};
use super::lives::Lives;
use super::policies::{Chosen, Floors};
use super::{
    Accounting, Action, Compute, Fate, Kind, KindBytes, LayerPlan, MapPlan, Pass, Plan, Role, Schedule, Simulation,
    Span, Tensor, Workload, simulate,
};
use crate::network::{LayerId, LayerKind, MapId};
use crate::{Bytes, Nanos};

/// The plan of a draft.
pub(super) fn facts(drafter: &Drafter<'_>, floors: &Floors, baseline: &Draft, chosen: Chosen) -> Plan {
    let workload = drafter.workload;
    let Chosen { draft, mut decisions } = chosen;
    let schedule = draft.schedule;
    let simulation = simulate(workload, &schedule, drafter.costs);
    if let Some(taken) = decisions.iter_mut().find(|decision| decision.taken) {
        taken.time = Some(simulation.time);
        taken.needed = draft.peak;
    }
    let floor = floors.of_policy(drafter.options.policy);
    let (at_most, layer_average) = live_in_order(&schedule);
    let offloads = |action: &Action| match action {
        Action::Offload(block, _) => schedule.blocks[block.0].bytes,
        _ => 0,
    };
    Plan {
        network: workload.network.name().to_owned(),
        batch: workload.batch,
        types: workload.types,
        inference: workload.inference,
        options: drafter.options,
        peak: draft.peak,
        most_live: draft.most_live,
        average: simulation.average(KindBytes::total),
        layer_average,
        at_most,
        host: draft.host,
        min_feasible: floor.peak,
        binding_layer: drafter.binding_layer(floor),
        least: floors.least(),
        baseline: baseline.peak,
        step_time: simulation.time,
        baseline_time: drafter.fastest_times().into_iter().sum(),
        gap: None,
        offloaded: Bytes(schedule.steps.iter().map(|step| offloads(&step.action)).sum()),
        recomputed: recomputed(&schedule, &simulation),
        ours: Accounting {
            maximum: draft.most_live,
            average: simulation.average(KindBytes::total),
            baseline: baseline.peak,
        },
        paper: Accounting {
            maximum: simulation.maximum(KindBytes::in_paper),
            average: simulation.average(KindBytes::in_paper),
            baseline: papers_baseline(&baseline.schedule),
        },
        maps: maps(workload, &schedule, &simulation),
        layers: layers(workload, &schedule, &simulation),
        decisions,
        schedule,
        simulation,
    }
}

/// Live bytes by kind at the place in the list where most are live, and the mean over the compute steps.
fn live_in_order(schedule: &Schedule) -> (KindBytes, Bytes) {
    let lives = Lives::of(schedule);
    let mut live = KindBytes::default();
    for (block, life) in schedule.blocks.iter().zip(&lives.blocks).filter(|(block, _)| block.resident) {
        live.add(block.tensor.kind(), life.bytes);
    }
    let mut most = live;
    let (mut sum, mut computes) = (0_u128, 0_u128);
    for step in &schedule.steps {
        match &step.action {
            Action::Allocate(block) => {
                live.add(schedule.blocks[block.0].tensor.kind(), lives.blocks[block.0].bytes);
                if live.total() > most.total() {
                    most = live;
                }
            }
            Action::Release(block) => {
                live.remove(schedule.blocks[block.0].tensor.kind(), lives.blocks[block.0].bytes);
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

/// What the paper's baseline allocates: weights, every X, one dX and one dY as large as the largest, and one workspace.
///
/// Source: Rhu et al. 2016, figure 2 and 4.1.
fn papers_baseline(baseline: &Schedule) -> Bytes {
    let of = |kind| baseline.blocks.iter().filter(move |block| block.tensor.kind() == kind).map(|block| block.bytes);
    let largest = |kind| of(kind).max().unwrap_or(0);
    let sum = |kind| of(kind).sum::<u64>();
    Bytes(sum(Kind::Weights) + sum(Kind::FeatureMaps) + 2 * largest(Kind::GradientMaps) + largest(Kind::Workspace))
}

/// Compute steps with the times of their runs.
fn computes<'a>(schedule: &'a Schedule, simulation: &'a Simulation) -> impl Iterator<Item = (&'a Compute, Span)> + 'a {
    schedule.steps.iter().zip(&simulation.spans).filter_map(|(step, span)| match &step.action {
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

fn maps(workload: &Workload<'_>, schedule: &Schedule, simulation: &Simulation) -> Vec<MapPlan> {
    #[derive(Clone, Copy, Default)]
    struct Known {
        offloaded: bool,
        /// Whether more is computed between its last use and its release.
        lingers: bool,
        last_forward: Option<Nanos>,
        first_backward: Option<Nanos>,
    }
    let mut known = vec![Known::default(); workload.maps.iter().count()];
    for (compute, span) in computes(schedule, simulation) {
        for operand in &compute.operands {
            let Tensor::FeatureMap(map) = schedule.blocks[operand.block.0].tensor else { continue };
            let known = &mut known[map.index()];
            match compute.pass {
                Pass::Forward if !compute.again => known.last_forward = Some(span.end),
                Pass::Forward => {}
                _ => {
                    known.first_backward.get_or_insert(span.start);
                }
            }
        }
    }
    for step in &schedule.steps {
        if let Action::Offload(block, _) = step.action
            && let Tensor::FeatureMap(map) = schedule.blocks[block.0].tensor
        {
            known[map.index()].offloaded = true;
        }
    }
    // By map: computations up to its last use so far.
    let mut used = vec![0; known.len()];
    let mut computed = 0;
    for step in &schedule.steps {
        match &step.action {
            Action::Compute(compute) => {
                computed += 1;
                for operand in &compute.operands {
                    if let Tensor::FeatureMap(map) = schedule.blocks[operand.block.0].tensor {
                        used[map.index()] = computed;
                    }
                }
            }
            Action::Release(block) => {
                if let Tensor::FeatureMap(map) = schedule.blocks[block.0].tensor {
                    known[map.index()].lingers = computed > used[map.index()];
                }
            }
            _ => {}
        }
    }
    let plan = |map: MapId, known: Known| MapPlan {
        map,
        layers: workload.maps.get(map).layers.iter().map(|&layer| workload.network.layer(layer).name.clone()).collect(),
        bytes: workload.bytes(Tensor::FeatureMap(map)),
        fate: match known {
            Known { offloaded: true, .. } => Fate::Offloaded,
            Known { lingers: true, .. } | Known { first_backward: Some(_), .. } => Fate::Kept,
            _ => Fate::Released,
        },
        reuse_distance: known.last_forward.zip(known.first_backward).map(|(last, first)| first - last),
    };
    workload.maps.iter().map(|(map, _)| plan(map, known[map.index()])).collect()
}

fn layers(workload: &Workload<'_>, schedule: &Schedule, simulation: &Simulation) -> Vec<LayerPlan> {
    let layer = |id: LayerId| {
        let of = workload.network.layer(id);
        let own = workload.maps.written_by(id);
        let bytes = |map| workload.bytes(Tensor::FeatureMap(map));
        let shares = of.inputs.iter().any(|&input| workload.maps.written_by(input) == own);
        LayerPlan {
            name: of.name.clone(),
            input: of.inputs.iter().map(|&input| bytes(workload.maps.written_by(input))).sum(),
            output: if shares || of.kind == LayerKind::Flatten { Bytes::ZERO } else { bytes(own) },
            weights: workload.bytes(Tensor::Weights(id)),
            forward_workspace: Bytes::ZERO,
            backward_workspace: Bytes::ZERO,
            working_set: Bytes::ZERO,
            forward: Nanos::ZERO,
            backward: Nanos::ZERO,
        }
    };
    let mut layers: Vec<LayerPlan> = workload.network.iter().map(|(id, _)| layer(id)).collect();
    for (compute, span) in computes(schedule, simulation) {
        let layer = &mut layers[compute.layer.index()];
        let mut blocks: Vec<usize> = compute.operands.iter().map(|operand| operand.block.0).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let working_set = Bytes(blocks.into_iter().map(|block| schedule.blocks[block].bytes).sum());
        layer.working_set = layer.working_set.max(working_set);
        let scratch = compute.operands.iter().find(|operand| operand.role == Role::Workspace);
        let scratch = scratch.map_or(Bytes::ZERO, |operand| Bytes(schedule.blocks[operand.block.0].bytes));
        let (workspace, time) = match compute.pass {
            Pass::Forward => (&mut layer.forward_workspace, &mut layer.forward),
            _ => (&mut layer.backward_workspace, &mut layer.backward),
        };
        *workspace = scratch.max(*workspace);
        *time = *time + length(span);
    }
    layers
}
