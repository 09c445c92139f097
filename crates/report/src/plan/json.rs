//! The plan as JSON. Programs rely on the keys: add new ones, but never rename any.
//!
//! The structs below mirror the document key for key, so the internal types stay free to change. The plan file for the
//! trainer is a different format; see [`tightfit_plan::Plan::to_json`].

use serde::Serialize;
use tightfit_conv::{Device, Types};
use tightfit_plan::{
    Accounting, Action, Attempt, Bounded, InParts, Instruction, Kind, LayerPlan, MapPlan, Mode, Plan, Span,
    TensorDecision,
};
use tightfit_units::{Bytes, Nanos};

/// Writes the plan as one indented JSON object that ends in a line feed. The times were measured on `device`.
///
/// Times are in µs with up to three decimals. Null marks missing values: an unlimited budget, a `gap` without a known
/// bound, the reuse distance of a map that is never read again, the time of an attempt that was not simulated.
pub fn json(plan: &Plan, device: &Device) -> String {
    // Plain structs with string keys, written to memory: this cannot fail.
    serde_json::to_string_pretty(&Document::of(plan, device)).unwrap_or_default() + "\n"
}

#[derive(Serialize)]
struct Document<'a> {
    network: &'a str,
    batch: usize,
    backend: &'a str,
    device: &'a str,
    library: &'a str,
    types: Types,
    inference: bool,
    momentum: bool,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    frozen: &'a [String],
    budget_bytes: Option<Bytes>,
    host_budget_bytes: Option<Bytes>,
    policy: &'static str,
    algorithms: &'static str,
    divide: bool,
    peak_bytes: Bytes,
    most_live_bytes: Bytes,
    fragmentation: f64,
    average_bytes: Bytes,
    layer_average_bytes: Bytes,
    host_bytes: Bytes,
    min_feasible_bytes: Bytes,
    binding_layer: &'a str,
    least_bytes: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    proven_least_bytes: Option<Bytes>,
    baseline_bytes: Bytes,
    step_time_us: f64,
    baseline_time_us: f64,
    overhead: f64,
    gap: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bound_us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bounded: Option<Bounded>,
    #[serde(skip_serializing_if = "Option::is_none")]
    in_parts: Option<&'a InParts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lanes: Option<usize>,
    offloaded_bytes: Bytes,
    recomputed_us: f64,
    compute_us: f64,
    copying_us: f64,
    exposed_us: f64,
    bytes_by_kind: serde_json::Map<String, serde_json::Value>,
    accounting: AccountingsObject,
    decisions: Vec<DecisionObject<'a>>,
    layers: Vec<LayerObject<'a>>,
    maps: Vec<MapObject<'a>>,
    tensors: Vec<TensorDecision>,
    steps: Vec<InstructionObject<'a>>,
}

/// Memory as counted by tightfit and by the vDNN paper.
#[derive(Serialize)]
struct AccountingsObject {
    ours: AccountingObject,
    paper: AccountingObject,
}

#[derive(Serialize)]
struct AccountingObject {
    maximum_bytes: Bytes,
    average_bytes: Bytes,
    baseline_bytes: Bytes,
    maximum_saved: f64,
    average_saved: f64,
}

#[derive(Serialize)]
struct DecisionObject<'a> {
    attempt: &'a str,
    needed_bytes: Bytes,
    host_bytes: Bytes,
    fits: bool,
    time_us: Option<f64>,
    taken: bool,
}

#[derive(Serialize)]
struct LayerObject<'a> {
    layer: &'a str,
    input_bytes: Bytes,
    output_bytes: Bytes,
    weight_bytes: Bytes,
    forward_workspace_bytes: Bytes,
    backward_workspace_bytes: Bytes,
    working_set_bytes: Bytes,
    forward_us: f64,
    backward_us: f64,
}

#[derive(Serialize)]
struct MapObject<'a> {
    map: usize,
    layers: &'a [String],
    bytes: Bytes,
    fate: &'static str,
    reuse_distance_us: Option<f64>,
}

/// An instruction: its kind and the fields of that kind.
#[derive(Default, Serialize)]
struct InstructionObject<'a> {
    step: usize,
    stream: &'static str,
    action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    layer: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pass: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    configuration: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tensor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<usize>,
    start_us: f64,
    end_us: f64,
}

impl<'a> Document<'a> {
    fn of(plan: &'a Plan, device: &'a Device) -> Document<'a> {
        let finite = |bytes: Bytes| Some(bytes).filter(|bytes| *bytes != Bytes::UNLIMITED);
        let kind = |kind: Kind| (kind.name().to_owned(), plan.at_most.get(kind).0.into());
        let steps = plan.schedule.instructions.iter().zip(&plan.simulation.spans).enumerate();
        Document {
            network: &plan.network,
            batch: plan.batch,
            backend: &device.backend,
            device: &device.name,
            library: &device.library,
            types: plan.types,
            inference: plan.mode == Mode::Inference,
            momentum: plan.mode == Mode::Training && plan.momentum,
            frozen: &plan.frozen,
            budget_bytes: finite(plan.options.budget),
            host_budget_bytes: finite(plan.options.host_budget),
            policy: plan.options.policy.name(),
            algorithms: plan.options.algorithms.name(),
            divide: plan.options.divide,
            peak_bytes: plan.peak,
            most_live_bytes: plan.most_live,
            fragmentation: plan.fragmentation(),
            average_bytes: plan.average,
            layer_average_bytes: plan.layer_average,
            host_bytes: plan.host,
            min_feasible_bytes: plan.min_feasible,
            binding_layer: &plan.binding_layer,
            least_bytes: plan.least,
            proven_least_bytes: plan.proven,
            baseline_bytes: plan.baseline,
            step_time_us: plan.step_time.as_micros(),
            baseline_time_us: plan.baseline_time.as_micros(),
            overhead: plan.overhead(),
            gap: plan.gap,
            bound_us: plan.bound.map(Nanos::as_micros),
            bounded: plan.bound.map(|_| plan.bounded),
            in_parts: plan.in_parts.as_ref(),
            lanes: Some(plan.schedule.lanes()).filter(|lanes| *lanes > 1),
            offloaded_bytes: plan.offloaded,
            recomputed_us: plan.recomputed.as_micros(),
            compute_us: plan.simulation.compute.as_micros(),
            copying_us: plan.simulation.copying.as_micros(),
            exposed_us: plan.simulation.exposed.as_micros(),
            bytes_by_kind: Kind::ALL.into_iter().map(kind).collect(),
            accounting: AccountingsObject {
                ours: AccountingObject::of(&plan.ours),
                paper: AccountingObject::of(&plan.paper),
            },
            decisions: plan.decisions.iter().map(DecisionObject::of).collect(),
            layers: plan.layers.iter().map(LayerObject::of).collect(),
            maps: plan.maps.iter().map(MapObject::of).collect(),
            tensors: plan.tensor_decisions(),
            steps: steps.map(|(index, (step, span))| InstructionObject::of(plan, index, step, *span)).collect(),
        }
    }
}

impl AccountingObject {
    fn of(accounting: &Accounting) -> AccountingObject {
        AccountingObject {
            maximum_bytes: accounting.maximum,
            average_bytes: accounting.average,
            baseline_bytes: accounting.baseline,
            maximum_saved: accounting.maximum_saved(),
            average_saved: accounting.average_saved(),
        }
    }
}

impl DecisionObject<'_> {
    fn of(decision: &Attempt) -> DecisionObject<'_> {
        DecisionObject {
            attempt: &decision.attempt,
            needed_bytes: decision.needed,
            host_bytes: decision.host,
            fits: decision.fits,
            time_us: decision.time.map(Nanos::as_micros),
            taken: decision.taken,
        }
    }
}

impl LayerObject<'_> {
    fn of(layer: &LayerPlan) -> LayerObject<'_> {
        LayerObject {
            layer: &layer.name,
            input_bytes: layer.input,
            output_bytes: layer.output,
            weight_bytes: layer.weights,
            forward_workspace_bytes: layer.forward_workspace,
            backward_workspace_bytes: layer.backward_workspace,
            working_set_bytes: layer.working_set,
            forward_us: layer.forward.as_micros(),
            backward_us: layer.backward.as_micros(),
        }
    }
}

impl MapObject<'_> {
    fn of(map: &MapPlan) -> MapObject<'_> {
        MapObject {
            map: map.map.0,
            layers: &map.layers,
            bytes: map.bytes,
            fate: map.fate.name(),
            reuse_distance_us: map.reuse_distance.map(Nanos::as_micros),
        }
    }
}

impl<'a> InstructionObject<'a> {
    fn of(plan: &'a Plan, index: usize, instruction: &Instruction, span: Span) -> InstructionObject<'a> {
        let step = plan.schedule.step();
        let base = InstructionObject {
            step: index,
            stream: instruction.stream.name(),
            start_us: span.start.as_micros(),
            end_us: span.end.as_micros(),
            ..InstructionObject::default()
        };
        let on_block = |action, block: tightfit_plan::BlockId| {
            let block = &plan.schedule.blocks[block.0];
            (action, Some(step.describe(block.holds)), Some(block.offset), Some(block.bytes))
        };
        let (action, tensor, offset, bytes) = match &instruction.action {
            Action::Allocate(block) => on_block("allocate", *block),
            Action::Release(block) => on_block("release", *block),
            Action::Offload(block, _) => on_block("offload", *block),
            Action::Prefetch(_, block) => on_block("prefetch", *block),
            Action::Wait(on) => return InstructionObject { action: "wait", waits_for: Some(on.0), ..base },
            Action::Compute(compute) => {
                return InstructionObject {
                    action: if compute.again { "recompute" } else { "compute" },
                    layer: Some(step.group_name(compute.operation).to_owned()),
                    pass: Some(&step.operation(compute.operation).name),
                    configuration: compute.configuration.as_ref().map(ToString::to_string),
                    ..base
                };
            }
        };
        InstructionObject { action, tensor, offset, bytes, ..base }
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn the_document_of_a_small_plan() {
        let text = json(&samples::small(), &samples::device());
        let mut document: serde_json::Value = serde_json::from_str(&text).unwrap();
        // The first of each kind represents the others.
        for list in ["layers", "maps"] {
            document[list].as_array_mut().unwrap().truncate(2);
        }
        let steps = document["steps"].as_array_mut().unwrap();
        let mut seen = std::collections::HashSet::new();
        steps.retain(|step| seen.insert(step["action"].to_string()));
        insta::assert_snapshot!(format!("{document:#}"));
    }

    #[test]
    fn missing_values_are_null() {
        let mut plan = samples::small();
        plan.options.budget = Bytes::UNLIMITED;
        plan.maps[0].reuse_distance = None;
        let document: serde_json::Value = serde_json::from_str(&json(&plan, &samples::device())).unwrap();
        assert!(document["budget_bytes"].is_null() && document["gap"].is_null());
        assert!(document["maps"][0]["reuse_distance_us"].is_null());
    }
}
