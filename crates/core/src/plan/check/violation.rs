//! What can be wrong with a schedule, each fault with the blocks, tensors and steps that it is about.

use std::fmt;

use crate::Bytes;
use crate::network::LayerId;
use crate::plan::{BlockId, HostBlockId, Pass, Role, StepId, Stream, Tensor};

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
    /// A block or a step is of samples that are not there, or of some samples only.
    Samples {
        /// The block.
        block: BlockId,
        /// First sample.
        first: usize,
        /// The one after the last.
        last: usize,
    },
    /// A step computes some of the samples only.
    PartOfBatch {
        /// The step.
        step: StepId,
    },
    /// A step names what does not exist, or a block holds a tensor that the network has not.
    NoSuch {
        /// What does not exist.
        what: String,
        /// The step; the first for blocks.
        step: StepId,
    },
    /// A computation off the compute stream, or a copy on it.
    WrongStream {
        /// The step.
        step: StepId,
        /// Where it is.
        stream: Stream,
    },
    /// A block is allocated that was allocated before, or is resident.
    AllocatedTwice {
        /// The block.
        block: BlockId,
        /// The second allocation.
        step: StepId,
    },
    /// Two resident blocks are of one tensor, of which only one can hold what it was before the first step.
    ResidentTwice {
        /// The later block.
        block: BlockId,
        /// The earlier one.
        other: BlockId,
        /// What both would hold.
        tensor: Tensor,
    },
    /// A block is used or released while it is not allocated.
    NotLive {
        /// The block.
        block: BlockId,
        /// What it would hold.
        tensor: Tensor,
        /// The step.
        step: StepId,
    },
    /// Two blocks that are live at once have bytes in common.
    Overlap {
        /// The block that is allocated.
        block: BlockId,
        /// The block that is there.
        other: BlockId,
        /// The allocation.
        step: StepId,
    },
    /// A step uses bytes that another may still be at, its own tensor's or those of a block that had them before.
    Unordered {
        /// The block.
        block: BlockId,
        /// What it holds.
        tensor: Tensor,
        /// The step.
        step: StepId,
        /// The step that it should come after, and is not made to.
        after: StepId,
    },
    /// A block is written while a copy may still read it.
    ChangedWhileCopied {
        /// The block.
        block: BlockId,
        /// What it holds.
        tensor: Tensor,
        /// The step that writes.
        step: StepId,
        /// The copy.
        copy: StepId,
    },
    /// A block is read that nothing was written to.
    NeverWritten {
        /// The block.
        block: BlockId,
        /// What it should hold.
        tensor: Tensor,
        /// The step that reads.
        step: StepId,
    },
    /// A block is not released at the end of the step.
    Leak {
        /// The block.
        block: BlockId,
        /// What it holds.
        tensor: Tensor,
    },
    /// Bytes that hold what the step is for, which is read after its end, are given to another block.
    ResultLost {
        /// The block of the probabilities, or of another map that no layer reads.
        result: BlockId,
        /// What it holds.
        tensor: Tensor,
        /// The block that gets some of the bytes.
        block: BlockId,
        /// The allocation.
        step: StepId,
    },
    /// A copy between blocks of different tensors or lengths.
    HostMismatch {
        /// The block on the device.
        block: BlockId,
        /// The block on the host.
        host: HostBlockId,
        /// The copy.
        step: StepId,
    },
    /// A copy from the host of what is not there, or not any more.
    NotOnHost {
        /// The block on the host.
        host: HostBlockId,
        /// What it should hold.
        tensor: Tensor,
        /// The copy.
        step: StepId,
    },
    /// A copy uses bytes on the host that another may still be at.
    HostUnordered {
        /// The block on the host.
        host: HostBlockId,
        /// The copy.
        step: StepId,
        /// The copy that it should come after.
        after: StepId,
    },
    /// A pass lacks an operand.
    MissingRole {
        /// The layer.
        layer: LayerId,
        /// Its pass.
        pass: Pass,
        /// What is missing.
        role: Role,
        /// The step.
        step: StepId,
    },
    /// A pass has an operand that it does not take, takes otherwise, or that is another tensor.
    WrongRole {
        /// The layer.
        layer: LayerId,
        /// Its pass.
        pass: Pass,
        /// What the operand is said to be.
        role: Role,
        /// What it is.
        tensor: Tensor,
        /// The step.
        step: StepId,
    },
    /// A convolution without a configuration, with one of another mini-batch or too small a workspace; or a
    /// configuration where there is no convolution.
    WrongConfiguration {
        /// The layer.
        layer: LayerId,
        /// Its pass.
        pass: Pass,
        /// The step.
        step: StepId,
    },
    /// An operand holds something else than what the pass has to read.
    WrongContent {
        /// The layer.
        layer: LayerId,
        /// Its pass.
        pass: Pass,
        /// Which operand.
        role: Role,
        /// The step.
        step: StepId,
    },
    /// A pass runs twice in one training step.
    RunTwice {
        /// The layer.
        layer: LayerId,
        /// Its pass.
        pass: Pass,
        /// The second time.
        step: StepId,
    },
    /// A pass does not run.
    MissingPass {
        /// The layer.
        layer: LayerId,
        /// Its pass.
        pass: Pass,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}
