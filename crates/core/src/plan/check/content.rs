//! Block contents, and whether each operation of the step reads the right ones.

use crate::plan::step::{Access, OperationId, Rerun, Residence, Step};
use crate::plan::{BlockId, Compute, InstructionId};

use super::Violation;

/// The content of a block or a tensor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    /// Whether it builds on the content left by the previous step.
    kept: bool,
    /// The operation that wrote it and the operations that added to it, in any order.
    by: Vec<OperationId>,
}

impl Content {
    /// The content of a resident block at the beginning of a step.
    pub(super) fn kept() -> Content {
        Content { kept: true, by: Vec::new() }
    }

    /// Whether nothing was ever written.
    pub(super) fn is_nothing(&self) -> bool {
        !self.kept && self.by.is_empty()
    }

    fn access(&mut self, access: Access, by: OperationId) {
        match access {
            Access::Read => {}
            Access::Write => *self = Content { kept: false, by: vec![by] },
            Access::Add => {
                if let Err(place) = self.by.binary_search(&by) {
                    self.by.insert(place, by);
                }
            }
        }
    }
}

/// The contents that the step's operations must read, and which operations have run.
pub(super) struct Progress {
    /// For each operation and use: the content it reads; `None` if it overwrites.
    reads: Vec<Vec<Content>>,
    /// For each operation and use: the content it leaves.
    leaves: Vec<Vec<Content>>,
    /// For each tensor: its content at the end of the step.
    results: Vec<Option<Content>>,
    done: Vec<bool>,
}

impl Progress {
    /// Walks the operations in order.
    pub(super) fn of(step: &Step) -> Progress {
        let start = |residence| if residence == Residence::Resident { Content::kept() } else { Content::default() };
        let mut held: Vec<Content> = step.tensors.iter().map(|tensor| start(tensor.residence)).collect();
        let mut reads = Vec::with_capacity(step.operations.len());
        let mut leaves = Vec::with_capacity(step.operations.len());
        for (id, operation) in step.iter() {
            reads.push(operation.uses.iter().map(|used| held[used.tensor.0].clone()).collect());
            operation.uses.iter().for_each(|used| held[used.tensor.0].access(used.access, id));
            leaves.push(operation.uses.iter().map(|used| held[used.tensor.0].clone()).collect());
        }
        let results = step.tensors.iter().zip(held).map(|(tensor, held)| tensor.is_result.then_some(held)).collect();
        Progress { reads, leaves, results, done: vec![false; step.operations.len()] }
    }

    /// Runs an operation: checks the contents it reads and updates those it writes.
    pub(super) fn compute(
        &mut self,
        step: &Step,
        compute: &Compute,
        contents: &mut [Content],
        at: InstructionId,
    ) -> Vec<Violation> {
        let operation = compute.operation;
        let mut found = Vec::new();
        if self.done[operation.0] != compute.again {
            found.push(Violation::RunTwice { operation, at });
        }
        self.done[operation.0] = true;
        let uses = &step.operation(operation).uses;
        for (place, (used, block)) in uses.iter().zip(&compute.blocks).enumerate() {
            // What a rerun only reads holds what the first run left.
            let is_kept = compute.again && used.rerun == Rerun::ReadOnly;
            let expected = if is_kept { &self.leaves } else { &self.reads };
            let (content, expected) = (&contents[block.0], &expected[operation.0][place]);
            let reads = compute.access(used) != Access::Write;
            // Empty blocks have been rejected already.
            if reads && !content.is_nothing() && content != expected {
                found.push(Violation::WrongContent { operation, operand: place, at });
            }
        }
        for (used, BlockId(block)) in uses.iter().zip(&compute.blocks) {
            contents[*block].access(compute.access(used), operation);
        }
        found
    }

    /// Whether this is the content a tensor must have after the step.
    pub(super) fn is_result(&self, tensor: usize, content: &Content) -> bool {
        self.results.get(tensor).and_then(Option::as_ref) == Some(content)
    }

    /// The operations that did not run.
    pub(super) fn missing(&self) -> impl Iterator<Item = Violation> + '_ {
        let missing = self.done.iter().enumerate().filter(|(_, done)| !**done);
        missing.map(|(place, _)| Violation::Missing { operation: OperationId(place) })
    }
}
