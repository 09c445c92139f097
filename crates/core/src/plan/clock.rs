//! What each stream knows of the others: how many of their instructions have certainly ended, by its own order and its waits.
//!
//! ```text
//! compute    a1        a2   wait b1        a3        a3 comes after a2 and b1, not after b2
//! offload         b1             b2
//! ```
//!
//! **Source**: vector clocks, Fidge 1988 and Mattern 1989.

use super::{InstructionId, Stream};

/// Instructions of each stream, in the order of [`Stream::ALL`].
pub(super) type Clock = [u32; 3];

/// The clocks of the three streams while a schedule is read or written.
#[derive(Clone, Debug, Default)]
pub(super) struct Clocks {
    known: [Clock; 3],
    /// Every instruction that does work, by stream: its place in the schedule, and what is known once it has ended.
    ended: [Vec<(InstructionId, Clock)>; 3],
}

impl Clocks {
    /// What a stream knows before its next instruction.
    pub(super) fn known(&self, stream: Stream) -> Clock {
        self.known[stream.index()]
    }

    /// An instruction runs on a stream: gives its number there, counted from 1.
    pub(super) fn run(&mut self, stream: Stream, instruction: InstructionId) -> u32 {
        let known = &mut self.known[stream.index()];
        known[stream.index()] += 1;
        self.ended[stream.index()].push((instruction, *known));
        known[stream.index()]
    }

    /// A stream waits for the instruction with this number on another.
    pub(super) fn wait(&mut self, stream: Stream, other: Stream, number: u32) {
        let Some((_, learned)) = self.ended[other.index()].get(number as usize - 1) else { return };
        let known = &mut self.known[stream.index()];
        for (known, learned) in known.iter_mut().zip(learned) {
            *known = (*known).max(*learned);
        }
    }

    /// The place in the schedule of the instruction with this number on a stream.
    pub(super) fn instruction(&self, stream: Stream, number: u32) -> Option<InstructionId> {
        let index = (number as usize).checked_sub(1)?;
        self.ended[stream.index()].get(index).map(|(instruction, _)| *instruction)
    }
}

/// Whether what is counted in `one` is all among what `other` knows.
pub(super) fn is_known(one: &Clock, other: &Clock) -> bool {
    one.iter().zip(other).all(|(one, other)| one <= other)
}

/// What is counted in both.
pub(super) fn least(one: Clock, other: Clock) -> Clock {
    std::array::from_fn(|stream| one[stream].min(other[stream]))
}
