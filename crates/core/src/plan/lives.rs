//! When each block is in use, in list order and on the streams.

use super::clock::{Clock, Clocks, STREAMS, is_known};
use super::{Action, InstructionId, Schedule, Stream, footprint};

/// The lifetime of a block in the device arena or the host arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    /// Bytes it occupies in its arena.
    pub(super) bytes: u64,
    /// First list position at which it is live.
    pub(super) begin: usize,
    /// List position at which it ends.
    pub(super) end: usize,
    /// The instructions known to have ended when it is first accessed.
    pub(super) start: Clock,
    /// The last instruction of each stream that accesses it.
    pub(super) last: Clock,
}

impl Life {
    fn new(bytes: u64) -> Life {
        Life { bytes: footprint(bytes), begin: usize::MAX, end: 0, start: [u32::MAX; STREAMS], last: [0; STREAMS] }
    }

    fn touch(&mut self, known: Clock, stream: Stream, number: u32) {
        for (start, known) in self.start.iter_mut().zip(known) {
            *start = (*start).min(known);
        }
        self.last[stream.index()] = number;
    }

    /// Whether this lifetime ends before `other` begins, in list order and on every stream.
    fn is_before(&self, other: &Life) -> bool {
        self.end <= other.begin && is_known(&self.last, &other.start)
    }

    /// Whether the two must not share a byte.
    pub(super) fn conflicts(&self, other: &Life) -> bool {
        !self.is_before(other) && !other.is_before(self)
    }
}

/// The lifetimes of device and host blocks, and of each computation (as a lifetime of zero bytes).
pub(super) struct Lives {
    pub(super) blocks: Vec<Life>,
    pub(super) host_blocks: Vec<Life>,
    /// Each computation's list position and its lifetime.
    pub(super) computes: Vec<(usize, Life)>,
}

impl Lives {
    /// The lifetimes of a schedule; its blocks need no offsets yet.
    pub(super) fn of(schedule: &Schedule) -> Lives {
        let mut clocks = Clocks::default();
        let mut numbers: Vec<u32> = vec![0; schedule.instructions.len()];
        let mut blocks: Vec<Life> = schedule.blocks.iter().map(|block| Life::new(block.bytes)).collect();
        let mut host_blocks: Vec<Life> = schedule.host_blocks.iter().map(|block| Life::new(block.bytes)).collect();
        let mut computes = Vec::new();
        for (life, block) in blocks.iter_mut().zip(&schedule.blocks) {
            // A resident block is live before and after everything else.
            if block.resident {
                (life.begin, life.end, life.last) = (0, usize::MAX, [u32::MAX; STREAMS]);
            }
        }
        for (place, instruction) in schedule.instructions.iter().enumerate() {
            let known = clocks.known(instruction.stream);
            match &instruction.action {
                // Until the end of the list, unless a release shortens it.
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
    /// A lifetime on the compute stream alone, one step per list position.
    pub(super) fn of(bytes: u64, begin: usize, end: usize) -> Life {
        let on_compute = |number: usize| std::array::from_fn(|stream| if stream == 0 { number as u32 } else { 0 });
        Life { bytes, begin, end, start: on_compute(begin), last: on_compute(end) }
    }

    /// The same lifetime, last accessed by the copy stream's step with this number.
    pub(super) fn copied(mut self, number: u32) -> Life {
        self.last[Stream::Offload.index()] = number;
        self
    }

    /// The same lifetime, starting once the copy stream's steps up to this number are known to have ended.
    pub(super) fn knowing(mut self, number: u32) -> Life {
        self.start[Stream::Offload.index()] = number;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::super::place::{Effort, place};
    use super::super::step::TensorId;
    use super::super::stop::End;
    use super::super::{ALIGNMENT, Block, BlockId, Holding, Instruction};
    use super::*;
    use crate::{Bytes, Types};

    #[test]
    fn unreleased_blocks_live_until_the_end() {
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
        let placed = place(&lives, Effort::Draft, End::default());
        assert_eq!((placed.most_live, placed.height), (2 * ALIGNMENT, 2 * ALIGNMENT));
        assert!(placed.offsets[0] != placed.offsets[1] && placed.offsets[0] != placed.offsets[2], "{placed:?}");
    }
}
