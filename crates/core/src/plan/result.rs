//! A plan: the schedule, and everything that is known of it before it runs.

use serde::{Deserialize, Serialize};

use super::step::TensorId;
use super::{Checked, Mode, Options, Simulation};
use crate::{Bytes, Nanos, Types};

/// What the bytes of the device arena are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Weights, their 32-bit originals, running statistics.
    Weights,
    /// Gradients of the weights.
    WeightGradients,
    /// The solver's momentum.
    Momentum,
    /// Feature maps, and the labels.
    FeatureMaps,
    /// Gradients of feature maps.
    GradientMaps,
    /// What forward passes save beside maps.
    Saved,
    /// Scratch of convolutions.
    Workspace,
}

impl Kind {
    /// All of them, from those that stay to those that come and go.
    pub const ALL: [Kind; 7] = [
        Kind::Weights,
        Kind::WeightGradients,
        Kind::Momentum,
        Kind::FeatureMaps,
        Kind::GradientMaps,
        Kind::Saved,
        Kind::Workspace,
    ];

    /// The name used in tables and files.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Weights => "weights",
            Kind::WeightGradients => "weight-gradients",
            Kind::Momentum => "momentum",
            Kind::FeatureMaps => "feature-maps",
            Kind::GradientMaps => "gradient-maps",
            Kind::Saved => "saved",
            Kind::Workspace => "workspace",
        }
    }

    /// Whether the vDNN paper counts it: weights, X, dX and dY, workspace.
    pub fn is_in_paper(self) -> bool {
        matches!(self, Kind::Weights | Kind::FeatureMaps | Kind::GradientMaps | Kind::Workspace)
    }
}

/// Bytes of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindBytes([u64; Kind::ALL.len()]);

impl KindBytes {
    /// Bytes of one kind.
    pub fn get(&self, kind: Kind) -> Bytes {
        Bytes(self.0[kind as usize])
    }

    /// Takes more bytes of one kind in.
    pub fn add(&mut self, kind: Kind, bytes: u64) {
        self.0[kind as usize] += bytes;
    }

    /// Gives bytes of one kind back.
    pub fn remove(&mut self, kind: Kind, bytes: u64) {
        let held = &mut self.0[kind as usize];
        *held = held.saturating_sub(bytes);
    }

    /// Bytes of all kinds.
    pub fn total(&self) -> Bytes {
        Bytes(self.0.iter().sum())
    }

    /// Bytes of the kinds that the vDNN paper counts.
    pub fn in_paper(&self) -> Bytes {
        Kind::ALL.into_iter().filter(|kind| kind.is_in_paper()).map(|kind| self.get(kind)).sum()
    }
}

/// Memory in one way of counting, of a plan and of the baseline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accounting {
    /// The most bytes live at once.
    pub maximum: Bytes,
    /// The mean over the time of the step.
    pub average: Bytes,
    /// What the network-wide baseline allocates: its maximum and its average.
    pub baseline: Bytes,
}

impl Accounting {
    /// The share of the baseline that the maximum saves.
    pub fn maximum_saved(&self) -> f64 {
        1.0 - self.maximum.0 as f64 / self.baseline.0 as f64
    }

    /// The share of the baseline that the average saves.
    pub fn average_saved(&self) -> f64 {
        1.0 - self.average.0 as f64 / self.baseline.0 as f64
    }
}

/// What becomes of a feature map after its last forward use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// It stays until its last backward use, or longer.
    Kept,
    /// Nothing reads it again: its bytes are given back.
    Released,
    /// It is copied to the host and back.
    Offloaded,
}

impl Fate {
    /// The name used in tables and files.
    pub fn name(self) -> &'static str {
        match self {
            Fate::Kept => "kept",
            Fate::Released => "released",
            Fate::Offloaded => "offloaded",
        }
    }
}

/// One feature map in a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapPlan {
    /// Which map.
    pub map: TensorId,
    /// Names of the layers that write it, in order.
    pub layers: Vec<String>,
    /// Its bytes on the whole mini-batch.
    pub bytes: Bytes,
    /// What becomes of it.
    pub fate: Fate,
    /// From the end of its last forward use to the start of its first backward use; none if there is no such use.
    pub reuse_distance: Option<Nanos>,
}

/// One layer in a plan: its own bytes, as the vDNN paper's figure 4 has them, and its times.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerPlan {
    /// Name of the layer.
    pub name: String,
    /// Input maps.
    pub input: Bytes,
    /// The output map; nothing where it is the input's.
    pub output: Bytes,
    /// Weights.
    pub weights: Bytes,
    /// Largest workspace going forward.
    pub forward_workspace: Bytes,
    /// Largest workspace going backward.
    pub backward_workspace: Bytes,
    /// The most bytes that any one of its passes touches.
    pub working_set: Bytes,
    /// Time of its forward pass.
    pub forward: Nanos,
    /// Time of its backward passes and its update.
    pub backward: Nanos,
}

/// One attempt of a policy, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// What was tried, in the paper's words: `all(m)`, `conv(p)`, `greedy conv`.
    pub attempt: String,
    /// Bytes of the arena that it needs, or fills.
    pub needed: Bytes,
    /// Bytes of the host arena.
    pub host: Bytes,
    /// Whether that is within the budgets.
    pub fits: bool,
    /// Time of a step, where it was simulated.
    pub time: Option<Nanos>,
    /// Whether it is the plan.
    pub taken: bool,
}

/// A schedule under a budget, and everything that is known of it before it runs.
///
/// Its schedule is `S`: one that the checker has passed, except inside the reading of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan<S = Checked> {
    /// Name of the network.
    pub network: String,
    /// Samples of one step.
    pub batch: usize,
    /// Number types of maps and arithmetic.
    pub types: Types,
    /// Whether the step learns.
    #[serde(rename = "inference")]
    pub mode: Mode,
    /// What was asked for.
    pub options: Options,
    /// What happens when, and where everything lies.
    pub schedule: S,
    /// Highest end of a block in the device arena: the size of the arena.
    pub peak: Bytes,
    /// The most bytes of blocks that are live at once: no placement needs less.
    pub most_live: Bytes,
    /// Live bytes, weighted by time over the step.
    pub average: Bytes,
    /// Live bytes, the mean over the operations.
    pub layer_average: Bytes,
    /// Live bytes by kind at the moment of the most.
    pub at_most: KindBytes,
    /// Size of the pinned host arena.
    pub host: Bytes,
    /// The least budget that this policy can be carried out in, with memory-optimal algorithms.
    pub min_feasible: Bytes,
    /// The layer at which that least budget is full.
    pub binding_layer: String,
    /// The least budget over all policies.
    pub least: Bytes,
    /// Size of the arena of the network-wide baseline with the fastest algorithms.
    pub baseline: Bytes,
    /// Time of a step, simulated.
    pub step_time: Nanos,
    /// Time of a step with everything resident and the fastest algorithms: the paper's oracle.
    pub baseline_time: Nanos,
    /// How far the step time is at most from the least possible under the budget; none where no bound is known.
    pub gap: Option<f64>,
    /// Bytes copied to the host in a step.
    pub offloaded: Bytes,
    /// Time spent on computing forward passes again.
    pub recomputed: Nanos,
    /// Memory as counted here: with weight gradients, momentum and everything saved.
    pub ours: Accounting,
    /// Memory as the vDNN paper counts it: weights, X, one dX, one dY, workspace.
    pub paper: Accounting,
    /// What becomes of each feature map.
    pub maps: Vec<MapPlan>,
    /// Each layer's own bytes and times, in order.
    pub layers: Vec<LayerPlan>,
    /// What was tried, in order.
    pub decisions: Vec<Decision>,
    /// The step in time.
    pub simulation: Simulation,
}

impl<S> Plan<S> {
    /// The same facts with another schedule.
    pub(super) fn with_schedule<T>(self, schedule: T) -> Plan<T> {
        Plan {
            network: self.network,
            batch: self.batch,
            types: self.types,
            mode: self.mode,
            options: self.options,
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
            baseline: self.baseline,
            step_time: self.step_time,
            baseline_time: self.baseline_time,
            gap: self.gap,
            offloaded: self.offloaded,
            recomputed: self.recomputed,
            ours: self.ours,
            paper: self.paper,
            maps: self.maps,
            layers: self.layers,
            decisions: self.decisions,
            simulation: self.simulation,
        }
    }

    /// The share by which a step takes longer than with everything resident: 0.1 for a tenth.
    pub fn overhead(&self) -> f64 {
        self.step_time.ratio(self.baseline_time) - 1.0
    }

    /// The share of the arena's bytes that its offsets waste over the most that is ever live.
    pub fn fragmentation(&self) -> f64 {
        self.peak.0 as f64 / self.most_live.0.max(1) as f64 - 1.0
    }
}
