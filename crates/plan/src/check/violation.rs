//! The ways a schedule can be invalid, each with the blocks, tensors and steps involved.

use std::fmt;

use tightfit_units::Bytes;

use crate::step::{OperationId, TensorId};
use crate::{BlockId, Holding, HostBlockId, InstructionId, Stream};

/// Sizes that the arenas must not exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budgets {
    /// Limit of the device arena.
    pub device: Bytes,
    /// Limit of the pinned host arena.
    pub host: Bytes,
}

impl Default for Budgets {
    /// No limits.
    fn default() -> Budgets {
        Budgets { device: Bytes::UNLIMITED, host: Bytes::UNLIMITED }
    }
}

/// A fault in a schedule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Violation {
    /// An arena is larger than allowed.
    OverBudget {
        /// Which arena.
        arena: &'static str,
        /// Its size.
        bytes: Bytes,
        /// The limit.
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
    /// A block's offset is not a multiple of the alignment.
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
        /// The bytes its tensor needs.
        needed: Bytes,
    },
    /// A block covers samples that do not exist, or only some although what it holds is not divided into samples or stays
    /// on the device between steps.
    Samples {
        /// The block.
        block: BlockId,
        /// First sample.
        first: usize,
        /// The one after the last.
        last: usize,
    },
    /// An instruction computes no sample, or only some of an operation that needs the whole mini-batch.
    PartOfBatch {
        /// The instruction.
        at: InstructionId,
    },
    /// An instruction refers to something that does not exist, or a block holds a tensor that the step lacks.
    NoSuch {
        /// The name of the missing thing.
        what: String,
        /// The instruction; the first for blocks.
        at: InstructionId,
    },
    /// A computation on a stream for copies, or a copy on one that computes.
    WrongStream {
        /// The instruction.
        at: InstructionId,
        /// The stream it is on.
        stream: Stream,
    },
    /// A block is allocated a second time, or although it is resident.
    AllocatedTwice {
        /// The block.
        block: BlockId,
        /// The second allocation.
        at: InstructionId,
    },
    /// Only one of a block and its tensor is resident.
    Residence {
        /// The block.
        block: BlockId,
        /// The block's content.
        holds: Holding,
    },
    /// Two resident blocks hold the same tensor; only one of them can hold its initial content.
    ResidentTwice {
        /// The later block.
        block: BlockId,
        /// The earlier one.
        other: BlockId,
        /// The tensor of both.
        holds: Holding,
    },
    /// A block is used or released while it is not allocated.
    NotLive {
        /// The block.
        block: BlockId,
        /// Its content.
        holds: Holding,
        /// The instruction.
        at: InstructionId,
    },
    /// Two blocks that are live at the same time overlap.
    Overlap {
        /// The block being allocated.
        block: BlockId,
        /// The live block.
        other: BlockId,
        /// The allocation.
        at: InstructionId,
    },
    /// A step uses bytes that another step may still be using, through the same block or an earlier owner of the bytes.
    Unordered {
        /// The block.
        block: BlockId,
        /// The block's content.
        holds: Holding,
        /// The instruction.
        at: InstructionId,
        /// The instruction it should wait for but does not.
        after: InstructionId,
    },
    /// A block is written while a copy may still read it.
    ChangedWhileCopied {
        /// The block.
        block: BlockId,
        /// The block's content.
        holds: Holding,
        /// The writing step.
        at: InstructionId,
        /// The copy.
        copy: InstructionId,
    },
    /// A block is read before it is written.
    NeverWritten {
        /// The block.
        block: BlockId,
        /// The content that it should hold.
        holds: Holding,
        /// The reading step.
        at: InstructionId,
    },
    /// A block is not released at the end of the step.
    Leak {
        /// The block.
        block: BlockId,
        /// The block's content.
        holds: Holding,
    },
    /// Bytes that hold a result of the step, which is read after its end, are given to another block.
    ResultLost {
        /// The block of the result: the probabilities, or another map that no layer reads.
        result: BlockId,
        /// The block's content.
        holds: Holding,
        /// The block that takes some of its bytes.
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
    /// A copy from the host of data that is not there, or no longer there.
    NotOnHost {
        /// The block on the host.
        host: HostBlockId,
        /// The tensor that it should hold.
        tensor: TensorId,
        /// The copy.
        at: InstructionId,
    },
    /// A copy uses host bytes that another copy may still be using.
    HostUnordered {
        /// The block on the host.
        host: HostBlockId,
        /// The copy.
        at: InstructionId,
        /// The copy it should wait for.
        after: InstructionId,
    },
    /// A computation has more or fewer blocks than its operation uses.
    WrongOperands {
        /// The operation.
        operation: OperationId,
        /// Number of its blocks.
        given: usize,
        /// Number of tensors its operation uses.
        wanted: usize,
        /// The computation.
        at: InstructionId,
    },
    /// A computation is given the wrong tensor for one of its operation's uses.
    WrongTensor {
        /// The operation.
        operation: OperationId,
        /// Index of the use; the workspace comes last.
        operand: usize,
        /// The tensor it is given.
        holds: Holding,
        /// The computation.
        at: InstructionId,
    },
    /// An operation with a choice lacks a configuration, or has one for another mini-batch or with too small a
    /// workspace; or an operation without a choice has a configuration.
    WrongConfiguration {
        /// The operation.
        operation: OperationId,
        /// The computation.
        at: InstructionId,
    },
    /// A block does not hold what the operation must read.
    WrongContent {
        /// The operation.
        operation: OperationId,
        /// Which of its uses.
        operand: usize,
        /// The computation.
        at: InstructionId,
    },
    /// A block does not cover the samples that a computation accesses.
    OtherSamples {
        /// The operation.
        operation: OperationId,
        /// Which of its uses.
        operand: usize,
        /// The computation.
        at: InstructionId,
    },
    /// An operation computes a sample twice in one step, or reruns before its first run.
    RunTwice {
        /// The operation.
        operation: OperationId,
        /// The second run.
        at: InstructionId,
    },
    /// An operation that must not rerun does.
    RunsAgain {
        /// The operation.
        operation: OperationId,
        /// The second run.
        at: InstructionId,
    },
    /// An operation does not run, or not for every sample.
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
