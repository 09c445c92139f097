//! Numbers that several layers use as one tensor.
//!
//! Each layer has a copy, with its own gradient and solver state. Their updates wait until the end of the step, when the
//! gradients are added up and the sum is given to all: equal copies with equal state then stay equal, bit by bit.
//!
//! ```text
//! schedule   .. dW of c~2 | update c~2 | .. | dW of c | update c
//! shared     .. dW of c~2 | .. | dW of c | dW of c += dW of c~2 | dW of c~2 = dW of c | update c~2 | update c
//! ```
//!
//! No other pass reads a gradient or changes a weight, and both stay in memory throughout, so no pass sees a difference.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use tightfit_conv::problem::Storage;
use tightfit_conv::{Layout, Types};
use tightfit_cpu::layers::batch_norm::MOVE;
use tightfit_network::{LayerId, LayerKind, ParameterKind, Shape};
use tightfit_onnx::{Numbers, Shared, Slot};
use tightfit_plan::step::Phase;
use tightfit_plan::{Access, Mode, NetworkTensor, Order, Pass, Role, Stream, Workload, channel_stride};

use crate::initialize::first_numbers;
use crate::machine::{Operand, Task};
use crate::resolve::{Command, Commands};
use crate::{Error, Machine};

/// Bytes of a gradient's element.
const WORD: u64 = 4;

/// Makes a step treat what layers share as one tensor.
///
/// # Errors
/// [`Error::Unsound`] for layers whose parameters have different lengths or orders, or that are not all trained.
pub fn share(commands: &mut Commands, workload: &Workload<'_>, shared: &[Shared]) -> Result<(), Error> {
    let learned = |one: &&Shared| one.uses.iter().all(|(_, slot)| parameter(*slot).is_some());
    let trains = |one: &&Shared| one.uses.iter().any(|(layer, _)| workload.trains(*layer));
    let groups: Vec<&Shared> = shared.iter().filter(learned).filter(trains).collect();
    let layers: BTreeSet<usize> = groups.iter().flat_map(|one| &one.uses).map(|(layer, _)| layer.index()).collect();
    if layers.is_empty() || workload.mode != Mode::Training {
        return Ok(());
    }
    let updates = hold_back(commands, &layers);
    join(commands);
    for one in groups {
        let gradients = gradients(commands, workload, one, &updates)?;
        let first = updates.values().next().map_or(0, |(_, instruction)| *instruction);
        let (target, others) = gradients.split_first().ok_or_else(|| unsound(one, "no layer uses it"))?;
        let all = [std::slice::from_ref(target), others].concat();
        append(commands, sum(one, &all, target), first);
        for other in others {
            append(commands, sum(one, std::slice::from_ref(target), other), first);
        }
    }
    for (task, instruction) in updates.into_values() {
        commands.tasks[task].stream = Stream::Compute;
        commands.list.push(Command::Compute(task));
        commands.placed[Stream::Compute.index()].push(instruction);
    }
    Ok(())
}

/// The initial values of shared parameters: the values of the first layer that uses them, for all.
pub fn first_of_shared(workload: &Workload<'_>, shared: &[Shared], seed: u64) -> Vec<Numbers> {
    let mut all = Vec::new();
    for one in shared {
        let Some((&(first, slot), others)) = one.uses.split_first() else { continue };
        let parameters = workload.parameters(first);
        let Some(own) = parameters.iter().find(|own| Some(own.kind) == parameter(slot)) else { continue };
        let numbers = first_numbers(workload, first, own, seed);
        all.extend(others.iter().map(|&(layer, slot)| Numbers { layer, slot, numbers: numbers.clone() }));
    }
    all
}

/// Takes the updates of these layers out of the commands: by layer, each with its task and its place in the schedule.
fn hold_back(commands: &mut Commands, layers: &BTreeSet<usize>) -> BTreeMap<usize, (usize, usize)> {
    let mut held = BTreeMap::new();
    let mut places = [0; Stream::ALL.len()];
    let before = std::mem::take(&mut commands.placed);
    let mut list = Vec::with_capacity(commands.list.len());
    for command in std::mem::take(&mut commands.list) {
        let stream = match &command {
            Command::Compute(task) => Some(commands.tasks[*task].stream),
            Command::Offload(stream, ..) | Command::Prefetch(stream, ..) => Some(*stream),
            Command::Record(..) | Command::Wait(..) | Command::Poison(..) => None,
        };
        if let Some(stream) = stream {
            let place = &mut places[stream.index()];
            let instruction = before[stream.index()].get(*place).copied().unwrap_or_default();
            *place += 1;
            if let Command::Compute(task) = command
                && let of = &commands.tasks[task]
                && of.pass == Pass::Update
                && layers.contains(&of.index)
            {
                held.insert(of.index, (task, instruction));
                continue;
            }
            commands.placed[stream.index()].push(instruction);
        }
        list.push(command);
    }
    commands.list = list;
    held
}

/// Makes the compute stream wait for all that the others compute.
fn join(commands: &mut Commands) {
    for stream in Stream::LANES.into_iter().filter(|stream| *stream != Stream::Compute) {
        let computes =
            |command: &Command| matches!(command, Command::Compute(task) if commands.tasks[*task].stream == stream);
        if commands.list.iter().any(computes) {
            commands
                .list
                .extend([Command::Record(stream, commands.events), Command::Wait(Stream::Compute, commands.events)]);
            commands.events += 1;
        }
    }
}

/// Where the gradients are that belong together.
fn gradients(
    commands: &Commands,
    workload: &Workload<'_>,
    one: &Shared,
    updates: &BTreeMap<usize, (usize, usize)>,
) -> Result<Vec<Range<u64>>, Error> {
    let mut all: Vec<Range<u64>> = Vec::new();
    let mut order = None;
    for (layer, slot) in &one.uses {
        let name = &workload.network.layer(*layer).name;
        let parameters = workload.parameters(*layer);
        let parameter = parameters.iter().find(|parameter| Some(parameter.kind) == self::parameter(*slot));
        let update = updates.get(&layer.index()).map(|(task, _)| &commands.tasks[*task]);
        let block = update.and_then(|update| update.place(Role::Dw));
        let (Some(parameter), Some(block)) = (parameter, block) else {
            return Err(unsound(one, &format!("layer {name} does not train it")));
        };
        let start = block.bytes.start + parameter.offset as u64 * WORD;
        let range = start..start + parameter.elements as u64 * WORD;
        let own = workload.weight_order(*layer).filter(|_| parameter.kind == ParameterKind::Weight);
        let fits = all.first().is_none_or(|first| first.end - first.start == range.end - range.start);
        if !fits || *order.get_or_insert(own) != own {
            return Err(unsound(one, &format!("layer {name} keeps it in another length or order")));
        }
        all.push(range);
    }
    Ok(all)
}

/// The sum of these gradients, which may overwrite the first.
fn sum(one: &Shared, from: &[Range<u64>], to: &Range<u64>) -> Task {
    let elements = ((to.end - to.start) / WORD) as usize;
    let inputs = from.iter().enumerate();
    let inputs = inputs.map(|(at, from)| Operand { role: Role::X(at), access: Access::Read, bytes: from.clone() });
    let output = Operand { role: Role::Y, access: Access::Write, bytes: to.clone() };
    Task {
        name: format!("{} gradients", one.name),
        stream: Stream::Compute,
        kind: LayerKind::Add,
        pass: Pass::Forward,
        relu: false,
        phase: Phase::Whole,
        inputs: vec![Shape::flat(elements); from.len()],
        output: Shape::flat(elements),
        first: 0,
        samples: 1,
        batch: 1,
        before: 0,
        types: Types::F32,
        layout: Layout::Nchw,
        order: Order::plain(elements),
        parameters: Vec::new(),
        operands: inputs.chain([output]).collect(),
        configuration: None,
        again: false,
        mode: Mode::Training,
        index: 0,
    }
}

fn append(commands: &mut Commands, task: Task, instruction: usize) {
    commands.placed[task.stream.index()].push(instruction);
    commands.list.push(Command::Compute(commands.tasks.len()));
    commands.tasks.push(task);
}

fn unsound(one: &Shared, what: &str) -> Error {
    Error::Unsound { what: format!("{} cannot be trained as one: {what}", one.name) }
}

fn parameter(slot: Slot) -> Option<ParameterKind> {
    match slot {
        Slot::Weight => Some(ParameterKind::Weight),
        Slot::Bias => Some(ParameterKind::Bias),
        Slot::Scale => Some(ParameterKind::Scale),
        Slot::Shift => Some(ParameterKind::Shift),
        Slot::Mean | Slot::Variance => None,
    }
}

/// Running statistics that several batch normalizations use as one: the places of the copies, in the order in which the layers
/// run.
#[derive(Clone, Debug)]
pub struct SharedStatistics {
    copies: Vec<Range<u64>>,
}

impl SharedStatistics {
    /// The statistics among the shared tensors; `place` returns the place of a layer's statistics.
    pub fn of(
        workload: &Workload<'_>,
        shared: &[Shared],
        place: impl Fn(NetworkTensor) -> Option<Range<u64>>,
    ) -> Vec<SharedStatistics> {
        let copy = |(layer, slot): &(LayerId, Slot)| {
            let channels = workload.network.layer(*layer).shape.channels();
            let first = match slot {
                Slot::Mean => 0,
                Slot::Variance => channel_stride(channels) as u64 * WORD,
                _ => return None,
            };
            let start = place(NetworkTensor::Statistics(*layer))?.start + first;
            Some((layer.index(), start..start + channels as u64 * WORD))
        };
        let group = |one: &Shared| {
            let mut copies: Vec<(usize, Range<u64>)> = one.uses.iter().filter_map(copy).collect();
            copies.sort_by_key(|(layer, _)| *layer);
            let copies: Vec<Range<u64>> = copies.into_iter().map(|(_, place)| place).collect();
            (copies.len() > 1).then_some(SharedStatistics { copies })
        };
        shared.iter().filter_map(group).collect()
    }

    /// The statistics before a step.
    ///
    /// # Errors
    /// [`Error::Step`].
    pub fn before(&self, machine: &mut impl Machine) -> Result<Vec<f32>, Error> {
        self.copies.first().map_or(Ok(Vec::new()), |first| Ok(Storage::F32.decode(&machine.read(first.clone())?)))
    }

    /// Sets the statistics of all copies to the result of the layers one after another. Each layer has moved its own copy
    /// from the statistics before the step.
    ///
    /// # Errors
    /// [`Error::Step`].
    pub fn after(&self, machine: &mut impl Machine, before: &[f32]) -> Result<(), Error> {
        let mut moved: Vec<f32> = before.to_vec();
        for copy in &self.copies {
            let own = Storage::F32.decode(&machine.read(copy.clone())?);
            for ((moved, own), before) in moved.iter_mut().zip(own).zip(before) {
                *moved = own + (1.0 - MOVE) * (*moved - before);
            }
        }
        self.copies.iter().try_for_each(|copy| machine.write(copy.start, &Storage::F32.encode(&moved)))
    }
}
