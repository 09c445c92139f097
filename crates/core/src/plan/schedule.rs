//! What carries a plan out: a flat list of instructions on three streams, with a fixed place for every block.
//!
//! Instructions of one stream run in the order of the list. Across streams only waits order them:
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

use super::step::{GroupId, OperationId, TensorId};
use crate::{Bytes, Configuration, Types};

/// Every block, and every parameter inside its block, begins at a multiple of this many bytes: what the fastest
/// algorithms of any backend ask for.
pub const ALIGNMENT: u64 = 256;

/// What a block of so many bytes takes of its arena.
pub fn footprint(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT)
}

/// A block's place in [`Schedule::blocks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BlockId(pub usize);

/// A host block's place in [`Schedule::host_blocks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostBlockId(pub usize);

/// An instruction's place in [`Schedule::instructions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InstructionId(pub usize);

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Holding {
    /// A tensor of the step.
    Tensor(TensorId),
    /// Scratch of one computation of a group.
    Workspace(GroupId),
}

/// One stay of a tensor in the device arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// What it holds.
    pub holds: Holding,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostBlock {
    /// What it holds.
    pub tensor: TensorId,
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

/// One run of an operation over some samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Compute {
    /// Which operation.
    pub operation: OperationId,
    /// The block of each of its uses, in their order.
    pub blocks: Vec<BlockId>,
    /// Scratch, if its configuration needs some.
    pub workspace: Option<BlockId>,
    /// The samples that it computes: all, unless the schedule works in slices.
    pub samples: Range<usize>,
    /// How it is carried out, where there is a choice.
    pub configuration: Option<Configuration>,
    /// Whether it is run again: see [`super::step::Again`].
    pub again: bool,
}

impl Compute {
    /// Every block that it touches, its workspace last.
    pub fn touched(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.blocks.iter().copied().chain(self.workspace)
    }
}

/// What an instruction does.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// The block's life begins; its content is undefined.
    Allocate(BlockId),
    /// The block's life ends.
    Release(BlockId),
    /// An operation, on the compute stream.
    Compute(Box<Compute>),
    /// Copies a block to the host.
    Offload(BlockId, HostBlockId),
    /// Copies a block back from the host.
    Prefetch(HostBlockId, BlockId),
    /// The instruction's stream does not go on before that earlier instruction has ended.
    Wait(InstructionId),
}

impl Action {
    /// Whether it reads or writes a block.
    pub fn touches(&self, block: BlockId) -> bool {
        match self {
            Action::Compute(compute) => compute.touched().any(|touched| touched == block),
            Action::Offload(from, _) => *from == block,
            Action::Prefetch(_, to) => *to == block,
            Action::Allocate(_) | Action::Release(_) | Action::Wait(_) => false,
        }
    }
}

/// One unit of a schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    /// Where it runs; for `Allocate` and `Release`, which run nowhere, the stream that the policy had in mind.
    pub stream: Stream,
    /// What it does.
    pub action: Action,
}

/// Everything that one step does on three streams, with a place for everything.
#[derive(Clone, Debug, PartialEq)]
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
    /// What happens, in order.
    pub instructions: Vec<Instruction>,
}
