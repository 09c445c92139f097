//! A stretch of a step in parts of the mini-batch: the maps inside it never exist whole.
//!
//! ```text
//! step      f1  f2  f3  loss  b3  b2  b1  update
//! in parts  f1' f2' f1" f2"  f3  loss  b3  b2" b1" b2' b1'  update         the stretch f1 f2 in two parts
//! ```
//!
//! The parts are operations of another step, in which what only the stretch uses is a tensor for each part and all else
//! stays whole. Any policy plans that step as it is; so each part's maps stay, move or are computed again on their own.
//! [`StepInParts::schedule`] turns its schedule into one of the step itself, in which a computation or a block covers some
//! of the samples. Where nothing comes between forward and backward, each part goes both ways before the next: gradient
//! accumulation.

mod stretches;

use std::collections::HashMap;
use std::ops::Range;

pub(super) use stretches::{Stretch, stretches};

use super::step::{Access, Again, Cost, Front, Operation, OperationId, Residence, Stage, Step, Tensor, TensorId, Use};
use super::{Action, Block, Compute, Holding, HostBlock, Instruction, Schedule};
use crate::{Bytes, Nanos};

/// A run of an operation of the step: of the whole mini-batch, or of a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    operation: usize,
    part: Option<usize>,
    /// Whether it is the first part that runs.
    is_first: bool,
}

/// The numbers of parts that are tried for a mini-batch.
fn numbers(batch: usize) -> impl Iterator<Item = usize> {
    [2, 4, 8, 16].into_iter().filter(move |parts| *parts <= batch)
}

/// The samples of one of so many parts of a mini-batch. No two parts differ by more than one sample.
fn samples(batch: usize, parts: usize, part: usize) -> Range<usize> {
    part * batch / parts..(part + 1) * batch / parts
}

/// The samples that the parts of a mini-batch have, falling.
pub(super) fn sizes(batch: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = numbers(batch).flat_map(|parts| [batch.div_ceil(parts), batch / parts]).collect();
    sizes.sort_unstable_by_key(|size| std::cmp::Reverse(*size));
    sizes.dedup();
    sizes
}

/// A step in which a stretch runs in parts.
#[derive(Clone, Debug)]
pub(super) struct StepInParts {
    /// The step whose operations and tensors are the parts.
    pub(super) step: Step,
    /// For each of its operations: what it is in the step itself.
    runs: Vec<Run>,
    /// For each tensor: what it is in the step itself, and of which samples.
    tensors: Vec<(TensorId, Range<usize>)>,
    /// Parts of the mini-batch.
    parts: usize,
}

impl StepInParts {
    /// The step with a stretch in parts, each of which takes `launch` and its share of the rest of an operation's time;
    /// `None` if a convolution has no configuration for so few samples.
    pub(super) fn of(step: &Step, stretch: &Stretch, launch: Nanos) -> Option<StepInParts> {
        let (runs, parts) = (runs(step, stretch), stretch.parts);
        let mut in_parts = StepInParts { step: step.clone(), runs, tensors: Vec::new(), parts };
        in_parts.step.tensors.clear();
        in_parts.step.operations.clear();
        let inner = stretch.inner(step);
        let mut known: HashMap<(TensorId, Option<usize>), TensorId> = HashMap::new();
        for run in in_parts.runs.clone() {
            let of = &step.operations[run.operation];
            let mut uses = Vec::with_capacity(of.uses.len());
            for (place, used) in of.uses.iter().enumerate() {
                let part = run.part.filter(|_| inner[used.tensor.0]);
                let tensor = *known.entry((used.tensor, part)).or_insert_with(|| in_parts.add(step, used.tensor, part));
                let is_new = run.is_first && stretch.begins_with(step, run.operation, place);
                let access = match used.access {
                    // It leaves what other parts have written.
                    Access::Write if run.part.is_some() && part.is_none() && !is_new => Access::Add,
                    access => access,
                };
                uses.push(Use { tensor, access, ..*used });
            }
            in_parts.step.operations.push(Operation { uses, ..in_parts.operation(step, stretch, run, launch)? });
        }
        Some(in_parts)
    }

    /// Adds a tensor, or a part of one.
    fn add(&mut self, step: &Step, id: TensorId, part: Option<usize>) -> TensorId {
        let of = step.tensor(id);
        let samples = part.map_or(0..step.batch, |part| self.range(part));
        let bytes = of.sample_bytes.filter(|_| part.is_some()).map(|each| Bytes(each.0 * samples.len() as u64));
        let name = match part {
            None => of.name.clone(),
            Some(_) => format!("{} of samples {}..{}", of.name, samples.start, samples.end),
        };
        self.step.tensors.push(Tensor { name, bytes: bytes.unwrap_or(of.bytes), alias: None, ..of.clone() });
        self.tensors.push((id, samples));
        TensorId(self.tensors.len() - 1)
    }

    fn range(&self, part: usize) -> Range<usize> {
        samples(self.step.batch, self.parts, part)
    }

    /// A run as an operation, but for its uses.
    fn operation(&self, step: &Step, stretch: &Stretch, run: Run, launch: Nanos) -> Option<Operation> {
        let of = &step.operations[run.operation];
        let stage = match of.stage {
            // A step goes forward first. Where each part goes both ways, all comes before the updates.
            Stage::Backward if stretch.goes_both_ways => Stage::Forward,
            stage => stage,
        };
        let Some(part) = run.part else { return Some(Operation { stage, ..of.clone() }) };
        let samples = self.range(part).len();
        let time = |time| step.part_of(time, samples, launch);
        let cost = match &of.cost {
            Cost::Fixed(whole) => Cost::Fixed(time(*whole)),
            Cost::Choice(front) => {
                let besides = time(front.besides);
                Cost::Choice(Box::new(Front { besides, ..front.of_samples(samples)? }))
            }
            Cost::Listed(_) => return None,
        };
        let again = match of.again {
            Again::Taking(whole) => Again::Taking(time(whole)),
            again => again,
        };
        Some(Operation { stage, cost, again, ..of.clone() })
    }

    /// A schedule of the step in parts, as a schedule of the step itself.
    pub(super) fn schedule(&self, step: &Step, schedule: Schedule) -> Schedule {
        let (tensors, runs) = (&self.tensors, &self.runs);
        let block = |block: Block| match block.holds {
            Holding::Tensor(TensorId(id)) => {
                Block { holds: Holding::Tensor(tensors[id].0), samples: tensors[id].1.clone(), ..block }
            }
            Holding::Workspace(_) => block,
        };
        let compute = |compute: Compute| {
            let Run { operation, part, is_first } = runs[compute.operation.0];
            let is_sum = |used: &Use| used.access == Access::Write && step.tensor(used.tensor).sample_bytes.is_none();
            Compute {
                operation: OperationId(operation),
                samples: part.map_or(0..step.batch, |part| self.range(part)),
                adds: part.is_some() && !is_first && step.operations[operation].uses.iter().any(is_sum),
                ..compute
            }
        };
        let instruction = |Instruction { stream, action }| match action {
            Action::Compute(part) => Instruction { stream, action: Action::Compute(Box::new(compute(*part))) },
            action => Instruction { stream, action },
        };
        let host_block = |block: HostBlock| HostBlock { tensor: tensors[block.tensor.0].0, ..block };
        Schedule {
            blocks: schedule.blocks.into_iter().map(block).collect(),
            host_blocks: schedule.host_blocks.into_iter().map(host_block).collect(),
            instructions: schedule.instructions.into_iter().map(instruction).collect(),
            ..schedule
        }
    }
}

/// The operations in order, with the parts of a stretch one after another.
fn runs(step: &Step, stretch: &Stretch) -> Vec<Run> {
    let Stretch { forward, backward, parts, .. } = stretch;
    let is_update = |operation: &usize| step.operations[*operation].stage == Stage::Update;
    let whole = |operation: usize| Run { operation, part: None, is_first: false };
    let in_part = |part: usize, first: usize, range: &Range<usize>| -> Vec<Run> {
        let operations = range.clone().filter(|operation| !is_update(operation));
        operations.map(|operation| Run { operation, part: Some(part), is_first: part == first }).collect()
    };
    let mut runs: Vec<Run> = (0..forward.start).map(whole).collect();
    if stretch.goes_both_ways {
        runs.extend((0..*parts).flat_map(|part| [in_part(part, 0, forward), in_part(part, 0, backward)].concat()));
    } else {
        runs.extend((0..*parts).flat_map(|part| in_part(part, 0, forward)));
        runs.extend((forward.end..backward.start).map(whole));
        // What the last part has left is still there.
        runs.extend((0..*parts).rev().flat_map(|part| in_part(part, parts - 1, backward)));
    }
    runs.extend(backward.clone().filter(is_update).map(whole));
    runs.extend((backward.end..step.operations.len()).map(whole));
    runs
}

impl Stretch {
    /// Operations of the step with the stretch in parts.
    pub(super) fn operations(&self, step: &Step) -> usize {
        step.operations.len() + (self.parts - 1) * (self.forward.len() + self.backward.len())
    }

    /// For each tensor: whether each part has its own.
    fn inner(&self, step: &Step) -> Vec<bool> {
        let may_divide = |tensor: &Tensor| {
            let whole = tensor.sample_bytes.map(|each| each.0.saturating_mul(step.batch as u64));
            tensor.residence != Residence::Resident && !tensor.is_result && whole == Some(tensor.bytes.0)
        };
        let mut inner: Vec<bool> = step.tensors.iter().map(may_divide).collect();
        for (_, operation) in step.iter().filter(|(id, _)| !self.has(id.0)) {
            operation.uses.iter().for_each(|used| inner[used.tensor.0] = false);
        }
        inner
    }

    fn has(&self, operation: usize) -> bool {
        self.forward.contains(&operation) || self.backward.contains(&operation)
    }

    /// Whether nothing in the stretch uses a tensor, in the same direction, before this use.
    fn begins_with(&self, step: &Step, operation: usize, place: usize) -> bool {
        let range = if self.forward.contains(&operation) { &self.forward } else { &self.backward };
        let own = &step.operations[operation].uses;
        let tensor = own[place].tensor;
        let mut before = step.operations[range.start..operation].iter().flat_map(|operation| &operation.uses);
        !before.any(|used| used.tensor == tensor)
    }
}
