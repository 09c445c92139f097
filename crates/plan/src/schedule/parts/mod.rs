//! A stretch of a step in parts of the mini-batch: the maps inside it never exist whole.
//!
//! ```text
//! step      f1  f2  f3  loss  b3  b2  b1  update
//! in parts  f1' f2' f1" f2"  f3  loss  b3  b2" b1" b2' b1'  update         the stretch f1 f2 in two parts
//! ```
//!
//! The parts are operations of another step. In it, a tensor used only by the stretch becomes one tensor for each part, and other tensors stay whole.
//! Any policy plans that step unchanged, so each part's maps stay, move or are recomputed separately. [`StepInParts::schedule`] converts its schedule
//! to one of the original step, in which a computation or a block covers some of the samples. If nothing comes between forward and backward, each
//! part goes both ways before the next: gradient accumulation.
//!
//! A stretch may have one operation that sums over all samples, such as batch normalization, in each direction. All parts of the operations up to the
//! sums run before all parts of the operations after them, which run in reverse order:
//!
//! ```text
//! in parts  f1' sums' f1" sums" | apply" f3" apply' f3' | ..        the stretch f1 f2 f3 in two parts, where f2 sums
//! ```
//!
//! The tensors that each part leaves for the second half stay, move or are recomputed like others, even gradients of maps.
//!
//! `stretches` lists the stretches that may run in parts.

mod stretches;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ops::Range;

pub(crate) use stretches::{Stretch, stretches};

use tightfit_units::{Bytes, Nanos};

use crate::step::{
    Access, Again, Cost, Front, Operation, OperationId, Phase, Residence, Stage, Step, Tensor, TensorId, Use,
};
use crate::{Action, Block, Compute, Holding, HostBlock, Instruction, Kind, Schedule};

/// A run of an operation of the step: of the whole mini-batch, or of a part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    operation: usize,
    phase: Phase,
    part: Option<usize>,
    /// Whether it is the first part that runs.
    is_first: bool,
}

impl Run {
    /// Whether other parts have run.
    fn adds(&self) -> bool {
        self.part.is_some() && !self.is_first
    }
}

/// The samples of one of `parts` parts of a mini-batch. Sizes of parts differ by at most one sample.
fn samples(batch: usize, parts: usize, part: usize) -> Range<usize> {
    part * batch / parts..(part + 1) * batch / parts
}

/// A step in which a stretch runs in parts.
#[derive(Clone, Debug)]
pub(crate) struct StepInParts {
    /// The step whose operations and tensors are the parts.
    pub(crate) step: Step,
    /// For each of its operations: the operation of the original step.
    runs: Vec<Run>,
    /// For each tensor: the tensor of the original step, and its samples.
    tensors: Vec<(TensorId, Range<usize>)>,
    /// Parts of the mini-batch.
    parts: usize,
}

impl StepInParts {
    /// The step with a stretch in parts. Each part takes `launch` and its share of the rest of an operation's time. `None` if a convolution has no
    /// configuration for such a small part.
    pub(crate) fn of(step: &Step, stretch: &Stretch, launch: Nanos) -> Option<StepInParts> {
        let (runs, parts) = (runs(step, stretch), stretch.parts);
        let mut in_parts = StepInParts { step: step.clone(), runs, tensors: Vec::new(), parts };
        in_parts.step.tensors.clear();
        in_parts.step.operations.clear();
        let inner = stretch.inner(step);
        let waits = stretch.waits(step);
        let mut known: HashMap<(TensorId, Option<usize>), TensorId> = HashMap::new();
        for run in in_parts.runs.clone() {
            let of = &step.operations[run.operation];
            let mut uses = Vec::with_capacity(of.uses.len());
            for (place, used) in step.uses(OperationId(run.operation), run.phase) {
                let part = run.part.filter(|_| inner[used.tensor.0]);
                let tensor = *known.entry((used.tensor, part)).or_insert_with(|| {
                    let residence =
                        if waits[used.tensor.0] { Residence::Movable } else { step.tensor(used.tensor).residence };
                    in_parts.add(step, used.tensor, part, residence)
                });
                let is_new = run.is_first && stretch.begins_with(step, run.operation, place);
                let access = match run.phase.access(used.access, step.has_samples(used), run.adds()) {
                    // It keeps the results of other parts.
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
    fn add(&mut self, step: &Step, id: TensorId, part: Option<usize>, residence: Residence) -> TensorId {
        let of = step.tensor(id);
        let samples = part.map_or(0..step.batch, |part| self.range(part));
        let bytes = of.sample_bytes.filter(|_| part.is_some()).map(|each| Bytes(each.0 * samples.len() as u64));
        let name = match part {
            None => of.name.clone(),
            Some(_) => format!("{} of samples {}..{}", of.name, samples.start, samples.end),
        };
        let bytes = bytes.unwrap_or(of.bytes);
        self.step.tensors.push(Tensor { name, bytes, residence, alias: None, ..of.clone() });
        self.tensors.push((id, samples));
        TensorId(self.tensors.len() - 1)
    }

    fn range(&self, part: usize) -> Range<usize> {
        samples(self.step.batch, self.parts, part)
    }

    /// The operation of a run, without its uses.
    fn operation(&self, step: &Step, stretch: &Stretch, run: Run, launch: Nanos) -> Option<Operation> {
        let of = &step.operations[run.operation];
        let stage = match of.stage {
            // A step goes forward first. If each part goes both ways, all parts come before the updates.
            Stage::Backward if stretch.goes_both_ways && run.part.is_some() => Stage::Forward,
            stage => stage,
        };
        let Some(part) = run.part else { return Some(Operation { stage, ..of.clone() }) };
        let samples = self.range(part).len();
        let time = |time| step.part_of(time, samples, launch);
        let cost = match &of.cost {
            Cost::Fixed(whole) => Cost::Fixed(time(of.time_of_phase(run.phase, *whole, launch))),
            Cost::Choice(front) => {
                let besides = time(front.besides);
                Cost::Choice(Box::new(Front { besides, ..front.of_samples(samples)? }))
            }
            Cost::Listed(_) => return None,
        };
        let again = match (run.phase, of.again) {
            (Phase::Sums, _) => Again::Never,
            (_, Again::Taking(whole)) => Again::Taking(time(whole)),
            (_, again) => again,
        };
        Some(Operation { stage, cost, again, sums: None, ..of.clone() })
    }

    /// Converts a schedule of the step in parts to a schedule of the original step.
    pub(crate) fn schedule(&self, step: &Step, schedule: Schedule) -> Schedule {
        let (tensors, runs) = (&self.tensors, &self.runs);
        let block = |block: Block| match block.holds {
            Holding::Tensor(TensorId(id)) => {
                Block { holds: Holding::Tensor(tensors[id].0), samples: tensors[id].1.clone(), ..block }
            }
            Holding::Workspace(_) => block,
        };
        let compute = |compute: Compute| {
            let run = runs[compute.operation.0];
            let operation = OperationId(run.operation);
            let differs = |(_, used): (usize, &Use)| {
                let whole = if compute.again { used.access_in_rerun() } else { used.access };
                let access = |adds| run.phase.access(whole, step.has_samples(used), adds);
                access(true) != access(false)
            };
            let has_sums = step.uses(operation, run.phase).any(differs);
            Compute {
                operation,
                phase: run.phase,
                samples: run.part.map_or(0..step.batch, |part| self.range(part)),
                adds: run.adds() && has_sums,
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
    let whole = |operation: usize| Run { operation, phase: Phase::Whole, part: None, is_first: false };
    let [mut sections, mut back] = stretch.sections(step);
    if stretch.goes_both_ways {
        let first = back.remove(0);
        sections.last_mut().into_iter().for_each(|last| last.extend(&first));
    }
    let of_parts = |(place, section): (usize, &Section)| -> Vec<Run> {
        // Odd sections run in reverse: the tensors of the last part are still on the device.
        let part = |turn: usize| if place.is_multiple_of(2) { turn } else { stretch.parts - 1 - turn };
        let run = |turn: usize, &(operation, phase): &(usize, Phase)| Run {
            operation,
            phase,
            part: Some(part(turn)),
            is_first: turn == 0,
        };
        (0..stretch.parts).flat_map(|turn| section.iter().map(move |of| run(turn, of))).collect()
    };
    let mut runs: Vec<Run> = (0..stretch.forward.start).map(whole).collect();
    runs.extend(sections.iter().enumerate().flat_map(of_parts));
    runs.extend((stretch.forward.end..stretch.backward.start).map(whole));
    runs.extend((sections.len()..).zip(&back).flat_map(of_parts));
    let is_update = |operation: &usize| step.operations[*operation].stage == Stage::Update;
    runs.extend(stretch.backward.clone().filter(is_update).map(whole));
    runs.extend((stretch.backward.end..step.operations.len()).map(whole));
    runs
}

/// Operations that each part runs together before the next part.
type Section = Vec<(usize, Phase)>;

impl Stretch {
    /// Operations of the step with the stretch in parts.
    pub(crate) fn operations(&self, step: &Step) -> usize {
        let sums = self.sums.iter().flatten().count();
        step.operations.len() + (self.parts - 1) * (self.forward.len() + self.backward.len()) + self.parts * sums
    }

    /// The operations of each direction without updates, in two sections if one of them sums over all samples.
    fn sections(&self, step: &Step) -> [Vec<Section>; 2] {
        let sections = |range: &Range<usize>, sums: Option<usize>| {
            let mut sections = vec![Section::new()];
            for at in range.clone().filter(|at| step.operations[*at].stage != Stage::Update) {
                let phase = if sums == Some(at) { Phase::Sums } else { Phase::Whole };
                sections.last_mut().into_iter().for_each(|last| last.push((at, phase)));
                if sums == Some(at) {
                    sections.push(vec![(at, Phase::Apply)]);
                }
            }
            sections
        };
        [sections(&self.forward, self.sums[0]), sections(&self.backward, self.sums[1])]
    }

    /// For each tensor: whether its parts may leave the device because they wait, going backward, for the sums over all samples. Only gradients of
    /// maps do.
    fn waits(&self, step: &Step) -> Vec<bool> {
        let mut waits = vec![false; step.tensors.len()];
        let Some(sums) = self.sums[1] else { return waits };
        let uses = |range: Range<usize>| step.operations[range].iter().flat_map(|operation| &operation.uses);
        uses(self.backward.start..sums + 1).for_each(|used| waits[used.tensor.0] = true);
        let mut after = vec![false; step.tensors.len()];
        uses(sums..self.backward.end).for_each(|used| after[used.tensor.0] = true);
        let inner = self.inner(step);
        for (id, waits) in waits.iter_mut().enumerate() {
            *waits &= after[id] && inner[id] && step.tensors[id].kind == Kind::GradientMaps;
        }
        waits
    }

    /// For each tensor: whether each part has a separate one.
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
