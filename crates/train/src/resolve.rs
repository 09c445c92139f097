//! Resolves a schedule into machine commands: byte ranges instead of blocks, numbered events instead of waits for
//! steps.
//!
//! ```text
//! schedule   compute a   offload x   compute b   wait c for 1   release x
//!
//! commands   compute a   offload x   record 0   compute b   wait 0        (x poisoned after its last access, on request)
//! ```

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use tightfit_network::WithRelu;
use tightfit_plan::step::{Access, OperationId, Phase, Resource};
use tightfit_plan::{Action, Block, BlockId, Compute, Holding, Lowered, Role, Schedule, Stream, Workload};

use crate::Error;
use crate::machine::{Operand, Task};

/// One command to a machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Run the task with this index in [`Commands::tasks`].
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

/// Whether to overwrite unused bytes with NaN, for tests and debugging.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poison {
    /// Bytes keep their content.
    Nothing,
    /// Overwrite blocks before their first use and after their last.
    Freed,
}

/// A resolved schedule.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Commands {
    /// All tasks.
    pub tasks: Vec<Task>,
    /// All commands, in schedule order.
    pub list: Vec<Command>,
    /// Number of marked points.
    pub events: usize,
    /// For each stream (in the order of [`Stream::ALL`]), the schedule index of every task and copy, in order.
    pub placed: [Vec<usize>; Stream::ALL.len()],
}

/// Resolves a schedule. Poisoning overwrites blocks before their first access and, if one access is known to be the
/// last, after it. Exception: blocks that an input layer writes first are not overwritten before, because a machine may
/// upload the mini-batch ahead of the step.
///
/// # Errors
/// [`Error::Unsound`] if the schedule refers to missing steps or samples.
pub fn resolve(
    workload: &Workload<'_>,
    lowered: &Lowered,
    schedule: &Schedule,
    poison: Poison,
) -> Result<Commands, Error> {
    let mut commands = Commands::default();
    let mut computed: HashMap<(OperationId, Phase), usize> = HashMap::new();
    let events = events(schedule)?;
    commands.events = events.len();
    let (first, last) = match poison {
        Poison::Freed => ends(lowered, schedule),
        Poison::Nothing => Default::default(),
    };
    for (number, step) in schedule.instructions.iter().enumerate() {
        let stream = step.stream;
        for &block in first.get(&number).into_iter().flatten() {
            commands.list.push(Command::Poison(stream, bytes(block_of(schedule, block)?)));
        }
        match &step.action {
            Action::Allocate(_) | Action::Release(_) => {}
            Action::Compute(compute) => {
                commands.list.push(Command::Compute(commands.tasks.len()));
                let before = computed.entry((compute.operation, compute.phase)).or_default();
                commands.tasks.push(Task { before: *before, ..task(workload, lowered, schedule, stream, compute)? });
                *before += if compute.again { 0 } else { compute.samples.len() };
            }
            Action::Offload(block, host) => {
                let (device, host) = copy(lowered, schedule, *block, host.0)?;
                commands.list.push(Command::Offload(stream, device, host));
            }
            Action::Prefetch(host, block) => {
                let (device, host) = copy(lowered, schedule, *block, host.0)?;
                commands.list.push(Command::Prefetch(stream, host, device));
            }
            Action::Wait(for_step) => {
                if let Some(&event) =
                    events.get(&for_step.0).filter(|_| schedule.instructions[for_step.0].stream != stream)
                {
                    commands.list.push(Command::Wait(stream, event));
                }
            }
        }
        if matches!(step.action, Action::Compute(_) | Action::Offload(..) | Action::Prefetch(..)) {
            commands.placed[stream.index()].push(number);
        }
        for &block in last.get(&number).into_iter().flatten() {
            commands.list.push(Command::Poison(stream, bytes(block_of(schedule, block)?)));
        }
        if let Some(&event) = events.get(&number) {
            commands.list.push(Command::Record(stream, event));
        }
    }
    Ok(commands)
}

/// Numbers the steps that another stream waits for.
fn events(schedule: &Schedule) -> Result<BTreeMap<usize, usize>, Error> {
    let mut events = BTreeMap::new();
    for (number, step) in schedule.instructions.iter().enumerate() {
        if let Action::Wait(target) = step.action {
            if target.0 >= number {
                return Err(Error::Unsound {
                    what: format!("step {number} waits for step {}, which does not come before it", target.0),
                });
            }
            if schedule.instructions[target.0].stream != step.stream {
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
    lowered: &Lowered,
    schedule: &Schedule,
    block: BlockId,
    host: usize,
) -> Result<(Range<u64>, Range<u64>), Error> {
    let block = block_of(schedule, block)?;
    match schedule.host_blocks.get(host) {
        Some(host) if host.bytes >= block.bytes => Ok((bytes(block), host.offset..host.offset + block.bytes)),
        _ => {
            let what = lowered.step.describe(block.holds);
            Err(Error::Unsound { what: format!("host block {host} does not hold {what}") })
        }
    }
}

/// Makes the task of a computation, with the bytes of its operands.
fn task(
    workload: &Workload<'_>,
    lowered: &Lowered,
    schedule: &Schedule,
    stream: Stream,
    compute: &Compute,
) -> Result<Task, Error> {
    let unknown = || Error::Unsound { what: format!("there is no operation {}", compute.operation.0) };
    let pass = lowered.passes.get(compute.operation.0).ok_or_else(unknown)?;
    let layer = workload.network.layer(pass.layer);
    if pass.relu.is_some() && layer.kind.behavior().with_relu == WithRelu::Nothing {
        return Err(Error::Unsound { what: format!("{} cannot compute a ReLU as well", layer.name) });
    }
    let mut operands = Vec::with_capacity(compute.blocks.len() + 1);
    for ((place, used), block) in lowered.step.uses(compute.operation, compute.phase).zip(&compute.blocks) {
        let bytes = part(workload, lowered, block_of(schedule, *block)?, &compute.samples)?;
        let access = compute.access(used, lowered.step.tensor(used.tensor));
        operands.push(Operand { role: pass.roles[place], access, bytes });
    }
    if let Some(block) = compute.workspace {
        let bytes = part(workload, lowered, block_of(schedule, block)?, &compute.samples)?;
        operands.push(Operand { role: Role::Workspace, access: Access::Write, bytes });
    }
    Ok(Task {
        name: format!("{} {}", layer.name, pass.pass.name()),
        stream,
        kind: layer.kind.clone(),
        pass: pass.pass,
        relu: pass.relu.is_some(),
        phase: compute.phase,
        inputs: workload.network.input_shapes(pass.layer),
        output: layer.shape,
        first: compute.samples.start,
        samples: compute.samples.len(),
        batch: workload.batch,
        before: 0,
        types: workload.types,
        layout: workload.layout,
        order: workload.order(pass.layer),
        parameters: workload.parameters(pass.layer),
        operands,
        configuration: compute.configuration.clone(),
        again: compute.again,
        mode: workload.mode,
        index: pass.layer.index(),
    })
}

/// The bytes of a block that hold some samples; all of them if the tensor is not divided into samples.
fn part(
    workload: &Workload<'_>,
    lowered: &Lowered,
    block: &Block,
    samples: &Range<usize>,
) -> Result<Range<u64>, Error> {
    let tensor = match block.holds {
        Holding::Tensor(tensor) => lowered.tensors.get(tensor.0).copied(),
        Holding::Workspace(_) => None,
    };
    let Some(per_sample) = tensor.and_then(|tensor| workload.bytes_per_sample(tensor)).map(|bytes| bytes.0) else {
        let all = tensor.map_or(block.bytes, |tensor| workload.bytes(tensor).0.min(block.bytes));
        return Ok(block.offset..block.offset + all);
    };
    let inside = block.samples.start <= samples.start && samples.end <= block.samples.end;
    if !inside || (block.samples.len() as u64) * per_sample > block.bytes {
        let (what, held) = (lowered.step.describe(block.holds), &block.samples);
        return Err(Error::Unsound { what: format!("{what} holds samples {held:?}, not {samples:?}") });
    }
    let start = block.offset + (samples.start - block.samples.start) as u64 * per_sample;
    Ok(start..start + samples.len() as u64 * per_sample)
}

/// Blocks by the step of their first access, and by the step of their known last access.
type Ends = (BTreeMap<usize, Vec<BlockId>>, BTreeMap<usize, Vec<BlockId>>);

/// The first and last access of every block. An access is the last if all others of the block are ordered before it;
/// results, which are read after the step, have no last access.
fn ends(lowered: &Lowered, schedule: &Schedule) -> Ends {
    let mut accesses: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    // The work that each stream knows to have ended on each stream, at each step.
    let mut known = [[0; Stream::ALL.len()]; Stream::ALL.len()];
    let mut stamps = Vec::with_capacity(schedule.instructions.len());
    for (number, step) in schedule.instructions.iter().enumerate() {
        let own = step.stream.index();
        let mut touch = |block: BlockId| {
            let steps = accesses.entry(block.0).or_default();
            if steps.last() != Some(&number) {
                steps.push(number);
            }
        };
        match &step.action {
            Action::Compute(compute) => compute.touched().for_each(touch),
            Action::Offload(block, _) | Action::Prefetch(_, block) => touch(*block),
            Action::Wait(target) => {
                let seen: [usize; Stream::ALL.len()] = stamps[target.0];
                known[own].iter_mut().zip(seen).for_each(|(known, seen)| *known = seen.max(*known));
            }
            Action::Allocate(_) | Action::Release(_) => {}
        }
        known[own][own] = number + 1;
        stamps.push(known[own]);
    }
    let (mut first, mut last) = Ends::default();
    for (block, steps) in &accesses {
        let (Some(&begin), Some(&end), Some(held)) = (steps.first(), steps.last(), schedule.blocks.get(*block)) else {
            continue;
        };
        if held.resident {
            continue;
        }
        if !is_upload(lowered, &schedule.instructions[begin].action) {
            first.entry(begin).or_insert_with(Vec::new).push(BlockId(*block));
        }
        let ordered = steps.iter().all(|&step| stamps[end][schedule.instructions[step].stream.index()] > step);
        if ordered && !is_result(lowered, held) {
            last.entry(end).or_insert_with(Vec::new).push(BlockId(*block));
        }
    }
    (first, last)
}

/// Whether an instruction uploads the mini-batch.
fn is_upload(lowered: &Lowered, action: &Action) -> bool {
    let uses_link = |compute: &Compute| lowered.step.operation(compute.operation).resource == Resource::Link;
    matches!(action, Action::Compute(compute) if uses_link(compute))
}

/// Whether a block holds a result, which is read after the step.
fn is_result(lowered: &Lowered, block: &Block) -> bool {
    matches!(block.holds, Holding::Tensor(tensor) if lowered.step.tensor(tensor).is_result)
}

#[cfg(test)]
mod tests {
    use tightfit_conv::Types;
    use tightfit_network::{LayerKind, Network};
    use tightfit_plan::{CostModel, Fronts, Mode, Options, Policy, plan};

    use super::*;

    #[test]
    fn everything_except_the_mini_batch_is_poisoned() {
        let network = Network::open("lenet").unwrap();
        let workload = Workload::new(&network, 4, Types::F32, Mode::Training).unwrap();
        let lowered = workload.lower().unwrap();
        let step = workload.step(&Fronts::assumed(&workload, &CostModel::cpu()).unwrap(), &CostModel::cpu()).unwrap();
        for policy in Policy::ALL {
            let options = Options { policy, ..Options::default() };
            let schedule = plan(&step, &CostModel::cpu(), &options).unwrap().schedule;
            let commands = resolve(&workload, &lowered, &schedule, Poison::Freed).unwrap();
            let input = commands.list.iter().position(|command| *command == Command::Compute(0)).unwrap();
            assert!(matches!(commands.tasks[0].kind, LayerKind::Input { .. }));
            let before = &commands.list[..input];
            assert!(!before.iter().any(|command| matches!(command, Command::Poison(..))), "{policy}: {before:?}");
            // The first convolution's output is poisoned before it is written.
            let convolution = commands.list.iter().position(|command| *command == Command::Compute(1)).unwrap();
            let output = &commands.tasks[1].place(Role::Y).unwrap().bytes;
            let covers =
                |command: &Command| matches!(command, Command::Poison(_, range) if range.start == output.start);
            assert!(commands.list[..convolution].iter().any(covers), "{policy}");
        }
    }
}
