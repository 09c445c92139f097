//! A plan: the schedule and everything known about it in advance.

use serde::{Deserialize, Serialize};
use tightfit_conv::{Device, Layout, Types};
use tightfit_network::Network;
use tightfit_units::{Bytes, Error, Nanos};

use crate::step::{KindBytes, OperationId, Phase, Stage, Step, TensorId};
use crate::{Action, Checked, Instruction, Mode, Options, Schedule, Simulation, Workload};

/// Memory of a plan and of plain, under one way of counting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accounting {
    /// The most bytes live at once.
    pub maximum: Bytes,
    /// The mean over the time of the step.
    pub average: Bytes,
    /// Memory of the step without a plan: its maximum, or as the paper counts it, its allocation for the whole network.
    pub baseline: Bytes,
}

impl Accounting {
    /// The fraction of the baseline saved at the maximum.
    pub fn maximum_saved(&self) -> f64 {
        1.0 - self.maximum.0 as f64 / self.baseline.0 as f64
    }

    /// The fraction of the baseline saved on average.
    pub fn average_saved(&self) -> f64 {
        1.0 - self.average.0 as f64 / self.baseline.0 as f64
    }
}

/// The treatment of a feature map after its last forward use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MapTreatment {
    /// It stays until its last backward use, or longer.
    Kept,
    /// Nothing reads it again, so its bytes are released.
    Released,
    /// It is copied to the host and back.
    Offloaded,
    /// It is released, and recomputed before it is needed.
    Recomputed,
}

impl MapTreatment {
    /// The name used in tables and files.
    pub fn name(self) -> &'static str {
        match self {
            MapTreatment::Kept => "kept",
            MapTreatment::Released => "released",
            MapTreatment::Offloaded => "offloaded",
            MapTreatment::Recomputed => "recomputed",
        }
    }
}

/// One feature map in a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapPlan {
    /// The map.
    pub map: TensorId,
    /// Names of the layers that write it, in order.
    pub layers: Vec<String>,
    /// Its bytes for the whole mini-batch.
    pub bytes: Bytes,
    /// Its fate.
    pub fate: MapTreatment,
    /// Time from the end of its last forward use to the start of its first backward use; `None` without a backward use, or
    /// if some samples are used going backward before others are going forward.
    pub reuse_distance: Option<Nanos>,
}

/// One layer in a plan: its own bytes, as in figure 4 of the vDNN paper, and its times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerPlan {
    /// Name of the layer.
    pub name: String,
    /// Input maps.
    pub input: Bytes,
    /// The output map; 0 if it shares the input's map.
    pub output: Bytes,
    /// Weights.
    pub weights: Bytes,
    /// Largest workspace going forward.
    pub forward_workspace: Bytes,
    /// Largest workspace going backward.
    pub backward_workspace: Bytes,
    /// The most bytes that any of its passes accesses.
    pub working_set: Bytes,
    /// Time of its forward pass.
    pub forward: Nanos,
    /// Time of its backward passes and update.
    pub backward: Nanos,
}

/// One attempt of a policy, and its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Name of the attempt, in the paper's notation: `all(m)`, `conv(p)`, `greedy conv`.
    pub attempt: String,
    /// Bytes of the device arena.
    pub needed: Bytes,
    /// Bytes of the host arena.
    pub host: Bytes,
    /// Whether it fits both budgets.
    pub fits: bool,
    /// Time of a step, if simulated.
    pub time: Option<Nanos>,
    /// Whether it became the plan.
    pub taken: bool,
}

/// The plans that a lower bound of a step's time covers: plans with the same order of operations and the same stretch in parts, if any, in which a
/// copied-back tensor stays until its next use. A variant may restrict them further.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bounded {
    /// All of these plans.
    #[default]
    Any,
    /// Plans that recompute nothing for an operation of the forward pass.
    ForwardOnce,
}

impl Bounded {
    /// Describes the plans in words, with or without a stretch in parts.
    pub fn words(self, in_parts: bool) -> String {
        let operations = if in_parts { "the operations of these parts" } else { "whole operations" };
        let kept = "keeps what it copies back until its next use";
        match self {
            Bounded::Any => format!("any plan that runs {operations} in this order and {kept}"),
            Bounded::ForwardOnce => {
                format!(
                    "any plan that runs {operations} in this order, {kept}, and computes nothing again for the forward pass"
                )
            }
        }
    }
}

/// Layers that compute the mini-batch in parts: each part runs through all of them before the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InParts {
    /// Name of the first layer.
    pub first: String,
    /// Name of the last one.
    pub last: String,
    /// Parts of the mini-batch.
    pub parts: usize,
}

impl InParts {
    /// The stretch of a schedule whose operations compute some samples at a time; `None` if all compute the whole
    /// mini-batch.
    pub(crate) fn of(step: &Step, schedule: &Schedule) -> Option<InParts> {
        let part_of = |instruction: &Instruction| match &instruction.action {
            Action::Compute(compute) if compute.samples.len() < step.batch && !compute.again => {
                Some(compute.operation).filter(|_| compute.phase != Phase::Sums)
            }
            _ => None,
        };
        let operations: Vec<OperationId> = schedule.instructions.iter().filter_map(part_of).collect();
        let forward = || operations.iter().filter(|id| step.operation(**id).stage == Stage::Forward);
        let (first, last) = (*forward().min()?, *forward().max()?);
        let parts = operations.iter().filter(|id| **id == first).count();
        let [first, last] = [first, last].map(|id| step.group_name(id).to_owned());
        Some(InParts { first, last, parts })
    }

    /// The layers and the number of parts, as text.
    pub fn words(&self) -> String {
        format!("{} to {} in {} parts", self.first, self.last, self.parts)
    }
}

/// A schedule under a budget, and everything known about it in advance.
///
/// The schedule type `S` is [`Checked`], except while reading a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan<S = Checked> {
    /// Name of the network.
    pub network: String,
    /// Samples of one step.
    pub batch: usize,
    /// Number types of maps and arithmetic.
    pub types: Types,
    /// Order of the dimensions of maps and filters on the device; NCHW in files that do not say.
    #[serde(default, skip_serializing_if = "is_default")]
    pub layout: Layout,
    /// Training or inference.
    #[serde(rename = "inference")]
    pub mode: Mode,
    /// Whether the solver keeps the last change of every parameter; true in files without the key.
    #[serde(default = "has_momentum")]
    pub momentum: bool,
    /// Whether the solver is AdamW, with two moments of every parameter; false in files without the key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adamw: bool,
    /// Prefixes of the names of frozen layers; none in files without the key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub frozen: Vec<String>,
    /// The options it was made with.
    pub options: Options,
    /// The device of its measurements; `None` if nothing was measured, and in files without the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// The instructions and the place of every block.
    pub schedule: S,
    /// Size of the device arena: the highest end of any block.
    pub peak: Bytes,
    /// The most bytes live at once; no placement needs less.
    pub most_live: Bytes,
    /// Live bytes, averaged over the time of the step.
    pub average: Bytes,
    /// Live bytes, averaged over the operations.
    pub layer_average: Bytes,
    /// Live bytes by kind at the peak.
    pub at_most: KindBytes,
    /// Size of the pinned host arena.
    pub host: Bytes,
    /// The least budget for this policy, with memory-optimal algorithms.
    pub min_feasible: Bytes,
    /// The layer at which memory peaks under that least budget.
    pub binding_layer: String,
    /// The least budget over all policies; `optimal` counts only if it is the policy.
    pub least: Bytes,
    /// Bytes that every plan of the step needs at once that runs at most one stretch of layers in 2, 4, 8 or 16 parts;
    /// `None` if only policies were compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proven: Option<Bytes>,
    /// Plain: the size of the arena of the step without a plan, see [`crate::plain()`].
    pub baseline: Bytes,
    /// Time of a step, simulated.
    pub step_time: Nanos,
    /// Time of a step with everything resident and the fastest algorithms: the paper's oracle.
    pub baseline_time: Nanos,
    /// Upper bound on the relative excess of the step time over [`Plan::bound`]; `None` if no bound is known.
    pub gap: Option<f64>,
    /// A time that no plan of [`Plan::bounded`] is below under the budget; `None` if no bound is known, as for branches side
    /// by side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<Nanos>,
    /// The plans that the bound covers.
    #[serde(default)]
    pub bounded: Bounded,
    /// Bytes copied to the host per step.
    pub offloaded: Bytes,
    /// Time spent recomputing forward passes.
    pub recomputed: Nanos,
    /// Memory including weight gradients, momentum and saved data.
    pub ours: Accounting,
    /// Memory as the vDNN paper counts it: weights, feature maps, gradient maps and workspace. Its baseline has one dX and one dY
    /// alone, so that a plan of a network with forks can take more.
    pub paper: Accounting,
    /// The layers that compute the mini-batch in parts, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_parts: Option<InParts>,
    /// The treatment of each feature map.
    pub maps: Vec<MapPlan>,
    /// Each layer's bytes and times, in order.
    pub layers: Vec<LayerPlan>,
    /// All attempts, in order.
    pub decisions: Vec<Attempt>,
    /// The simulated step.
    pub simulation: Simulation,
}

/// Whether a file leaves the layout out.
fn is_default(layout: &Layout) -> bool {
    *layout == Layout::default()
}

/// The value for files written before the key was added.
fn has_momentum() -> bool {
    true
}

impl<S> Plan<S> {
    /// The same plan with another schedule.
    pub(crate) fn with_schedule<T>(self, schedule: T) -> Plan<T> {
        Plan {
            network: self.network,
            batch: self.batch,
            types: self.types,
            layout: self.layout,
            mode: self.mode,
            momentum: self.momentum,
            adamw: self.adamw,
            frozen: self.frozen,
            options: self.options,
            device: self.device,
            schedule,
            peak: self.peak,
            most_live: self.most_live,
            average: self.average,
            layer_average: self.layer_average,
            at_most: self.at_most,
            host: self.host,
            min_feasible: self.min_feasible,
            binding_layer: self.binding_layer,
            least: self.least,
            proven: self.proven,
            baseline: self.baseline,
            step_time: self.step_time,
            baseline_time: self.baseline_time,
            gap: self.gap,
            bound: self.bound,
            bounded: self.bounded,
            offloaded: self.offloaded,
            recomputed: self.recomputed,
            ours: self.ours,
            paper: self.paper,
            in_parts: self.in_parts,
            maps: self.maps,
            layers: self.layers,
            decisions: self.decisions,
            simulation: self.simulation,
        }
    }

    /// The workload of this plan, on the network that it was made for.
    ///
    /// # Errors
    /// The errors of [`Workload::new`], [`Workload::with_frozen`] and [`Workload::with_layout`].
    pub fn workload<'a>(&self, network: &'a Network) -> Result<Workload<'a>, Error> {
        let workload = Workload::new(network, self.batch, self.types, self.mode)?.with_momentum(self.momentum);
        workload.with_adamw(self.adamw).with_frozen(&self.frozen)?.with_layout(self.layout)
    }

    /// The slowdown of a step compared with everything resident, as a fraction: 0.1 for 10%.
    pub fn overhead(&self) -> f64 {
        self.step_time.ratio(self.baseline_time) - 1.0
    }

    /// The fraction of the arena that is wasted, compared with the peak of live bytes.
    pub fn fragmentation(&self) -> f64 {
        self.peak.0 as f64 / self.most_live.0.max(1) as f64 - 1.0
    }
}
