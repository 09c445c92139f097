//! The stretches of a step that may run in parts of the mini-batch, and the least bytes that they need.

use std::ops::Range;

use crate::footprint;
use crate::step::{Cost, Lifetimes, OperationId, Residence, Resource, Stage, Step, Tensor, TensorId, part_numbers};

/// Consecutive forward operations and the backward ones of the same groups, with their updates. At most one of each sums over
/// all samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) forward: Range<usize>,
    pub(crate) backward: Range<usize>,
    /// Whether each part goes forward and backward before the next: nothing comes between its forward and its backward
    /// operations.
    pub(crate) goes_both_ways: bool,
    /// The forward and the backward operation that sum over all samples, if any.
    pub(crate) sums: [Option<usize>; 2],
    /// Parts of the mini-batch.
    pub(crate) parts: usize,
    /// The least bytes that any schedule needs at once, without workspaces.
    pub(crate) needs: u64,
    /// The operation that needs them.
    pub(crate) at: usize,
}

/// The stretches that may run in parts, for every number of parts. From each beginning, only the shortest and the longest of all stretches that need
/// the same bytes. A beginning is skipped if its longest stretch ends no later than an earlier one's, because a longer stretch never needs more.
///
/// - Cost: O(forward operations² + bytes that differ × log(forward operations) × uses of the step), for each number.
pub(crate) fn stretches(step: &Step) -> Vec<Stretch> {
    let (forward, needs) = (step.forward(), Needs::of(step));
    let mut backward: Vec<Vec<usize>> = vec![Vec::new(); step.groups.len()];
    (forward..step.operations.len()).for_each(|at| backward[step.operations[at].group.0].push(at));
    let mut found = Vec::new();
    for parts in part_numbers(step.batch) {
        let divides: Vec<Divides> = step.iter().map(|(id, _)| divides(step, id, parts)).collect();
        let sums = |range: &Range<usize>| range.clone().find(|at| divides[*at] == Divides::AfterSums);
        let (mut end, mut summed, mut reached) = (0, None, 0);
        for start in 0..forward {
            if end < start || summed.is_some_and(|at| at < start) {
                (end, summed) = (end.max(start), sums(&(start..end)));
            }
            while end < forward && divides[end] != Divides::Never {
                match divides[end] {
                    Divides::AfterSums if summed.is_some() => break,
                    Divides::AfterSums => summed = Some(end),
                    Divides::Alone | Divides::Never => {}
                }
                end += 1;
            }
            if start == end || reached == end {
                continue;
            }
            let ranges = ranges(step, start..end, &backward, &divides);
            let in_parts = |place: usize| -> Stretch {
                let (own, backward) = ranges[place].clone();
                let goes_both_ways = own.end == forward && backward.start == forward;
                let sums = [sums(&own), sums(&backward)];
                let stretch = Stretch { forward: own, backward, goes_both_ways, sums, parts, needs: 0, at: 0 };
                let (needs, at) = needs.in_parts(&stretch.inner(step), step.batch.div_ceil(parts) as u64);
                Stretch { needs, at, ..stretch }
            };
            let Some(last) = ranges.len().checked_sub(1).filter(|last| ranges[*last].0.end > reached) else { continue };
            reached = ranges[last].0.end;
            let (shortest, longest) = (in_parts(0), in_parts(last));
            found.push(shortest.clone());
            add_lower(&in_parts, (0, &shortest), (last, &longest), &mut found);
            found.extend((last > 0).then_some(longest));
        }
    }
    found
}

/// How an operation runs in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Divides {
    /// Not at all.
    Never,
    /// Each part separately.
    Alone,
    /// After the sums over all samples.
    AfterSums,
}

/// How an operation runs in this number of parts. A convolution needs configurations for the sizes of the parts.
fn divides(step: &Step, id: OperationId, parts: usize) -> Divides {
    let operation = step.operation(id);
    let has_configurations = match &operation.cost {
        Cost::Choice(front) => front.adds_up_to(step.batch / parts) && front.adds_up_to(step.batch.div_ceil(parts)),
        Cost::Fixed(_) => true,
        Cost::Listed(_) => false,
    };
    match operation.resource == Resource::Device && has_configurations {
        true if step.may_divide(id) => Divides::Alone,
        true if step.may_divide_after_sums(id) => Divides::AfterSums,
        _ => Divides::Never,
    }
}

/// The forward and backward operations of the stretches that begin with these operations, by rising length. Each range is contiguous and may run in
/// parts. `backward` has the backward operations of each group.
fn ranges(
    step: &Step,
    forward: Range<usize>,
    backward: &[Vec<usize>],
    divides: &[Divides],
) -> Vec<(Range<usize>, Range<usize>)> {
    let (mut is_known, mut own, mut may_run) = (vec![false; step.groups.len()], 0, true);
    let (mut first, mut last, mut sums) = (step.operations.len(), 0, 0);
    let mut found = Vec::new();
    for at in forward.clone() {
        let group = step.operations[at].group.0;
        if !std::mem::replace(&mut is_known[group], true) {
            for &of in &backward[group] {
                sums += usize::from(divides[of] == Divides::AfterSums);
                may_run &= step.operations[of].stage == Stage::Update || divides[of] != Divides::Never && sums < 2;
                (first, last) = (first.min(of), last.max(of + 1));
            }
            own += backward[group].len();
        }
        let follow = own == last.saturating_sub(first);
        if at > forward.start && may_run && follow {
            found.push((forward.start..at + 1, first..last.max(first)));
        }
    }
    found
}

/// Adds the shortest stretches that need fewer bytes than one, between it and a longer one. A longer stretch never needs more.
fn add_lower(
    in_parts: &impl Fn(usize) -> Stretch,
    one: (usize, &Stretch),
    other: (usize, &Stretch),
    found: &mut Vec<Stretch>,
) {
    if one.1.needs == other.1.needs || one.0 + 1 >= other.0 {
        return;
    }
    let place = one.0.midpoint(other.0);
    let middle = in_parts(place);
    add_lower(in_parts, one, (place, &middle), found);
    found.push(middle.clone());
    add_lower(in_parts, (place, &middle), other, found);
}

/// The bytes that every schedule needs at each operation.
struct Needs {
    batch: u64,
    /// For each tensor that never leaves: its bytes, and the operations at which it is on the device without being used.
    tensors: Vec<(u64, Range<usize>)>,
    /// For each operation: the tensors that it uses and that are not resident.
    used: Vec<Vec<usize>>,
    /// For each operation: bytes of tensors that are on the device without being used.
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
        let idle = vec![0; step.operations.len()];
        let mut needs = Needs { batch: step.batch as u64, tensors, used: used.collect(), idle };
        for id in 0..needs.tensors.len() {
            for at in needs.idle_at(id).collect::<Vec<usize>>() {
                needs.idle[at] += footprint(needs.tensors[id].0);
            }
        }
        needs
    }

    /// The operations at which a tensor is on the device without being used.
    fn idle_at(&self, id: usize) -> impl Iterator<Item = usize> + '_ {
        self.tensors[id].1.clone().filter(move |at| !self.used[*at].contains(&id))
    }

    /// The most bytes that an operation needs in any schedule with these tensors in parts of up to `samples` samples, without its workspace, and that
    /// operation.
    fn in_parts(&self, inner: &[bool], samples: u64) -> (u64, usize) {
        let bytes = |id: &usize| {
            let whole = self.tensors[*id].0;
            footprint(if inner[*id] { whole / self.batch * samples } else { whole })
        };
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
