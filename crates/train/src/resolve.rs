//! From a schedule to what a machine is told: byte ranges instead of blocks, numbered events instead of waits for steps.
//!
//! ```text
//! schedule   compute a   offload x   compute b   wait c for 1   release x
//! program    compute a   offload x   record 0   compute b   wait 0        (x poisoned after its last access, on request)
//! ```

use std::collections::BTreeMap;
use std::ops::Range;

use tightfit_core::network::LayerKind;
use tightfit_core::plan::{Action, Block, BlockId, Compute, Schedule, Stream, Tensor, Workload};

use crate::Error;
use crate::machine::{Place, Task};

/// One thing that a machine is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Carry out the task of this place in [`Program::tasks`].
    Compute(usize),
    /// Copy from the device arena to the host arena.
    Offload(Stream, Range<u64>, Range<u64>),
    /// Copy from the host arena to the device arena.
    Prefetch(Stream, Range<u64>, Range<u64>),
    /// Mark a point.
    Record(Stream, usize),
    /// Wait for a marked point.
    Wait(Stream, usize),
    /// Fill bytes of the device arena with NaN.
    Poison(Stream, Range<u64>),
}

/// A schedule, resolved.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// Every compute step.
    pub tasks: Vec<Task>,
    /// In the order of the schedule.
    pub commands: Vec<Command>,
    /// Points that are marked.
    pub events: usize,
    /// The schedule's step of every task and copy of each stream (in the order of [`Stream::ALL`]), in order.
    pub placed: [Vec<usize>; 3],
}

/// Resolves a schedule. With `poison`, blocks are overwritten before their first access and, where one access is known to
/// be the last, after it. What an input layer writes first is not overwritten before: a machine may bring the mini-batch
/// ahead of the step.
///
/// # Errors
/// [`Error::Unsound`] for steps and samples that the schedule has not.
pub fn resolve(workload: &Workload<'_>, schedule: &Schedule, poison: bool) -> Result<Program, Error> {
    let mut program = Program::default();
    let events = events(schedule)?;
    program.events = events.len();
    let (first, last) = if poison { ends(workload, schedule) } else { Default::default() };
    for (number, step) in schedule.steps.iter().enumerate() {
        let stream = step.stream;
        for &block in first.get(&number).into_iter().flatten() {
            program.commands.push(Command::Poison(stream, bytes(block_of(schedule, block)?)));
        }
        match &step.action {
            Action::Allocate(_) | Action::Release(_) => {}
            Action::Compute(compute) => {
                program.commands.push(Command::Compute(program.tasks.len()));
                program.tasks.push(task(workload, schedule, compute)?);
            }
            Action::Offload(block, host) => {
                let (device, host) = copy(workload, schedule, *block, host.0)?;
                program.commands.push(Command::Offload(stream, device, host));
            }
            Action::Prefetch(host, block) => {
                let (device, host) = copy(workload, schedule, *block, host.0)?;
                program.commands.push(Command::Prefetch(stream, host, device));
            }
            Action::Wait(for_step) => {
                if let Some(&event) = events.get(&for_step.0).filter(|_| schedule.steps[for_step.0].stream != stream) {
                    program.commands.push(Command::Wait(stream, event));
                }
            }
        }
        if matches!(step.action, Action::Compute(_) | Action::Offload(..) | Action::Prefetch(..)) {
            program.placed[stream.index()].push(number);
        }
        for &block in last.get(&number).into_iter().flatten() {
            program.commands.push(Command::Poison(stream, bytes(block_of(schedule, block)?)));
        }
        if let Some(&event) = events.get(&number) {
            program.commands.push(Command::Record(stream, event));
        }
    }
    Ok(program)
}

/// The steps that another stream waits for, numbered.
fn events(schedule: &Schedule) -> Result<BTreeMap<usize, usize>, Error> {
    let mut events = BTreeMap::new();
    for (number, step) in schedule.steps.iter().enumerate() {
        if let Action::Wait(target) = step.action {
            if target.0 >= number {
                return Err(Error::Unsound {
                    what: format!("step {number} waits for step {}, not before it", target.0),
                });
            }
            if schedule.steps[target.0].stream != step.stream {
                let next = events.len();
                events.entry(target.0).or_insert(next);
            }
        }
    }
    Ok(events)
}

fn block_of(schedule: &Schedule, id: BlockId) -> Result<&Block, Error> {
    schedule.blocks.get(id.0).ok_or_else(|| Error::Unsound { what: format!("there is no block {}", id.0) })
}

fn bytes(block: &Block) -> Range<u64> {
    block.offset..block.offset + block.bytes
}

/// The two sides of a copy, device first.
fn copy(
    workload: &Workload<'_>,
    schedule: &Schedule,
    block: BlockId,
    host: usize,
) -> Result<(Range<u64>, Range<u64>), Error> {
    let block = block_of(schedule, block)?;
    match schedule.host_blocks.get(host) {
        Some(host) if host.bytes >= block.bytes => Ok((bytes(block), host.offset..host.offset + block.bytes)),
        _ => {
            let what = workload.describe(block.tensor);
            Err(Error::Unsound { what: format!("host block {host} does not hold {what}") })
        }
    }
}

/// A compute step with the bytes of its operands.
fn task(workload: &Workload<'_>, schedule: &Schedule, compute: &Compute) -> Result<Task, Error> {
    let layer = workload.network.layer(compute.layer);
    let mut operands = Vec::with_capacity(compute.operands.len());
    for operand in &compute.operands {
        let block = block_of(schedule, operand.block)?;
        let bytes = part(workload, block, &compute.samples)?;
        operands.push(Place { role: operand.role, access: operand.access, bytes });
    }
    Ok(Task {
        name: format!("{} {}", layer.name, compute.pass.name()),
        kind: layer.kind.clone(),
        pass: compute.pass,
        inputs: workload.network.input_shapes(compute.layer),
        output: layer.shape,
        first: compute.samples.start,
        samples: compute.samples.len(),
        batch: workload.batch,
        types: workload.types,
        parameters: workload.parameters(compute.layer),
        operands,
        configuration: compute.configuration.clone(),
        again: compute.again,
        inference: workload.inference,
        index: compute.layer.index(),
    })
}

/// The bytes of a block that hold some samples: all of them where the tensor has none.
fn part(workload: &Workload<'_>, block: &Block, samples: &Range<usize>) -> Result<Range<u64>, Error> {
    let Some(per_sample) = bytes_per_sample(workload, block.tensor) else {
        let all = match block.tensor {
            Tensor::Workspace(_) => block.bytes,
            tensor => workload.bytes(tensor).0.min(block.bytes),
        };
        return Ok(block.offset..block.offset + all);
    };
    let inside = block.samples.start <= samples.start && samples.end <= block.samples.end;
    if !inside || (block.samples.len() as u64) * per_sample > block.bytes {
        let (what, held) = (workload.describe(block.tensor), &block.samples);
        return Err(Error::Unsound { what: format!("{what} holds samples {held:?}, not {samples:?}") });
    }
    let start = block.offset + (samples.start - block.samples.start) as u64 * per_sample;
    Ok(start..start + samples.len() as u64 * per_sample)
}

/// Bytes of one sample of a tensor; none for tensors that have no samples.
fn bytes_per_sample(workload: &Workload<'_>, tensor: Tensor) -> Option<u64> {
    let sampled = match tensor {
        Tensor::FeatureMap(_) | Tensor::Gradient(_) | Tensor::Labels => true,
        Tensor::Saved(layer) => matches!(workload.network.layer(layer).kind, LayerKind::Dropout { .. }),
        _ => false,
    };
    sampled.then(|| workload.bytes(tensor).0 / workload.batch as u64)
}

/// Blocks by the step that accesses them first, and by the one that is known to access them last.
type Ends = (BTreeMap<usize, Vec<BlockId>>, BTreeMap<usize, Vec<BlockId>>);

/// The ends of every block's life. An access is the last if all others of the block are ordered before it; the map of the
/// probabilities, which is read after the step, has none.
fn ends(workload: &Workload<'_>, schedule: &Schedule) -> Ends {
    let mut accesses: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    // What each stream knows to have ended of each stream, and what was known at each step.
    let mut known = [[0; 3]; 3];
    let mut stamps = Vec::with_capacity(schedule.steps.len());
    for (number, step) in schedule.steps.iter().enumerate() {
        let own = step.stream.index();
        let mut touch = |block: BlockId| {
            let steps = accesses.entry(block.0).or_default();
            if steps.last() != Some(&number) {
                steps.push(number);
            }
        };
        match &step.action {
            Action::Compute(compute) => compute.operands.iter().for_each(|operand| touch(operand.block)),
            Action::Offload(block, _) | Action::Prefetch(_, block) => touch(*block),
            Action::Wait(target) => {
                let seen: [usize; 3] = stamps[target.0];
                known[own].iter_mut().zip(seen).for_each(|(known, seen)| *known = seen.max(*known));
            }
            Action::Allocate(_) | Action::Release(_) => {}
        }
        known[own][own] = number + 1;
        stamps.push(known[own]);
    }
    let kept = loss_map(workload);
    let (mut first, mut last) = Ends::default();
    for (block, steps) in &accesses {
        let (Some(&begin), Some(&end), Some(of)) = (steps.first(), steps.last(), schedule.blocks.get(*block)) else {
            continue;
        };
        if of.resident {
            continue;
        }
        if !is_input(workload, &schedule.steps[begin].action) {
            first.entry(begin).or_insert_with(Vec::new).push(BlockId(*block));
        }
        let ordered = steps.iter().all(|&step| stamps[end][schedule.steps[step].stream.index()] > step);
        if ordered && Some(of.tensor) != kept {
            last.entry(end).or_insert_with(Vec::new).push(BlockId(*block));
        }
    }
    (first, last)
}

/// Whether a step brings the mini-batch.
fn is_input(workload: &Workload<'_>, action: &Action) -> bool {
    let layer = |compute: &Compute| workload.network.layer(compute.layer);
    matches!(action, Action::Compute(compute) if matches!(layer(compute).kind, LayerKind::Input { .. }))
}

/// The map that holds the probabilities.
pub fn loss_map(workload: &Workload<'_>) -> Option<Tensor> {
    let (loss, _) = workload.network.iter().find(|(_, layer)| layer.kind == LayerKind::SoftmaxLoss)?;
    Some(Tensor::FeatureMap(workload.maps.written_by(loss)))
}

#[cfg(test)]
mod tests {
    use tightfit_core::plan::{Costs, Kernels, Options, Policy, Role, plan};
    use tightfit_core::{Network, Types};

    use super::*;

    #[test]
    fn nothing_but_the_mini_batch_goes_unpoisoned() {
        let network = Network::open("lenet").unwrap();
        let workload = Workload::new(&network, 4, Types::F32, false).unwrap();
        let kernels = Kernels::assumed(&workload, &Costs::cpu()).unwrap();
        for policy in Policy::ALL {
            let options = Options { policy, ..Options::default() };
            let schedule = plan(&workload, &kernels, &Costs::cpu(), &options).unwrap().schedule;
            let program = resolve(&workload, &schedule, true).unwrap();
            let input = program.commands.iter().position(|command| *command == Command::Compute(0)).unwrap();
            assert!(matches!(program.tasks[0].kind, LayerKind::Input { .. }));
            let before = &program.commands[..input];
            assert!(!before.iter().any(|command| matches!(command, Command::Poison(..))), "{policy}: {before:?}");
            // The first convolution's output is overwritten before it is written.
            let convolution = program.commands.iter().position(|command| *command == Command::Compute(1)).unwrap();
            let output = &program.tasks[1].place(Role::Y).unwrap().bytes;
            let covers =
                |command: &Command| matches!(command, Command::Poison(_, range) if range.start == output.start);
            assert!(program.commands[..convolution].iter().any(covers), "{policy}");
        }
    }
}
