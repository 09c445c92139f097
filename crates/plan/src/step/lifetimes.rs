//! The uses of each tensor of a step, as operation indices.

use std::ops::Range;

use crate::step::{Access, OperationId, Stage, Step, TensorId};

/// When a tensor is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lifetime {
    pub(crate) first: usize,
    /// The forward operation that writes it for the last time.
    pub(crate) last_written: Option<usize>,
    pub(crate) last_forward: Option<usize>,
    pub(crate) first_backward: Option<usize>,
    /// The last use; the end of the step for results, which are read after it.
    pub(crate) last: usize,
}

/// The lifetimes of all tensors of a step.
#[derive(Clone, Debug)]
pub(crate) struct Lifetimes {
    by_tensor: Vec<Option<Lifetime>>,
}

impl Lifetimes {
    pub(crate) fn of(step: &Step) -> Lifetimes {
        let mut by_tensor: Vec<Option<Lifetime>> = vec![None; step.tensors.len()];
        for (at, operation) in step.operations.iter().enumerate() {
            for used in &operation.uses {
                let nothing =
                    Lifetime { first: at, last_written: None, last_forward: None, first_backward: None, last: at };
                let known = by_tensor[used.tensor.0].get_or_insert(nothing);
                known.last = at;
                if operation.stage == Stage::Forward {
                    known.last_forward = Some(at);
                    known.last_written = if used.access == Access::Read { known.last_written } else { Some(at) };
                } else {
                    known.first_backward.get_or_insert(at);
                }
            }
        }
        let results = step.tensors.iter().zip(&mut by_tensor).filter(|(tensor, _)| tensor.is_result);
        for lifetime in results.filter_map(|(_, lifetime)| lifetime.as_mut()) {
            lifetime.last = step.operations.len().saturating_sub(1);
        }
        Lifetimes { by_tensor }
    }

    /// The lifetime of a tensor; `None` if no operation uses it.
    pub(crate) fn get(&self, tensor: TensorId) -> Option<Lifetime> {
        self.by_tensor.get(tensor.0).copied().flatten()
    }
}

impl Step {
    /// The range of consecutive operations of one group that starts at `at`.
    pub(crate) fn run_of_group(&self, at: usize) -> Range<usize> {
        let group = self.operations[at].group;
        let same = self.operations[at..].iter().take_while(|operation| operation.group == group).count();
        at..at + same
    }

    /// All operations with their indices.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (OperationId, &crate::step::Operation)> {
        self.operations.iter().enumerate().map(|(place, operation)| (OperationId(place), operation))
    }
}
