//! The program that carries a plan out: a flat list of steps on three streams, with a fixed place for every block.
//!
//! Steps of one stream run in the order of the list. Across streams only waits order them:
//!
//! ```text
//! list       0 compute a   1 wait c<-m   2 offload x   3 compute b   4 wait c for 2   5 release x
//! compute    |--- 0 ---|--- 3 ---|.......(4).|
//! offload              |------- 2 -------|       x may be overwritten by what the compute stream does from here on
//! ```
//!
//! A block is one stay of a tensor in the device arena: a feature map that is offloaded and prefetched has two blocks,
//! at two places. It lives from its `Allocate` to its `Release`; those cost nothing and run nowhere. What matters is that
//! every access to it comes after all accesses to blocks that had any of its bytes before, by the order of one stream or by
//! waits. A schedule repeats: the next training step begins when every stream has ended this one.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::network::{LayerId, MapId};
use crate::{Bytes, Configuration, Types};

/// A block's place in [`Schedule::blocks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BlockId(pub usize);

/// A host block's place in [`Schedule::host_blocks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostBlockId(pub usize);

/// A step's place in [`Schedule::steps`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StepId(pub usize);

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tensor {
    /// A feature map (X of the layers that read it, Y of those that write it).
    FeatureMap(MapId),
    /// The gradient of a feature map.
    Gradient(MapId),
    /// The parameters of a layer, in the storage of the workload's types.
    Weights(LayerId),
    /// The parameters in 32 bits, where they are stored in 16.
    MasterWeights(LayerId),
    /// The gradient of the parameters, in 32 bits.
    WeightGradient(LayerId),
    /// The solver's momentum, in 32 bits.
    Momentum(LayerId),
    /// What a layer keeps from step to step and does not learn: running means and variances.
    Statistics(LayerId),
    /// What a layer's forward pass saves for its backward pass beside maps.
    Saved(LayerId),
    /// The labels of the mini-batch.
    Labels,
    /// Scratch of one compute step of a layer.
    Workspace(LayerId),
}

/// One stay of a tensor in the device arena.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// What it holds.
    pub tensor: Tensor,
    /// First byte in the arena, a multiple of [`super::ALIGNMENT`].
    pub offset: u64,
    /// Length.
    pub bytes: u64,
    /// The samples of which it holds its tensor; those of the whole mini-batch unless the schedule works in slices.
    /// Tensors that have no samples ignore it.
    pub samples: Range<usize>,
    /// Whether it keeps its bytes and its content from one training step to the next: never allocated, never released.
    pub resident: bool,
}

/// A piece of the pinned host arena that an offloaded block is copied to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostBlock {
    /// What it holds.
    pub tensor: Tensor,
    /// First byte in the host arena.
    pub offset: u64,
    /// Length.
    pub bytes: u64,
}

/// What runs in order by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stream {
    /// Layers, and the update of the weights.
    Compute,
    /// Copies to the host. The paper's one memory stream is this one, in both directions.
    Offload,
    /// Copies from the host, where they are freed from those the other way.
    Prefetch,
}

impl Stream {
    /// All three.
    pub const ALL: [Stream; 3] = [Stream::Compute, Stream::Offload, Stream::Prefetch];

    /// Its place in [`Stream::ALL`].
    pub fn index(self) -> usize {
        match self {
            Stream::Compute => 0,
            Stream::Offload => 1,
            Stream::Prefetch => 2,
        }
    }

    /// The name used in pictures and files.
    pub fn name(self) -> &'static str {
        match self {
            Stream::Compute => "compute",
            Stream::Offload => "offload",
            Stream::Prefetch => "prefetch",
        }
    }
}

/// Which of a layer's computations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pass {
    /// Y from X. For an input layer: the next mini-batch and its labels.
    Forward,
    /// dX from dY; a batch normalization gives the gradients of its parameters in the same pass.
    BackwardData,
    /// dW from X and dY.
    BackwardFilter,
    /// The solver: W from dW.
    Update,
}

impl Pass {
    /// The name used in messages and files.
    pub fn name(self) -> &'static str {
        match self {
            Pass::Forward => "forward",
            Pass::BackwardData => "backward-data",
            Pass::BackwardFilter => "backward-filter",
            Pass::Update => "update",
        }
    }
}

/// What a compute step does with an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Reads it.
    Read,
    /// Overwrites it, whatever it held.
    Write,
    /// Adds to what it holds, or changes it in place.
    Add,
}

/// What an operand is to its layer; inputs are counted as in [`crate::network::Layer::inputs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// An input map.
    X(usize),
    /// The output map; the same block as `X(0)` where the layer works in place.
    Y,
    /// The gradient of an input map; the same block as `Dy` where the layer works in place.
    Dx(usize),
    /// The gradient of the output map.
    Dy,
    /// The parameters.
    W,
    /// The parameters in 32 bits, where `W` is in 16.
    Master,
    /// The gradient of the parameters.
    Dw,
    /// The solver's momentum.
    Momentum,
    /// Running means and variances.
    Statistics,
    /// What the forward pass saves.
    Saved,
    /// The labels.
    Labels,
    /// Scratch.
    Workspace,
}

/// One block as a compute step uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operand {
    /// What it is to the layer.
    pub role: Role,
    /// Where it lies.
    pub block: BlockId,
    /// What is done with it.
    pub access: Access,
}

/// One pass of one layer over some samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compute {
    /// Which layer.
    pub layer: LayerId,
    /// Which computation.
    pub pass: Pass,
    /// Every block that it touches.
    pub operands: Vec<Operand>,
    /// The samples that it computes: all, unless the schedule works in slices.
    pub samples: Range<usize>,
    /// How a convolution is carried out, in the block of role `Workspace` if it needs one.
    pub configuration: Option<Configuration>,
    /// Whether a forward pass is run again: statistics stay as they are, and what was saved is used, not made anew.
    pub again: bool,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// The block's life begins; its content is undefined.
    Allocate(BlockId),
    /// The block's life ends.
    Release(BlockId),
    /// A pass of a layer, on the compute stream.
    Compute(Box<Compute>),
    /// Copies a block to the host.
    Offload(BlockId, HostBlockId),
    /// Copies a block back from the host.
    Prefetch(HostBlockId, BlockId),
    /// The step's stream does not go on before that earlier step has ended.
    Wait(StepId),
}

/// One unit of a schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Where it runs; for `Allocate` and `Release`, which run nowhere, the stream that the policy had in mind.
    pub stream: Stream,
    /// What it does.
    pub action: Action,
}

/// A program for one training step (or one inference), with a place for everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Samples of one step.
    pub batch: usize,
    /// Number types of maps and arithmetic.
    pub types: Types,
    /// Size of the device arena: no block ends beyond it.
    pub device_bytes: Bytes,
    /// Size of the pinned host arena.
    pub host_bytes: Bytes,
    /// Every stay of a tensor in the device arena.
    pub blocks: Vec<Block>,
    /// Every place in the host arena.
    pub host_blocks: Vec<HostBlock>,
    /// The program.
    pub steps: Vec<Step>,
}
