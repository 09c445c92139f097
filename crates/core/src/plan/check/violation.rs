//! What can be wrong with a schedule, each fault with the blocks, tensors and steps that it is about.

use std::fmt;

use crate::Bytes;
use crate::plan::step::{OperationId, TensorId};
use crate::plan::{BlockId, Holding, HostBlockId, InstructionId, Stream};

/// Sizes that the arenas must not exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// Of the device arena.
    pub device: Bytes,
    /// Of the pinned host arena.
    pub host: Bytes,
}

impl Default for Budgets {
    /// No limits.
    fn default() -> Budgets {
        Budgets { device: Bytes::UNLIMITED, host: Bytes::UNLIMITED }
    }
}

/// What is wrong with a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// An arena is larger than allowed.
    OverBudget {
        /// Which arena.
        arena: &'static str,
        /// Its size.
        bytes: Bytes,
        /// What is allowed.
        budget: Bytes,
    },
    /// A block ends beyond its arena.
    Outside {
        /// Which arena.
        arena: &'static str,
        /// The block's place in its list.
        index: usize,
        /// Where it ends.
        end: Bytes,
        /// Size of the arena.
        size: Bytes,
    },
    /// A block begins between multiples of the alignment.
    Misaligned {
        /// Which arena.
        arena: &'static str,
        /// The block's place in its list.
        index: usize,
        /// Where it begins.
        offset: u64,
    },
    /// A block is smaller than its tensor.
    TooSmall {
        /// The block.
        block: BlockId,
        /// Its length.
        bytes: Bytes,
        /// What its tensor takes.
        needed: Bytes,
    },
    /// A block is of some samples only, or of samples that are not there.
    Samples {
        /// The block.
        block: BlockId,
        /// First sample.
        first: usize,
        /// The one after the last.
        last: usize,
    },
    /// An instruction computes some of the samples only.
    PartOfBatch {
        /// The instruction.
        at: InstructionId,
    },
    /// An instruction names what does not exist, or a block holds a tensor that the step has not.
    NoSuch {
        /// What does not exist.
        what: String,
        /// The instruction; the first for blocks.
        at: InstructionId,
    },
    /// A computation off the compute stream, or a copy on it.
    WrongStream {
        /// The instruction.
        at: InstructionId,
        /// Where it is.
        stream: Stream,
    },
    /// A block is allocated that was allocated before, or is resident.
    AllocatedTwice {
        /// The block.
        block: BlockId,
        /// The second allocation.
        at: InstructionId,
    },
    /// A block is resident that holds nothing that is, or the other way round.
    Residence {
        /// The block.
        block: BlockId,
        /// What it holds.
        holds: Holding,
    },
    /// Two resident blocks are of one tensor, of which only one can hold what it was before the first step.
    ResidentTwice {
        /// The later block.
        block: BlockId,
        /// The earlier one.
        other: BlockId,
        /// What both would hold.
        holds: Holding,
    },
    /// A block is used or released while it is not allocated.
    NotLive {
        /// The block.
        block: BlockId,
        /// What it would hold.
        holds: Holding,
        /// The instruction.
        at: InstructionId,
    },
    /// Two blocks that are live at once have bytes in common.
    Overlap {
        /// The block that is allocated.
        block: BlockId,
        /// The block that is there.
        other: BlockId,
        /// The allocation.
        at: InstructionId,
    },
    /// A step uses bytes that another may still be at, its own tensor's or those of a block that had them before.
    Unordered {
        /// The block.
        block: BlockId,
        /// What it holds.
        holds: Holding,
        /// The instruction.
        at: InstructionId,
        /// The instruction that it should come after, and is not made to.
        after: InstructionId,
    },
    /// A block is written while a copy may still read it.
    ChangedWhileCopied {
        /// The block.
        block: BlockId,
        /// What it holds.
        holds: Holding,
        /// The step that writes.
        at: InstructionId,
        /// The copy.
        copy: InstructionId,
    },
    /// A block is read that nothing was written to.
    NeverWritten {
        /// The block.
        block: BlockId,
        /// What it should hold.
        holds: Holding,
        /// The step that reads.
        at: InstructionId,
    },
    /// A block is not released at the end of the step.
    Leak {
        /// The block.
        block: BlockId,
        /// What it holds.
        holds: Holding,
    },
    /// Bytes that hold what the step is for, which is read after its end, are given to another block.
    ResultLost {
        /// The block of the probabilities, or of another map that no layer reads.
        result: BlockId,
        /// What it holds.
        holds: Holding,
        /// The block that gets some of the bytes.
        block: BlockId,
        /// The allocation.
        at: InstructionId,
    },
    /// A copy between blocks of different tensors or lengths.
    HostMismatch {
        /// The block on the device.
        block: BlockId,
        /// The block on the host.
        host: HostBlockId,
        /// The copy.
        at: InstructionId,
    },
    /// A copy from the host of what is not there, or not any more.
    NotOnHost {
        /// The block on the host.
        host: HostBlockId,
        /// What it should hold.
        tensor: TensorId,
        /// The copy.
        at: InstructionId,
    },
    /// A copy uses bytes on the host that another may still be at.
    HostUnordered {
        /// The block on the host.
        host: HostBlockId,
        /// The copy.
        at: InstructionId,
        /// The copy that it should come after.
        after: InstructionId,
    },
    /// A computation with more or fewer blocks than its operation uses.
    WrongOperands {
        /// The operation.
        operation: OperationId,
        /// Blocks that it is given.
        given: usize,
        /// Tensors that it uses.
        wanted: usize,
        /// The computation.
        at: InstructionId,
    },
    /// A computation is given something else than a tensor that its operation uses.
    WrongTensor {
        /// The operation.
        operation: OperationId,
        /// Which of its uses; the workspace comes after the last.
        operand: usize,
        /// What it is given.
        holds: Holding,
        /// The computation.
        at: InstructionId,
    },
    /// An operation with a choice but no configuration, or one of another mini-batch or too small a workspace; or a
    /// configuration where there is no choice.
    WrongConfiguration {
        /// The operation.
        operation: OperationId,
        /// The computation.
        at: InstructionId,
    },
    /// A block holds something else than what the operation has to read.
    WrongContent {
        /// The operation.
        operation: OperationId,
        /// Which of its uses.
        operand: usize,
        /// The computation.
        at: InstructionId,
    },
    /// An operation runs twice in one step.
    RunTwice {
        /// The operation.
        operation: OperationId,
        /// The second time.
        at: InstructionId,
    },
    /// An operation does not run.
    Missing {
        /// The operation.
        operation: OperationId,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
