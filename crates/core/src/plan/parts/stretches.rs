//! Which stretches of a step may run in parts of the mini-batch, and the bytes that they need at least.

use std::collections::HashSet;
use std::ops::Range;

use crate::plan::footprint;
use crate::plan::step::{Cost, Lifetimes, OperationId, Residence, Resource, Stage, Step, Tensor, TensorId};

/// Numbers of parts that are tried.
pub(in crate::plan) const PARTS: [usize; 4] = [2, 4, 8, 16];

/// Consecutive forward operations and the backward ones of the same groups, with their updates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::plan) struct Stretch {
    pub(in crate::plan) forward: Range<usize>,
    pub(in crate::plan) backward: Range<usize>,
    /// Parts of the mini-batch.
    pub(in crate::plan) parts: usize,
    /// Bytes that no schedule needs less than at once, but for workspaces.
    pub(in crate::plan) needs: u64,
    /// The operation that needs them.
    pub(in crate::plan) at: usize,
}

/// All stretches that begin where the operations before may not run in parts, each with every number of parts.
///
/// - Cost: O(forward operations × uses of the step).
pub(in crate::plan) fn stretches(step: &Step) -> Vec<Stretch> {
    let (forward, needs) = (step.forward(), Needs::of(step));
    let may_divide = |at: usize| {
        let operation = &step.operations[at];
        step.may_divide(OperationId(at))
            && operation.resource == Resource::Device
            && !matches!(operation.cost, Cost::Listed(_))
    };
    let mut found = Vec::new();
    let mut start = 0;
    while start < forward {
        let end = (start..forward).find(|at| !may_divide(*at)).unwrap_or(forward);
        for end in start + 2..=end {
            let Some(backward) = backward(step, &(start..end)) else { continue };
            if !backward.clone().all(|at| step.operations[at].stage == Stage::Update || may_divide(at)) {
                continue;
            }
            let stretch = Stretch { forward: start..end, backward, parts: 1, needs: 0, at: 0 };
            let inner = stretch.inner(step);
            for parts in PARTS.into_iter().filter(|parts| step.batch.is_multiple_of(*parts)) {
                let (needs, at) = needs.in_parts(&inner, parts as u64);
                found.push(Stretch { parts, needs, at, ..stretch.clone() });
            }
        }
        start = end + 1;
    }
    found
}

/// The backward operations of the groups of some forward ones; `None` if others are among them.
fn backward(step: &Step, forward: &Range<usize>) -> Option<Range<usize>> {
    let groups: HashSet<_> = step.operations[forward.clone()].iter().map(|operation| operation.group).collect();
    let is_own = |at: &usize| groups.contains(&step.operations[*at].group);
    let after = step.forward()..step.operations.len();
    let Some(first) = after.clone().find(is_own) else { return Some(after.end..after.end) };
    let last = after.rev().find(is_own).unwrap_or(first);
    (first..last + 1).all(|at| is_own(&at)).then_some(first..last + 1)
}

/// What every schedule needs at each operation.
struct Needs {
    /// For each tensor: its bytes, and when it is on the device without being used, if it never leaves.
    tensors: Vec<(u64, Range<usize>)>,
    /// For each operation: the tensors that it uses and that are not resident.
    used: Vec<Vec<usize>>,
    /// For each operation: bytes of what is there without being used.
    idle: Vec<u64>,
}

impl Needs {
    fn of(step: &Step) -> Needs {
        let lifetimes = Lifetimes::of(step);
        let is_resident = |id: usize| step.tensors[id].residence == Residence::Resident;
        let range = |(id, of): (usize, &Tensor)| {
            let lifetime = lifetimes.get(TensorId(id))?;
            let waits = of.residence == Residence::Temporary && lifetime.last_forward != Some(lifetime.last);
            Some(match is_resident(id) {
                true => 0..step.operations.len(),
                false if of.is_result || waits => lifetime.first..lifetime.last + 1,
                false => 0..0,
            })
        };
        let tensors = step.tensors.iter().enumerate();
        let tensors = tensors.map(|of| (of.1.bytes.0, range(of).unwrap_or_default())).collect();
        let used = step.operations.iter().map(|operation| {
            let mut used: Vec<usize> = operation.uses.iter().map(|used| used.tensor.0).collect();
            used.retain(|id| !is_resident(*id));
            used.sort_unstable();
            used.dedup();
            used
        });
        let mut needs = Needs { tensors, used: used.collect(), idle: vec![0; step.operations.len()] };
        for id in 0..needs.tensors.len() {
            for at in needs.idle_at(id).collect::<Vec<usize>>() {
                needs.idle[at] += footprint(needs.tensors[id].0);
            }
        }
        needs
    }

    /// The operations at which a tensor is there without being used.
    fn idle_at(&self, id: usize) -> impl Iterator<Item = usize> + '_ {
        self.tensors[id].1.clone().filter(move |at| !self.used[*at].contains(&id))
    }

    /// The most bytes that an operation of any schedule with these tensors in parts needs, but for its workspace, and that
    /// operation.
    fn in_parts(&self, inner: &[bool], parts: u64) -> (u64, usize) {
        let bytes = |id: &usize| footprint(self.tensors[*id].0 / if inner[*id] { parts } else { 1 });
        let used = self.used.iter().map(|used| used.iter().map(bytes).sum::<u64>());
        let mut needs: Vec<u64> = used.zip(&self.idle).map(|(used, idle)| used + idle).collect();
        // Parts that have not run, or are over, need nothing.
        for id in (0..inner.len()).filter(|id| inner[*id]) {
            self.idle_at(id).for_each(|at| needs[at] -= footprint(self.tensors[id].0));
        }
        let most = needs.into_iter().zip(0..).max_by_key(|(needs, at)| (*needs, usize::MAX - at));
        most.unwrap_or_default()
    }
}
