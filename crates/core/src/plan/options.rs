//! What a plan is asked for: which policy, which algorithms, and how many bytes.

use serde::{Deserialize, Serialize};

use super::step::Division;
use crate::Bytes;
use crate::words::by_name;

/// The rule that decides which feature maps leave the device, and how copies and layers wait for each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Every map stays from the beginning of the step to its end; gradient maps share their bytes.
    Baseline,
    /// The inputs of all convolutions and poolings are offloaded. Source: Rhu et al. 2016, 3.3, vDNN_all.
    VdnnAll,
    /// The inputs of the convolutions are offloaded. Source: Rhu et al. 2016, 3.3, vDNN_conv.
    VdnnConv,
    /// The first of the paper's passes that fits. Source: Rhu et al. 2016, 3.3, vDNN_dyn.
    #[default]
    VdnnDynamic,
    /// Only as many maps as the budget asks for, each way on a stream of its own, nothing waited for at the end of a layer.
    Overlap,
}

impl Policy {
    /// All of them, in the order of the documentation.
    pub const ALL: [Policy; 5] =
        [Policy::Baseline, Policy::VdnnAll, Policy::VdnnConv, Policy::VdnnDynamic, Policy::Overlap];

    /// The name used in options and files.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Baseline => "baseline",
            Policy::VdnnAll => "vdnn-all",
            Policy::VdnnConv => "vdnn-conv",
            Policy::VdnnDynamic => "vdnn-dynamic",
            Policy::Overlap => "overlap",
        }
    }
}

by_name!(Policy, "policies of plans");

/// Which configurations the convolutions get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithms {
    /// Each the one with the least workspace: the papers' (m).
    Memory,
    /// Each the fastest, whatever its workspace: the papers' (p).
    Performance,
    /// Each the fastest that fits what the arena leaves free, contiguously, at its step.
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

/// What a plan is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Which maps move, and when.
    pub policy: Policy,
    /// Which configurations convolutions get; [`Policy::VdnnDynamic`] chooses them itself.
    pub algorithms: Algorithms,
    /// Whether a convolution's mini-batch may be divided; without, the algorithms are those of the vDNN paper.
    pub divide: bool,
    /// Size that the device arena must not exceed.
    pub budget: Bytes,
    /// Size that the pinned host arena must not exceed.
    pub host_budget: Bytes,
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
            budget: Bytes::UNLIMITED,
            host_budget: Bytes::UNLIMITED,
        }
    }
}
