//! The calls of a rerun: which tensors each call copies first, changes in place, allocates and releases.
//!
//! Both the run and the prediction of its memory use these calls.

use std::collections::BTreeSet;

use crate::eager::step::{EagerStep, Impossible, NONE};

/// The longest rerun of one tensor, in operations.
const MAX_RERUN_OPERATIONS: usize = 40;

/// One operation of a rerun.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// The operation, by number.
    pub operation: usize,
    /// Tensors to copy first, because the operation changes them and their old content is still needed.
    pub copies: Vec<usize>,
    /// Tensors whose bytes it allocates.
    pub makes: Vec<usize>,
    /// Pairs (old, new): the operation changes `old` in place, which is then `new`.
    pub renames: Vec<(usize, usize)>,
    /// Tensors that nothing in the rerun needs any more.
    pub drops: Vec<usize>,
}

/// See [`EagerStep::leaves`].
pub(super) fn leaves(step: &EagerStep, indices: &[usize]) -> Vec<usize> {
    let made = made_by(step, indices);
    let mut seen = BTreeSet::new();
    let read = indices.iter().flat_map(|&index| &step.operations[index].reads).copied();
    read.filter(|read| made.binary_search(read).is_err() && seen.insert(*read)).collect()
}

/// The tensors that a rerun of these operations computes.
pub(super) fn made_by(step: &EagerStep, indices: &[usize]) -> Vec<usize> {
    let mut found: Vec<usize> = indices.iter().flat_map(|&index| &step.operations[index].writes).copied().collect();
    found.sort_unstable();
    found.dedup();
    found
}

impl EagerStep {
    /// The operations that recompute a tensor from saved or resident tensors, in order.
    ///
    /// # Errors
    /// If one of them may not run again, or they are too many.
    pub fn closure(&self, tensor: usize) -> Result<&[usize], Impossible> {
        let Some(known) = self.closures.get(tensor) else {
            return Err(Impossible(format!("there is no tensor {tensor}")));
        };
        known.get_or_init(|| closure(self, tensor)).as_deref().map_err(Clone::clone)
    }

    /// The tensors that a rerun of these operations reads but does not compute, in the order of their first use.
    ///
    /// # Errors
    /// If an index is out of range.
    pub fn leaves(&self, indices: &[usize]) -> Result<Vec<usize>, Impossible> {
        match indices.iter().find(|&&index| index >= self.operations.len()) {
            Some(index) => Err(Impossible(format!("there is no operation {index}"))),
            None => Ok(leaves(self, indices)),
        }
    }

    /// The calls of a rerun of these operations, after which the tensors in `held` stay.
    ///
    /// # Errors
    /// If an operation may not run again, or changes a tensor that the rerun did not compute.
    pub fn calls(&self, indices: &[usize], held: &[usize]) -> Result<Vec<Call>, Impossible> {
        // The last call that uses each tensor.
        let mut last_use: Vec<(usize, usize)> = Vec::with_capacity(4 * indices.len());
        for (place, &index) in indices.iter().enumerate() {
            let Some(operation) = self.operations.get(index) else {
                return Err(Impossible(format!("there is no operation {index}")));
            };
            if !operation.may_rerun {
                return Err(Impossible(format!("operation {index} ({}) may not run again", operation.name)));
            }
            for &tensor in operation.reads.iter().chain(&operation.adds).chain(&operation.writes) {
                match last_use.iter_mut().find(|(known, _)| *known == tensor) {
                    Some((_, last)) => *last = place,
                    None => last_use.push((tensor, place)),
                }
            }
        }
        let is_last = |tensor: usize, place: usize| last_use.contains(&(tensor, place));
        let mut made: Vec<usize> = Vec::new();
        let mut found = Vec::with_capacity(indices.len());
        for (place, &index) in indices.iter().enumerate() {
            let operation = &self.operations[index];
            let mut call = Call { operation: index, ..Call::default() };
            for tensor in &operation.adds {
                if !self.tensors[*tensor].resident && !made.contains(tensor) {
                    let name = &operation.name;
                    return Err(Impossible(format!(
                        "operation {index} ({name}) changes tensor {tensor}, which no rerun made"
                    )));
                }
            }
            for &tensor in &operation.writes {
                let before = self.tensors[tensor].before;
                if before != NONE && operation.reads.contains(&before) {
                    if made.contains(&before) && is_last(before, place) && !held.contains(&before) {
                        made.retain(|&one| one != before);
                    } else {
                        call.copies.push(before);
                    }
                    call.renames.push((before, tensor));
                } else {
                    call.makes.push(tensor);
                }
                if !made.contains(&tensor) {
                    made.push(tensor);
                }
            }
            call.drops.extend(made.iter().filter(|&&tensor| is_last(tensor, place) && !held.contains(&tensor)));
            call.drops.sort_unstable();
            made.retain(|tensor| !call.drops.contains(tensor));
            found.push(call);
        }
        Ok(found)
    }
}

/// See [`EagerStep::closure`].
fn closure(step: &EagerStep, tensor: usize) -> Result<Vec<usize>, Impossible> {
    let mut needed: BTreeSet<usize> = BTreeSet::new();
    let mut done: BTreeSet<usize> = BTreeSet::new();
    let mut queue = vec![tensor];
    while let Some(wanted) = queue.pop() {
        if !done.insert(wanted) {
            continue;
        }
        if step.tensors[wanted].writers.is_empty() {
            return Err(Impossible(format!("nothing makes tensor {wanted}")));
        }
        for &index in &step.tensors[wanted].writers {
            if needed.contains(&index) {
                continue;
            }
            let operation = &step.operations[index];
            if !operation.may_rerun {
                return Err(Impossible(format!("operation {index} may not run again")));
            }
            needed.insert(index);
            if needed.len() > MAX_RERUN_OPERATIONS {
                return Err(Impossible("too long".to_owned()));
            }
            for &read in operation.reads.iter().chain(&operation.adds) {
                // A saved tensor is on the device, or a separate rerun recomputes it.
                let there = &step.tensors[read];
                if !there.resident && (read == tensor || !there.saved) {
                    queue.push(read);
                }
            }
        }
    }
    Ok(needed.into_iter().collect())
}
