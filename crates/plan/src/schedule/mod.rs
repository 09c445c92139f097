//! The schedule of a plan: a flat list of instructions on a few streams, with a fixed place for every block.
//!
//! Instructions on one stream run in list order. Across streams, only waits order them:
//!
//! ```text
//! list       0 compute a   1 wait c<-m   2 offload x   3 compute b   4 wait c for 2   5 release x
//! compute    |--- 0 ---|--- 3 ---|.......(4).|
//! offload              |------- 2 -------|       x may be overwritten by what the compute stream does from here on
//! ```
//!
//! Branches between a fork and a join may compute on separate streams, the lanes ([`Stream::LANES`]).
//!
//! A block is one stay of a tensor in the device arena: a feature map that is offloaded and prefetched has two blocks,
//! at two places. A block lives from its `Allocate` to its `Release`, which take no time and run on no stream. Stream
//! order or waits must put every access to a block after all accesses to blocks that used any of its bytes before. A
//! schedule repeats: the next training step begins when every stream has finished this one.

pub(crate) mod clock;
pub(crate) mod lives;
pub(crate) mod parts;
pub(crate) mod script;
pub(crate) mod treatment;
pub(crate) mod write;

use std::ops::Range;

use serde::{Deserialize, Serialize};
use tightfit_conv::{Configuration, Types};
use tightfit_units::{Bytes, Nanos};

use crate::step::{Access, Again, GroupId, Kind, MAX_LANES, OperationId, Phase, Step, Tensor, TensorId, Use};

/// A block's index in [`Schedule::blocks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BlockId(pub usize);

/// A host block's index in [`Schedule::host_blocks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostBlockId(pub usize);

/// An instruction's index in [`Schedule::instructions`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct InstructionId(pub usize);

/// The content of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Holding {
    /// A tensor of the step.
    Tensor(TensorId),
    /// Scratch memory for one computation of a group.
    Workspace(GroupId),
}

/// One stay of a tensor in the device arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The content of the block.
    pub holds: Holding,
    /// First byte in the arena, a multiple of [`crate::ALIGNMENT`].
    pub offset: u64,
    /// Length.
    pub bytes: u64,
    /// The samples it covers: the whole mini-batch, unless the schedule works in parts of it. Ignored for tensors without
    /// samples.
    pub samples: Range<usize>,
    /// Whether it keeps its bytes and content between training steps; if so, it is never allocated or released.
    pub resident: bool,
}

/// The place in the pinned host arena for an offloaded block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostBlock {
    /// The tensor in the block.
    pub tensor: TensorId,
    /// First byte in the host arena.
    pub offset: u64,
    /// Length.
    pub bytes: u64,
}

/// A queue whose instructions run in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stream {
    /// Layers and weight updates: all of them, unless branches run side by side.
    Compute,
    /// Copies to the host. The paper's single memory stream is this one, for both directions.
    Offload,
    /// Copies from the host, if they have a separate stream.
    Prefetch,
    /// Layers of a branch, concurrently with the compute stream.
    #[serde(rename = "lane-2")]
    Lane2,
    /// The same for a third branch.
    #[serde(rename = "lane-3")]
    Lane3,
    /// The same for a fourth.
    #[serde(rename = "lane-4")]
    Lane4,
}

impl Stream {
    /// All of them.
    pub const ALL: [Stream; 6] =
        [Stream::Compute, Stream::Offload, Stream::Prefetch, Stream::Lane2, Stream::Lane3, Stream::Lane4];

    /// The streams that compute; the other streams copy.
    pub const LANES: [Stream; MAX_LANES] = [Stream::Compute, Stream::Lane2, Stream::Lane3, Stream::Lane4];

    /// Its index in [`Stream::ALL`].
    pub fn index(self) -> usize {
        match self {
            Stream::Compute => 0,
            Stream::Offload => 1,
            Stream::Prefetch => 2,
            Stream::Lane2 => 3,
            Stream::Lane3 => 4,
            Stream::Lane4 => 5,
        }
    }

    /// The name used in pictures and files.
    pub fn name(self) -> &'static str {
        match self {
            Stream::Compute => "compute",
            Stream::Offload => "offload",
            Stream::Prefetch => "prefetch",
            Stream::Lane2 => "lane-2",
            Stream::Lane3 => "lane-3",
            Stream::Lane4 => "lane-4",
        }
    }

    /// Whether it computes.
    pub fn is_lane(self) -> bool {
        Stream::LANES.contains(&self)
    }
}

/// One run of an operation over some samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Compute {
    /// The operation.
    pub operation: OperationId,
    /// The share of its work.
    pub phase: Phase,
    /// The block of each use of this share, in the order of [`super::Step::uses`].
    pub blocks: Vec<BlockId>,
    /// Scratch memory, if its configuration needs any.
    pub workspace: Option<BlockId>,
    /// The samples to compute: all, unless the schedule works in parts of it.
    pub samples: Range<usize>,
    /// The chosen configuration, if there is a choice.
    pub configuration: Option<Configuration>,
    /// Whether this is a rerun; see [`crate::step::Rerun`].
    pub again: bool,
    /// Whether other samples of the same operation have run in this phase. If their result is a sum over samples, this run adds to it.
    pub adds: bool,
}

impl Compute {
    /// The access of this run to the tensor of one of its uses.
    pub fn access(&self, used: &Use, tensor: &Tensor) -> Access {
        let access = if self.again { used.access_in_rerun() } else { used.access };
        self.phase.access(access, tensor.sample_bytes.is_some(), self.adds)
    }

    /// The samples of a tensor that this run accesses: all `batch` if the tensor is not divided into samples.
    pub fn reach(&self, tensor: &Tensor, batch: usize) -> Range<usize> {
        if tensor.sample_bytes.is_some() { self.samples.clone() } else { 0..batch }
    }

    /// Every block it accesses, workspace last.
    pub fn touched(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.blocks.iter().copied().chain(self.workspace)
    }
}

/// The action of an instruction.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Begins the block's lifetime; its content is undefined.
    Allocate(BlockId),
    /// Ends the block's life.
    Release(BlockId),
    /// Runs an operation on a stream that computes.
    Compute(Box<Compute>),
    /// Copies a block to the host.
    Offload(BlockId, HostBlockId),
    /// Copies a block back from the host.
    Prefetch(HostBlockId, BlockId),
    /// Blocks the stream until an earlier instruction has ended.
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
    /// The stream it runs on. `Allocate` and `Release` run on no stream; for these, the stream that the policy chose.
    pub stream: Stream,
    /// The action.
    pub action: Action,
}

/// All instructions of one step, with a place for every block.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// Samples of one step.
    pub batch: usize,
    /// Number types of maps and arithmetic.
    pub types: Types,
    /// Size of the device arena; no block ends beyond it.
    pub device_bytes: Bytes,
    /// Size of the pinned host arena.
    pub host_bytes: Bytes,
    /// Every stay of a tensor in the device arena.
    pub blocks: Vec<Block>,
    /// Every block of the host arena.
    pub host_blocks: Vec<HostBlock>,
    /// The instructions, in order.
    pub instructions: Vec<Instruction>,
}

impl Schedule {
    /// The used streams: the compute stream, copy streams, and lanes, in the order of [`Stream::ALL`].
    pub fn streams(&self) -> Vec<Stream> {
        let is_used = |stream: &Stream| self.instructions.iter().any(|instruction| instruction.stream == *stream);
        let always = [Stream::Compute, Stream::Offload, Stream::Prefetch];
        Stream::ALL.into_iter().filter(|stream| always.contains(stream) || is_used(stream)).collect()
    }

    /// The number of streams that compute.
    pub fn lanes(&self) -> usize {
        self.streams().into_iter().filter(|stream| stream.is_lane()).count()
    }
}

impl Step {
    /// Describes the content of a block.
    pub fn describe(&self, holds: Holding) -> String {
        match holds {
            Holding::Tensor(id) => self.tensors.get(id.0).map(|tensor| tensor.name.clone()).unwrap_or_default(),
            Holding::Workspace(id) => {
                format!("workspace {}", self.groups.get(id.0).map_or("", |group| group.name.as_str()))
            }
        }
    }

    /// The kind of memory a block counts as.
    ///
    /// # Panics
    /// If the step has no such tensor.
    pub fn kind(&self, holds: Holding) -> Kind {
        match holds {
            Holding::Tensor(id) => self.tensor(id).kind,
            Holding::Workspace(_) => Kind::Workspace,
        }
    }

    /// The time of a scheduled operation. `launch` of it is independent of the number of samples. The rest of a whole-mini-batch time shrinks in
    /// proportion. A configuration's time is already for its samples.
    ///
    /// # Panics
    /// If the step has no such operation.
    pub fn time(&self, compute: &Compute, launch: Nanos) -> Nanos {
        let operation = self.operation(compute.operation);
        let part = |whole| self.part_of(whole, compute.samples.len(), launch);
        match operation.again {
            Again::Taking(time) if compute.again => part(time),
            _ => {
                let share = |whole| part(operation.time_of_phase(compute.phase, whole, launch));
                operation.cost.time_of(compute.configuration.as_ref(), share)
            }
        }
    }
}
