//! What becomes of tensors, in the form of a plan file.

use serde::{Deserialize, Serialize};

/// A rerun: the operations run again, in order, before one of the backward pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebuilt {
    /// The operation before which it runs, or earlier, where another rerun needs the tensor.
    pub before: usize,
    /// The operations, by number.
    pub operations: Vec<usize>,
}

/// Where a tensor is between its passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fate {
    /// On the device.
    Keep,
    /// On the host.
    Offload,
    /// Nowhere: it is made again.
    Recompute,
}

/// The decision for a tensor; those that have none are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// The tensor, by number.
    pub tensor: usize,
    /// Where it is meanwhile.
    #[serde(rename = "decision")]
    pub fate: Fate,
    /// The operation behind which its copy to the host begins.
    pub offload_after: Option<usize>,
    /// The operation behind which its bytes are free.
    pub release_after: Option<usize>,
    /// The operation before which its copy to the device begins, at the latest where it is needed.
    pub prefetch_before: Option<usize>,
    /// How it is made again, once for each time that it is.
    pub rebuilt: Vec<Rebuilt>,
}
