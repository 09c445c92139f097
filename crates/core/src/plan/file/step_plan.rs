//! The plan of a step file: its figures and, for each tensor, what to do with it.
//!
//! ```json
//! {"format": "tightfit-step-plan", "version": 1, "step": "small", "peak_bytes": .., "step_time_us": ..,
//!  "tensors": [{"tensor": 2, "decision": "offload", "offload_after": 1, "release_after": 3, "prefetch_before": 9, ..}],
//!  "choices": [{"operation": 4, "time_us": 12.5, "workspace_bytes": 1024}]}
//! ```

use std::collections::BTreeMap;

use serde::Serialize;

use super::bad;
use crate::plan::{Action, Bounded, Plan, TensorDecision, decisions};
use crate::{Bytes, Error, Nanos};

#[derive(Serialize)]
struct Document<'a> {
    format: &'a str,
    version: u32,
    step: &'a str,
    batch: usize,
    policy: &'a str,
    budget_bytes: Option<Bytes>,
    peak_bytes: Bytes,
    most_live_bytes: Bytes,
    host_bytes: Bytes,
    min_feasible_bytes: Bytes,
    binding_operation: &'a str,
    baseline_bytes: Bytes,
    step_time_us: f64,
    baseline_time_us: f64,
    overhead: f64,
    bound_us: Option<f64>,
    bounded: Bounded,
    gap: Option<f64>,
    offloaded_bytes: Bytes,
    recomputed_us: f64,
    tensors: Vec<TensorDecision>,
    choices: Vec<ChoiceObject>,
}

#[derive(Serialize)]
struct ChoiceObject {
    operation: usize,
    time_us: f64,
    workspace_bytes: Bytes,
}

impl Plan {
    /// The decisions for every tensor that lives from the forward to the backward pass.
    pub fn tensor_decisions(&self) -> Vec<TensorDecision> {
        decisions(self.schedule.step(), &self.schedule)
    }

    /// Writes the plan of a step file as JSON.
    ///
    /// # Errors
    /// [`Error::BadDocument`] if it cannot be written, or runs operations in parts of the mini-batch.
    pub fn to_step_json(&self) -> Result<String, Error> {
        if let Some(in_parts) = &self.in_parts {
            let what = format!("it runs {}, which plans of step files cannot say; use --divide off", in_parts.words());
            return Err(bad(what));
        }
        let mut choices = BTreeMap::new();
        for instruction in &self.schedule.instructions {
            if let Action::Compute(compute) = &instruction.action
                && let Some(configuration) = &compute.configuration
            {
                let (operation, time_us) = (compute.operation.0, configuration.time().as_micros());
                let workspace_bytes = configuration.workspace();
                choices.insert(operation, ChoiceObject { operation, time_us, workspace_bytes });
            }
        }
        let document = Document {
            format: "tightfit-step-plan",
            version: 1,
            step: &self.network,
            batch: self.batch,
            policy: self.options.policy.name(),
            budget_bytes: Some(self.options.budget).filter(|budget| *budget != Bytes::UNLIMITED),
            peak_bytes: self.peak,
            most_live_bytes: self.most_live,
            host_bytes: self.host,
            min_feasible_bytes: self.min_feasible,
            binding_operation: &self.binding_layer,
            baseline_bytes: self.baseline,
            step_time_us: self.step_time.as_micros(),
            baseline_time_us: self.baseline_time.as_micros(),
            overhead: self.overhead(),
            bound_us: self.bound.map(Nanos::as_micros),
            bounded: self.bounded,
            gap: self.gap,
            offloaded_bytes: self.offloaded,
            recomputed_us: self.recomputed.as_micros(),
            tensors: self.tensor_decisions(),
            choices: choices.into_values().collect(),
        };
        Ok(serde_json::to_string(&document).map_err(bad)? + "\n")
    }
}
