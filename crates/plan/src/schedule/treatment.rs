//! Describes a schedule as one decision per tensor between its uses, in terms of operations, so that other programs can carry it out.
//!
//! ```text
//! operations   0   1   2   3   4   5           offload after 0, released after 1, prefetch before 4
//! tensor       =   r               r
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::step::{Access, Lifetimes, Residence, Step, TensorId};
use crate::{Action, BlockId, Holding, Schedule};

/// The treatment of a tensor while it is idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Treatment {
    /// It stays on the device.
    Keep,
    /// It is copied to the host and back.
    Offload,
    /// It is released and recomputed.
    Recompute,
}

/// Operations that rerun, in order, just before another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rebuilding {
    /// The operation before which they run.
    pub before: usize,
    /// The operations.
    pub operations: Vec<usize>,
}

/// The decision for one tensor; operations by their index in the step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorDecision {
    /// The tensor.
    pub tensor: usize,
    /// Its treatment while it is idle.
    pub decision: Treatment,
    /// The operation after which the copy to the host starts.
    #[serde(default)]
    pub offload_after: Option<usize>,
    /// The operation after which its device bytes are free for the first time.
    #[serde(default)]
    pub release_after: Option<usize>,
    /// The operation before which the copy back is issued.
    #[serde(default)]
    pub prefetch_before: Option<usize>,
    /// Its reruns, including reruns of tensors that are recomputed only for it.
    #[serde(default)]
    pub rebuilt: Vec<Rebuilding>,
}

/// The decisions for all tensors that live from the forward to the backward pass, and for other tensors that do not simply stay.
pub fn decisions(step: &Step, schedule: &Schedule) -> Vec<TensorDecision> {
    let lifetimes = Lifetimes::of(step);
    let mut all: BTreeMap<usize, TensorDecision> = BTreeMap::new();
    for (tensor, of) in step.tensors.iter().enumerate() {
        let lives = lifetimes.get(TensorId(tensor)).filter(|_| of.residence == Residence::Movable);
        if lives.is_some_and(|lifetime| lifetime.last_forward.is_some() && lifetime.first_backward.is_some()) {
            all.insert(tensor, TensorDecision::kept(tensor));
        }
    }
    let is_movable = |tensor: usize| step.tensors[tensor].residence == Residence::Movable;
    // Temporary tensors are recomputed on the way to movable ones.
    let leaving = |block: &BlockId| match schedule.blocks[block.0].holds {
        Holding::Tensor(tensor) if step.tensor(tensor).residence != Residence::Resident => Some(tensor.0),
        _ => None,
    };
    let movable = |block: &BlockId| leaving(block).filter(|tensor| is_movable(*tensor));
    // The last operation that ran for the first time, and the reruns since.
    let mut last: Option<usize> = None;
    let mut reruns: Vec<usize> = Vec::new();
    let mut written: Vec<usize> = Vec::new();
    let mut released: Vec<usize> = Vec::new();
    for instruction in &schedule.instructions {
        match &instruction.action {
            Action::Compute(compute) if compute.again => {
                let operation = step.operation(compute.operation);
                reruns.push(compute.operation.0);
                let writes = operation.uses.iter().filter(|used| used.access_in_rerun() != Access::Read);
                for tensor in writes.map(|used| used.tensor.0) {
                    if step.tensors[tensor].residence != Residence::Resident && !written.contains(&tensor) {
                        written.push(tensor);
                    }
                }
            }
            Action::Compute(compute) => {
                let before = compute.operation.0;
                let stays = |tensor: &usize| !released.contains(tensor);
                for &tensor in written.iter().filter(|tensor| stays(tensor) && is_movable(**tensor)) {
                    let helpers: Vec<usize> = written.iter().copied().filter(|other| !stays(other)).collect();
                    let operations = needed(step, tensor, &helpers, &reruns);
                    let decision = all.entry(tensor).or_insert_with(|| TensorDecision::kept(tensor));
                    decision.decision = Treatment::Recompute;
                    decision.rebuilt.push(Rebuilding { before, operations });
                }
                (reruns, written, released) = Default::default();
                last = Some(before);
            }
            Action::Offload(block, _) => {
                if let Some(tensor) = movable(block) {
                    let decision = all.entry(tensor).or_insert_with(|| TensorDecision::kept(tensor));
                    decision.offload_after = decision.offload_after.or(last);
                    if decision.decision == Treatment::Keep {
                        decision.decision = Treatment::Offload;
                    }
                }
            }
            Action::Prefetch(_, block) => {
                if let Some(decision) = movable(block).and_then(|tensor| all.get_mut(&tensor)) {
                    decision.prefetch_before = decision.prefetch_before.or(Some(last.map_or(0, |last| last + 1)));
                }
            }
            Action::Release(block) => {
                if let Some(tensor) = leaving(block) {
                    released.push(tensor);
                    if let Some(decision) = all.get_mut(&tensor) {
                        decision.release_after = decision.release_after.or(last);
                    }
                }
            }
            Action::Allocate(_) | Action::Wait(_) => {}
        }
    }
    all.into_values().collect()
}

impl TensorDecision {
    fn kept(tensor: usize) -> TensorDecision {
        TensorDecision {
            tensor,
            decision: Treatment::Keep,
            offload_after: None,
            release_after: None,
            prefetch_before: None,
            rebuilt: Vec::new(),
        }
    }
}

/// The `reruns` that compute a tensor or one of its helpers.
fn needed(step: &Step, tensor: usize, helpers: &[usize], reruns: &[usize]) -> Vec<usize> {
    let mut wanted = vec![tensor];
    let mut chosen = vec![false; reruns.len()];
    for (place, run) in reruns.iter().enumerate().rev() {
        let uses = &step.operations[*run].uses;
        let computes =
            uses.iter().any(|used| used.access_in_rerun() != Access::Read && wanted.contains(&used.tensor.0));
        if !computes {
            continue;
        }
        chosen[place] = true;
        for used in uses.iter().filter(|used| used.access_in_rerun() == Access::Read) {
            if helpers.contains(&used.tensor.0) && !wanted.contains(&used.tensor.0) {
                wanted.push(used.tensor.0);
            }
        }
    }
    reruns.iter().zip(chosen).filter(|(_, chosen)| *chosen).map(|(run, _)| *run).collect()
}
