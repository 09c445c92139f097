//! What each stream knows about the others: how many of their instructions have certainly ended, given its waits.
//!
//! ```text
//! compute    a1        a2   wait b1        a3        a3 runs after a2 and b1, but not necessarily after b2
//! offload         b1             b2
//! ```
//!
//! **Source**: vector clocks, Fidge 1988 and Mattern 1989.

use super::{InstructionId, Stream};

/// A number of instructions for each stream, in the order of [`Stream::ALL`].
pub(super) type Clock = [u32; 3];

/// The clocks of the three streams while reading or writing a schedule.
#[derive(Clone, Debug, Default)]
pub(super) struct Clocks {
    known: [Clock; 3],
    /// For each stream, the instructions that do work: each with its position in the schedule and the clock at its end.
    ended: [Vec<(InstructionId, Clock)>; 3],
}

impl Clocks {
    /// A stream's clock before its next instruction.
    pub(super) fn known(&self, stream: Stream) -> Clock {
        self.known[stream.index()]
    }

    /// Runs an instruction on a stream and returns its number there, counted from 1.
    pub(super) fn run(&mut self, stream: Stream, instruction: InstructionId) -> u32 {
        let known = &mut self.known[stream.index()];
        known[stream.index()] += 1;
        self.ended[stream.index()].push((instruction, *known));
        known[stream.index()]
    }

    /// Makes a stream wait for the instruction with this number on another.
    pub(super) fn wait(&mut self, stream: Stream, other: Stream, number: u32) {
        let Some((_, learned)) = self.ended[other.index()].get(number as usize - 1) else { return };
        let known = &mut self.known[stream.index()];
        for (known, learned) in known.iter_mut().zip(learned) {
            *known = (*known).max(*learned);
        }
    }

    /// The schedule position of the instruction with this number on a stream.
    pub(super) fn instruction(&self, stream: Stream, number: u32) -> Option<InstructionId> {
        let index = (number as usize).checked_sub(1)?;
        self.ended[stream.index()].get(index).map(|(instruction, _)| *instruction)
    }
}

/// Whether `other` knows everything counted in `one`.
pub(super) fn is_known(one: &Clock, other: &Clock) -> bool {
    one.iter().zip(other).all(|(one, other)| one <= other)
}

/// The instructions counted in both.
pub(super) fn least(one: Clock, other: Clock) -> Clock {
    std::array::from_fn(|stream| one[stream].min(other[stream]))
}
