//! Options of a plan: the policy, the algorithms, and the budgets.

use serde::{Deserialize, Serialize};
use tightfit_units::{Bytes, Nanos, by_name};

use crate::step::Division;

/// The rule that decides which feature maps to offload, and how copies and layers wait for each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Every map stays on the device for the whole step; gradient maps share memory.
    Baseline,
    /// Offloads the inputs of all layers of the feature extraction: convolutions, poolings, normalizations, activations,
    /// concatenations and sums. Source: Rhu et al. 2016, 3.3, vDNN_all.
    VdnnAll,
    /// Offloads the inputs of all convolutions. Source: Rhu et al. 2016, 3.3, vDNN_conv.
    VdnnConv,
    /// The first of the paper's passes that fits. Source: Rhu et al. 2016, 3.3, vDNN_dyn.
    VdnnDynamic,
    /// Offloads only as many maps as the budget requires, with one copy stream per direction and no wait at the end of each layer. Takes vDNN_dyn's
    /// plan if that is faster.
    Overlap,
    /// Decides for each tensor whether it stays, moves or is recomputed, and for each operation its time and workspace, together. Takes the plan of
    /// any other policy if that is faster.
    #[default]
    Optimal,
}

impl Policy {
    /// All of them, in the order of the documentation.
    pub const ALL: [Policy; 6] =
        [Policy::Baseline, Policy::VdnnAll, Policy::VdnnConv, Policy::VdnnDynamic, Policy::Overlap, Policy::Optimal];

    /// The name used in options and files.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Baseline => "baseline",
            Policy::VdnnAll => "vdnn-all",
            Policy::VdnnConv => "vdnn-conv",
            Policy::VdnnDynamic => "vdnn-dynamic",
            Policy::Overlap => "overlap",
            Policy::Optimal => "optimal",
        }
    }
}

by_name!(Policy, "policies of plans");

/// How to choose the convolutions' configurations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithms {
    /// The least workspace for each: the paper's (m).
    Memory,
    /// The fastest for each, with any workspace: the paper's (p).
    Performance,
    /// The fastest for each whose workspace fits a contiguous free range in the arena at its step.
    #[default]
    Fit,
}

impl Algorithms {
    /// All of them, in the order of the documentation.
    pub const ALL: [Algorithms; 3] = [Algorithms::Memory, Algorithms::Performance, Algorithms::Fit];

    /// The name used in options and files.
    pub fn name(self) -> &'static str {
        match self {
            Algorithms::Memory => "memory",
            Algorithms::Performance => "performance",
            Algorithms::Fit => "fit",
        }
    }
}

by_name!(Algorithms, "choices of algorithms");

/// Options of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Which maps to offload, and when.
    pub policy: Policy,
    /// How to choose configurations; [`Policy::VdnnDynamic`] makes this choice itself.
    pub algorithms: Algorithms,
    /// Whether to allow dividing the mini-batch of a convolution or of a stretch of layers; the vDNN paper does not.
    pub divide: bool,
    /// Whether branches may run side by side on lanes, if the costs predict a gain. Only [`Policy::Optimal`] uses them. False in files without the
    /// key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lanes: bool,
    /// Largest allowed size of the device arena.
    pub budget: Bytes,
    /// Largest allowed size of the pinned host arena.
    pub host_budget: Bytes,
    /// The longest search of [`Policy::Optimal`]; `None` for a fixed amount of work, with the same plan each time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_time: Option<Nanos>,
}

impl Options {
    /// Whether mini-batches may be divided.
    pub fn division(&self) -> Division {
        if self.divide { Division::Allowed } else { Division::Forbidden }
    }
}

impl Default for Options {
    fn default() -> Options {
        Options {
            policy: Policy::default(),
            algorithms: Algorithms::default(),
            divide: true,
            lanes: false,
            budget: Bytes::UNLIMITED,
            host_budget: Bytes::UNLIMITED,
            plan_time: None,
        }
    }
}
