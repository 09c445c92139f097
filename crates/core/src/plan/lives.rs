//! From when to when each block is in use, in the list and on the streams.

use super::clock::{Clock, Clocks, is_known};
use super::{Action, InstructionId, Schedule, Stream, footprint};

/// The life of a block, or of a place in the host arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    /// What it takes of its arena.
    pub(super) bytes: u64,
    /// First place in the list.
    pub(super) begin: usize,
    /// Place in the list from which on it is over.
    pub(super) end: usize,
    /// What is known to have ended when it is first touched.
    pub(super) start: Clock,
    /// The last instruction of each stream that touches it.
    pub(super) last: Clock,
}

impl Life {
    fn new(bytes: u64) -> Life {
        Life { bytes: footprint(bytes), begin: usize::MAX, end: 0, start: [u32::MAX; 3], last: [0; 3] }
    }

    fn touch(&mut self, known: Clock, stream: Stream, number: u32) {
        for (start, known) in self.start.iter_mut().zip(known) {
            *start = (*start).min(known);
        }
        self.last[stream.index()] = number;
    }

    /// Whether this life is over when `other` begins, in the list and on every stream.
    fn is_before(&self, other: &Life) -> bool {
        self.end <= other.begin && is_known(&self.last, &other.start)
    }

    /// Whether the two may not have a byte in common.
    pub(super) fn conflicts(&self, other: &Life) -> bool {
        !self.is_before(other) && !other.is_before(self)
    }
}

/// The lives of the blocks and of the places on the host, and the clock of each computation as a life of no bytes.
pub(super) struct Lives {
    pub(super) blocks: Vec<Life>,
    pub(super) host_blocks: Vec<Life>,
    /// Places of the computations in the list, with the moment that each takes.
    pub(super) computes: Vec<(usize, Life)>,
}

impl Lives {
    /// The lives of a schedule whose blocks need no offsets yet.
    pub(super) fn of(schedule: &Schedule) -> Lives {
        let mut clocks = Clocks::default();
        let mut numbers: Vec<u32> = vec![0; schedule.instructions.len()];
        let mut blocks: Vec<Life> = schedule.blocks.iter().map(|block| Life::new(block.bytes)).collect();
        let mut host_blocks: Vec<Life> = schedule.host_blocks.iter().map(|block| Life::new(block.bytes)).collect();
        let mut computes = Vec::new();
        for (life, block) in blocks.iter_mut().zip(&schedule.blocks) {
            // What is there from step to step is before and after everything.
            if block.resident {
                (life.begin, life.end, life.last) = (0, usize::MAX, [u32::MAX; 3]);
            }
        }
        for (place, instruction) in schedule.instructions.iter().enumerate() {
            let known = clocks.known(instruction.stream);
            match &instruction.action {
                // To the end of the list, unless it is released.
                Action::Allocate(block) => {
                    (blocks[block.0].begin, blocks[block.0].end) = (place, schedule.instructions.len())
                }
                Action::Release(block) => blocks[block.0].end = place,
                Action::Wait(on) => clocks.wait(instruction.stream, schedule.instructions[on.0].stream, numbers[on.0]),
                Action::Compute(compute) => {
                    let number = clocks.run(instruction.stream, InstructionId(place));
                    numbers[place] = number;
                    for block in compute.touched() {
                        if !schedule.blocks[block.0].resident {
                            blocks[block.0].touch(known, instruction.stream, number);
                        }
                    }
                    let mut moment = Life { begin: place, end: place + 1, ..Life::new(0) };
                    moment.touch(known, instruction.stream, number);
                    computes.push((place, moment));
                }
                Action::Offload(block, host) | Action::Prefetch(host, block) => {
                    let number = clocks.run(instruction.stream, InstructionId(place));
                    numbers[place] = number;
                    blocks[block.0].touch(known, instruction.stream, number);
                    let life = &mut host_blocks[host.0];
                    life.touch(known, instruction.stream, number);
                    (life.begin, life.end) = (life.begin.min(place), place + 1);
                }
            }
        }
        Lives { blocks, host_blocks, computes }
    }
}

#[cfg(test)]
impl Life {
    /// A life on the compute stream alone, a step a place.
    pub(super) fn of(bytes: u64, begin: usize, end: usize) -> Life {
        Life { bytes, begin, end, start: [begin as u32, 0, 0], last: [end as u32, 0, 0] }
    }

    /// The same bytes on the device, touched last by the copy stream's step of this number.
    pub(super) fn copied(self, number: u32) -> Life {
        Life { last: [self.last[0], number, 0], ..self }
    }

    /// The same, once the copy stream's steps up to this number are known to have ended.
    pub(super) fn knowing(self, number: u32) -> Life {
        Life { start: [self.start[0], number, 0], ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::super::place::{Effort, place};
    use super::super::step::TensorId;
    use super::super::{ALIGNMENT, Block, BlockId, Holding, Instruction};
    use super::*;
    use crate::{Bytes, Types};

    #[test]
    fn what_is_never_released_stays_to_the_end() {
        let block =
            Block { holds: Holding::Tensor(TensorId(0)), offset: 0, bytes: ALIGNMENT, samples: 0..1, resident: false };
        let step = |action| Instruction { stream: Stream::Compute, action };
        let [kept, released, late] = [0, 1, 2].map(BlockId);
        let steps = [Action::Allocate(kept), Action::Allocate(released), Action::Release(released)];
        let steps = steps.into_iter().chain([Action::Allocate(late), Action::Release(late)]).map(step).collect();
        let schedule = Schedule {
            batch: 1,
            types: Types::F32,
            device_bytes: Bytes::ZERO,
            host_bytes: Bytes::ZERO,
            blocks: vec![block.clone(), block.clone(), block],
            host_blocks: Vec::new(),
            instructions: steps,
        };
        let lives = Lives::of(&schedule).blocks;
        assert_eq!((lives[0].begin, lives[0].end), (0, 5));
        let placed = place(&lives, Effort::Draft);
        assert_eq!((placed.most_live, placed.height), (2 * ALIGNMENT, 2 * ALIGNMENT));
        assert!(placed.offsets[0] != placed.offsets[1] && placed.offsets[0] != placed.offsets[2], "{placed:?}");
    }
}
