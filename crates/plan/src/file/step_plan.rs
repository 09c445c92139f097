//! The plan of a step file: its figures, what to do with each tensor, and the whole schedule.
//!
//! ```json
//! {"format": "tightfit-step-plan", "version": 1, "step": "small", "peak_bytes": .., "step_time_us": ..,
//!  "tensors": [{"tensor": 2, "decision": "offload", "offload_after": 1, "release_after": 3, "prefetch_before": 9, ..}],
//!  "choices": [{"operation": 4, "time_us": 12.5, "workspace_bytes": 1024}],
//!  "schedule": {..}}
//! ```
//!
//! If a stretch runs in parts of the mini-batch, only the schedule is complete: `tensors` describes whole tensors. A file is trusted only after its
//! schedule has passed the checker.

use std::collections::BTreeMap;
use std::path::Path;

use flate2::Crc;
use serde::{Deserialize, Serialize};
use tightfit_units::{Bytes, Error, Nanos, bounded};

use crate::file::step_schedule::Document as ScheduleDocument;
use crate::file::{Head, MAX_TEXT, bad};
use crate::schedule::treatment::decisions;
use crate::step::StepFile;
use crate::{Action, Bounded, Budgets, Checked, InParts, Plan, Step, TensorDecision};

/// Identifies the plan of a step file.
const FORMAT: &str = "tightfit-step-plan";
/// Increased when older files could no longer be read correctly.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Document<'a> {
    format: &'a str,
    version: u32,
    step: &'a str,
    batch: usize,
    step_crc32: String,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    in_parts: Option<&'a InParts>,
    tensors: Vec<TensorDecision>,
    choices: Vec<ChoiceObject>,
    schedule: ScheduleDocument,
}

/// The keys that a reader of the schedule needs.
#[derive(Deserialize)]
struct Body {
    step: String,
    batch: usize,
    /// Missing in older files.
    #[serde(default)]
    step_crc32: Option<String>,
    peak_bytes: Bytes,
    host_bytes: Bytes,
    #[serde(default)]
    budget_bytes: Option<Bytes>,
    schedule: ScheduleDocument,
}

#[derive(Serialize)]
struct ChoiceObject {
    operation: usize,
    time_us: f64,
    workspace_bytes: Bytes,
}

/// The CRC-32 of a step's file without times, in hexadecimal digits. It differs for other operations or tensors.
fn checksum(step: &Step) -> Result<String, Error> {
    let mut crc = Crc::new();
    crc.update(StepFile { step: step.without_costs(), machine: None }.to_json()?.as_bytes());
    Ok(format!("{:08x}", crc.sum()))
}

impl Plan {
    /// The decisions for every tensor that lives from the forward to the backward pass.
    pub fn tensor_decisions(&self) -> Vec<TensorDecision> {
        decisions(self.schedule.step(), &self.schedule)
    }

    /// Writes the plan of a step file as JSON; [`Checked::from_step_plan`] reads its schedule.
    ///
    /// # Errors
    /// [`Error::BadDocument`] if it cannot be written.
    pub fn to_step_json(&self) -> Result<String, Error> {
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
            format: FORMAT,
            version: VERSION,
            step: &self.network,
            batch: self.batch,
            step_crc32: checksum(self.schedule.step())?,
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
            in_parts: self.in_parts.as_ref(),
            tensors: self.tensor_decisions(),
            choices: choices.into_values().collect(),
            schedule: ScheduleDocument::of(&self.schedule),
        };
        Ok(serde_json::to_string(&document).map_err(bad)? + "\n")
    }
}

impl Checked {
    /// The schedule of a step's plan, as [`Plan::to_step_json`] wrote it.
    ///
    /// - Cost: one [`crate::check`].
    ///
    /// # Errors
    /// [`Error::BadDocument`] if the text is no such plan, has another version, belongs to another step or another recording of it, states a size
    /// that disagrees with its schedule, or if the checker rejects the schedule.
    pub fn from_step_plan(text: &str, step: &Step) -> Result<Checked, Error> {
        let Head { format, version } = serde_json::from_str(text).map_err(bad)?;
        if (format.as_str(), version) != (FORMAT, VERSION) {
            let what =
                format!("it is `{format}` version {version}, but this program reads `{FORMAT}` version {VERSION}");
            return Err(bad(what));
        }
        let body: Body = serde_json::from_str(text).map_err(bad)?;
        if (body.step.as_str(), body.batch) != (step.name.as_str(), step.batch) {
            let (of, own) =
                (format!("{}, {} samples", body.step, body.batch), format!("{}, {}", step.name, step.batch));
            return Err(bad(format!("it is the plan of {of}, but the step is {own}")));
        }
        let own = checksum(step)?;
        if let Some(planned) = body.step_crc32.filter(|planned| *planned != own) {
            return Err(bad(format!(
                "it was made for another recording of {} (checksum {planned}, now {own}): its operations or tensors have \
                 changed; plan the step again",
                step.name
            )));
        }
        let schedule = body.schedule.schedule(step);
        for (fact, stated, actual) in [
            ("peak_bytes", body.peak_bytes, schedule.device_bytes),
            ("host_bytes", body.host_bytes, schedule.host_bytes),
        ] {
            if stated != actual {
                return Err(bad(format!("it states {fact} {}, but its schedule has {}", stated.0, actual.0)));
            }
        }
        let budgets = Budgets { device: body.budget_bytes.unwrap_or(Bytes::UNLIMITED), host: Bytes::UNLIMITED };
        Checked::new(step, schedule, budgets).map_err(|error| bad(format!("the checker rejects its schedule: {error}")))
    }

    /// Reads the schedule from a file, compressed if its name ends in `.gz`.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be read or decompressed, or with the error of [`Checked::from_step_plan`] as its
    /// source.
    pub fn read_step_plan(path: &Path, step: &Step) -> Result<Checked, Error> {
        bounded::read_document(path, MAX_TEXT, "plan", |text| Checked::from_step_plan(text, step))
    }
}
