//! The time during which each block is in use, in list order and on the streams.

use tightfit_place::Life;

use crate::schedule::clock::{Clock, Clocks, STREAMS};
use crate::{Action, InstructionId, Schedule, Stream, footprint};

/// The lifetime of a block of `bytes` that nothing accesses yet.
fn life(bytes: u64) -> Life {
    Life { bytes: footprint(bytes), begin: usize::MAX, end: 0, start: [u32::MAX; STREAMS], last: [0; STREAMS] }
}

/// Adds an access by instruction `number` of a stream whose clock is `known`.
fn touch(life: &mut Life, known: Clock, stream: Stream, number: u32) {
    for (start, known) in life.start.iter_mut().zip(known) {
        *start = (*start).min(known);
    }
    life.last[stream.index()] = number;
}

/// The lifetimes of device and host blocks, and of each computation (as a lifetime of zero bytes).
pub(crate) struct Lives {
    pub(crate) blocks: Vec<Life>,
    pub(crate) host_blocks: Vec<Life>,
    /// Each computation's list position and its lifetime.
    pub(crate) computes: Vec<(usize, Life)>,
}

impl Lives {
    /// The lifetimes of a schedule; its blocks need no offsets yet.
    pub(crate) fn of(schedule: &Schedule) -> Lives {
        let mut clocks = Clocks::default();
        let mut numbers: Vec<u32> = vec![0; schedule.instructions.len()];
        let mut blocks: Vec<Life> = schedule.blocks.iter().map(|block| life(block.bytes)).collect();
        let mut host_blocks: Vec<Life> = schedule.host_blocks.iter().map(|block| life(block.bytes)).collect();
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
                // The block lives until the end of the list, unless a release shortens it.
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
                            touch(&mut blocks[block.0], known, instruction.stream, number);
                        }
                    }
                    let mut moment = Life { begin: place, end: place + 1, ..life(0) };
                    touch(&mut moment, known, instruction.stream, number);
                    computes.push((place, moment));
                }
                Action::Offload(block, host) | Action::Prefetch(host, block) => {
                    let number = clocks.run(instruction.stream, InstructionId(place));
                    numbers[place] = number;
                    touch(&mut blocks[block.0], known, instruction.stream, number);
                    let life = &mut host_blocks[host.0];
                    touch(life, known, instruction.stream, number);
                    (life.begin, life.end) = (life.begin.min(place), place + 1);
                }
            }
        }
        Lives { blocks, host_blocks, computes }
    }
}

#[cfg(test)]
mod tests {
    use tightfit_conv::Types;
    use tightfit_place::{Effort, place};
    use tightfit_units::Bytes;

    use super::*;
    use crate::step::TensorId;
    use crate::{ALIGNMENT, Block, BlockId, Holding, Instruction};

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
        let placed = place(&lives, Effort::Draft, &|| false);
        assert_eq!((placed.most_live, placed.height), (2 * ALIGNMENT, 2 * ALIGNMENT));
        assert!(placed.offsets[0] != placed.offsets[1] && placed.offsets[0] != placed.offsets[2], "{placed:?}");
    }
}
