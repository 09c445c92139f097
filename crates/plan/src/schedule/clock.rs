//! Vector clocks of the streams: the number of instructions on each other stream that have certainly ended, given the waits.
//!
//! ```text
//! compute    a1        a2   wait b1        a3        a3 runs after a2 and b1, but not necessarily after b2
//! offload         b1             b2
//! ```
//!
//! **Source**: vector clocks, Fidge 1988 and Mattern 1989.

use crate::step::Access;
use crate::{InstructionId, Stream};

/// A number of instructions for each stream, in the order of [`Stream::ALL`].
pub(crate) type Clock = tightfit_place::Clock;

pub(crate) const STREAMS: usize = Stream::ALL.len();

/// The clocks of all streams while reading or writing a schedule.
#[derive(Clone, Debug, Default)]
pub(crate) struct Clocks {
    known: [Clock; STREAMS],
    /// For each stream, the instructions that do work: each with its position in the schedule and the clock at its end.
    ended: [Vec<(InstructionId, Clock)>; STREAMS],
}

impl Clocks {
    /// A stream's clock before its next instruction.
    pub(crate) fn known(&self, stream: Stream) -> Clock {
        self.known[stream.index()]
    }

    /// Runs an instruction on a stream and returns its number there, counted from 1.
    pub(crate) fn run(&mut self, stream: Stream, instruction: InstructionId) -> u32 {
        let known = &mut self.known[stream.index()];
        known[stream.index()] += 1;
        self.ended[stream.index()].push((instruction, *known));
        known[stream.index()]
    }

    /// Makes a stream wait for the instruction with this number on another stream.
    pub(crate) fn wait(&mut self, stream: Stream, other: Stream, number: u32) {
        let Some((_, learned)) = self.ended[other.index()].get(number as usize - 1) else { return };
        let known = &mut self.known[stream.index()];
        for (known, learned) in known.iter_mut().zip(learned) {
            *known = (*known).max(*learned);
        }
    }

    /// The schedule position of the instruction with this number on a stream.
    pub(crate) fn instruction(&self, stream: Stream, number: u32) -> Option<InstructionId> {
        let index = (number as usize).checked_sub(1)?;
        self.ended[stream.index()].get(index).map(|(instruction, _)| *instruction)
    }
}

/// The last accesses of a device or host block: the number of the last instruction of each stream, and the last write.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastAccesses {
    last: Clock,
    written: Option<(Stream, u32)>,
}

impl LastAccesses {
    pub(crate) fn add(&mut self, stream: Stream, number: u32, access: Access) {
        self.last[stream.index()] = number;
        if access != Access::Read {
            self.written = Some((stream, number));
        }
    }

    /// The instructions that must have ended before such an access: a stream and a number for each.
    pub(crate) fn before(self, access: Access) -> impl Iterator<Item = (Stream, u32)> {
        let all = Stream::ALL.into_iter().map(move |stream| (stream, self.last[stream.index()]));
        let (written, all) = if access == Access::Read { (self.written, None) } else { (None, Some(all)) };
        written.into_iter().chain(all.into_iter().flatten())
    }
}
