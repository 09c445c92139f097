//! Rewrites a schedule with one lane to one with several: moves computations to their lanes, and adds a wait wherever an
//! instruction would otherwise access a block too early.
//!
//! At the beginning of a section, every lane waits for the previous work of the compute stream. At its end, the compute stream waits for every lane.
//! In between, operations that access the same block stay in the order of the list, so that sums of gradients have the same bits. Instructions keep
//! their order, and instructions outside of sections keep their streams.

use std::collections::HashMap;

use crate::schedule::clock::{Clocks, LastAccesses};
use crate::step::{Access, Step};
use crate::{Action, Instruction, InstructionId, Schedule, Stream};

use crate::search::lanes::section::Section;

/// The schedule with these sections on lanes; its blocks have no offsets yet.
pub(crate) fn rewritten(step: &Step, schedule: &Schedule, sections: &[&Section]) -> Schedule {
    let mut rewriting = Rewriting {
        schedule: Schedule { instructions: Vec::new(), ..schedule.clone() },
        clocks: Clocks::default(),
        blocks: vec![LastAccesses::default(); schedule.blocks.len()],
        host_blocks: vec![LastAccesses::default(); schedule.host_blocks.len()],
        numbers: Vec::with_capacity(schedule.instructions.len()),
    };
    let (streams, begins) = streams(schedule, sections);
    for (place, (instruction, stream)) in schedule.instructions.iter().zip(streams).enumerate() {
        if let Some(section) = begins.get(&place).map(|section| sections[*section]) {
            section.beside().for_each(|lane| rewriting.wait_for_all(lane, Stream::Compute));
        }
        rewriting.instruction(step, stream, &instruction.action);
        if let Some(section) = sections.iter().find(|section| section.last() == place) {
            section.beside().for_each(|lane| rewriting.wait_for_all(Stream::Compute, lane));
        }
    }
    rewriting.schedule
}

/// The stream of each instruction, and the sections by their beginning. Allocations, waits and releases move with the computation that they belong
/// to.
fn streams(schedule: &Schedule, sections: &[&Section]) -> (Vec<Stream>, HashMap<usize, usize>) {
    let instructions = &schedule.instructions;
    let mut streams: Vec<Stream> = instructions.iter().map(|instruction| instruction.stream).collect();
    let mut begins = HashMap::new();
    for (number, section) in sections.iter().enumerate() {
        let mut before = None;
        for &(place, stream) in &section.computes {
            streams[place] = stream;
            let gap = |from: usize| (from..place).filter(|at| instructions[*at].stream == Stream::Compute);
            let is_compute = |at: &usize| matches!(instructions[*at].action, Action::Compute(_));
            let start = (0..place).rev().find(is_compute).map_or(0, |at| at + 1);
            let is_release = |at: &usize| matches!(instructions[*at].action, Action::Release(_));
            let released = gap(start).rfind(is_release);
            if before.is_none() {
                begins.insert(released.map_or(start, |released| released + 1), number);
            }
            for at in gap(start) {
                let is_before = released.is_some_and(|released| at <= released);
                streams[at] = if is_before { before.unwrap_or(Stream::Compute) } else { stream };
            }
            before = Some(stream);
        }
    }
    (streams, begins)
}

struct Rewriting {
    schedule: Schedule,
    clocks: Clocks,
    blocks: Vec<LastAccesses>,
    host_blocks: Vec<LastAccesses>,
    /// For each instruction of the old schedule: its stream, and its number on that stream; 0 if it does no work.
    numbers: Vec<(Stream, u32)>,
}

impl Rewriting {
    fn push(&mut self, stream: Stream, action: Action) -> InstructionId {
        self.schedule.instructions.push(Instruction { stream, action });
        InstructionId(self.schedule.instructions.len() - 1)
    }

    /// Makes a stream wait for the instruction with this number on another stream, unless it is known to have ended.
    fn wait(&mut self, stream: Stream, other: Stream, number: u32) {
        if self.clocks.known(stream)[other.index()] < number
            && let Some(instruction) = self.clocks.instruction(other, number)
        {
            self.push(stream, Action::Wait(instruction));
            self.clocks.wait(stream, other, number);
        }
    }

    /// Makes a stream wait for every instruction of another stream so far.
    fn wait_for_all(&mut self, stream: Stream, other: Stream) {
        self.wait(stream, other, self.clocks.known(other)[other.index()]);
    }

    /// Appends an instruction, after the waits for its accesses.
    fn instruction(&mut self, step: &Step, stream: Stream, action: &Action) {
        let Accesses { blocks, host_block } = accesses(step, action);
        let mut number = 0;
        match action {
            Action::Wait(on) => {
                let (other, earlier) = self.numbers[on.0];
                self.wait(stream, other, earlier);
            }
            Action::Allocate(_) | Action::Release(_) => _ = self.push(stream, action.clone()),
            Action::Compute(_) | Action::Offload(..) | Action::Prefetch(..) => {
                let of_blocks = blocks.iter().map(|(block, access)| (self.blocks[*block], *access));
                let of_host = host_block.iter().map(|(block, access)| (self.host_blocks[*block], *access));
                let all: Vec<(LastAccesses, Access)> = of_blocks.chain(of_host).collect();
                for (other, earlier) in all.into_iter().flat_map(|(accesses, access)| accesses.before(access)) {
                    self.wait(stream, other, earlier);
                }
                let place = self.push(stream, action.clone());
                number = self.clocks.run(stream, place);
                blocks.into_iter().for_each(|(block, access)| self.blocks[block].add(stream, number, access));
                let on_host = host_block.into_iter();
                on_host.for_each(|(block, access)| self.host_blocks[block].add(stream, number, access));
            }
        }
        self.numbers.push((stream, number));
    }
}

/// The accesses of an instruction: numbers of device blocks, and of a host block.
struct Accesses {
    blocks: Vec<(usize, Access)>,
    host_block: Option<(usize, Access)>,
}

fn accesses(step: &Step, action: &Action) -> Accesses {
    let (blocks, host_block) = match action {
        Action::Compute(compute) => {
            let uses = step.uses(compute.operation, compute.phase).zip(&compute.blocks);
            let uses = uses.map(|((_, used), block)| (block.0, compute.access(used, step.tensor(used.tensor))));
            (uses.chain(compute.workspace.map(|block| (block.0, Access::Write))).collect(), None)
        }
        Action::Offload(block, host) => (vec![(block.0, Access::Read)], Some((host.0, Access::Write))),
        Action::Prefetch(host, block) => (vec![(block.0, Access::Write)], Some((host.0, Access::Read))),
        Action::Allocate(_) | Action::Release(_) | Action::Wait(_) => (Vec::new(), None),
    };
    Accesses { blocks, host_block }
}
