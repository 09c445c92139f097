//! The steps that have certainly ended when another begins, and the previous owners of every byte.

use std::collections::BTreeMap;

use crate::{InstructionId, Stream};

const STREAMS: usize = Stream::ALL.len();

/// A number of steps for each stream.
type Count = [u32; STREAMS];

fn join(one: &mut Count, other: Count) {
    for (one, other) in one.iter_mut().zip(other) {
        *one = (*one).max(other);
    }
}

/// The state of the streams as the list is walked.
pub(super) struct Order {
    known: [Count; STREAMS],
    /// For each step: the knowledge of its stream after it.
    after: Vec<Count>,
    /// For each stream: its steps that do work.
    steps: [Vec<InstructionId>; STREAMS],
    /// The stream of the current step.
    current: usize,
}

impl Order {
    pub(super) fn new(steps: usize) -> Order {
        let (known, steps_of) = ([[0; STREAMS]; STREAMS], [const { Vec::new() }; STREAMS]);
        Order { known, after: vec![[0; STREAMS]; steps], steps: steps_of, current: 0 }
    }

    /// Begins a step that does work on a stream.
    pub(super) fn begin(&mut self, stream: Stream, step: InstructionId) {
        self.current = stream.index();
        self.steps[self.current].push(step);
        self.known[self.current][self.current] += 1;
        self.mark(stream, step);
    }

    /// Passes a step that does no work.
    pub(super) fn mark(&mut self, stream: Stream, step: InstructionId) {
        self.after[step.0] = self.known[stream.index()];
    }

    /// Makes a stream wait for an earlier step.
    pub(super) fn wait(&mut self, stream: Stream, on: InstructionId) {
        join(&mut self.known[stream.index()], self.after[on.0]);
    }

    /// A counted step that the current step does not know to have ended.
    fn unknown(&self, counted: &Count) -> Option<InstructionId> {
        let known = self.known[self.current];
        let stream = (0..STREAMS).find(|&stream| counted[stream] > known[stream])?;
        self.steps[stream].get(counted[stream] as usize - 1).copied()
    }

    /// The number of the current step on its stream.
    fn number(&self) -> u32 {
        self.known[self.current][self.current]
    }
}

/// The steps that accessed one block.
#[derive(Clone, Copy, Debug, Default)]
struct Touches {
    /// Steps that accessed its bytes while other blocks owned them.
    strangers: Count,
    reads: Count,
    writes: Count,
    copies_out: Count,
}

/// The bytes of an arena: their current owner, and earlier accesses.
pub(super) struct Arena {
    /// By first byte: the end, and the block that owns the range.
    stretches: BTreeMap<u64, (u64, usize)>,
    blocks: Vec<Touches>,
}

impl Arena {
    pub(super) fn new(blocks: usize) -> Arena {
        Arena { stretches: BTreeMap::new(), blocks: vec![Touches::default(); blocks] }
    }

    /// Assigns bytes to a block; returns the previous owners of these bytes.
    pub(super) fn take(&mut self, block: usize, offset: u64, bytes: u64) -> Vec<usize> {
        let end = offset.saturating_add(bytes);
        let first = self.stretches.range(..=offset).next_back().map_or(offset, |(start, _)| *start);
        let touched: Vec<(u64, (u64, usize))> =
            self.stretches.range(first..end.max(first)).map(|(start, stretch)| (*start, *stretch)).collect();
        let mut owners = Vec::new();
        for (start, (stop, owner)) in touched {
            if stop <= offset || start >= end {
                continue;
            }
            self.stretches.remove(&start);
            if start < offset {
                self.stretches.insert(start, (offset, owner));
            }
            if stop > end {
                self.stretches.insert(end, (stop, owner));
            }
            if !owners.contains(&owner) {
                owners.push(owner);
            }
        }
        for &owner in &owners {
            let Touches { strangers, reads, writes, .. } = self.blocks[owner];
            for touched in [strangers, reads, writes] {
                join(&mut self.blocks[block].strangers, touched);
            }
        }
        if bytes > 0 {
            self.stretches.insert(offset, (end, block));
        }
        owners
    }

    /// A step that accessed the block's bytes under an earlier owner and may not have ended.
    pub(super) fn stranger(&self, block: usize, order: &Order) -> Option<InstructionId> {
        order.unknown(&self.blocks[block].strangers)
    }

    /// A conflicting step that accessed the block and may not have ended, and whether it is a copy out of the block.
    pub(super) fn conflict(&self, block: usize, writes: bool, order: &Order) -> Option<(InstructionId, bool)> {
        let touches = &self.blocks[block];
        if let Some(step) = order.unknown(&touches.writes) {
            return Some((step, false));
        }
        let reader = order.unknown(&touches.reads).filter(|_| writes)?;
        let is_copy = order.unknown(&touches.copies_out) == Some(reader);
        Some((reader, is_copy))
    }

    /// Records an access of the block by the current step.
    pub(super) fn touch(&mut self, block: usize, writes: bool, is_copy: bool, order: &Order) {
        let touches = &mut self.blocks[block];
        let (stream, number) = (order.current, order.number());
        if writes {
            touches.writes[stream] = number;
        } else {
            touches.reads[stream] = number;
            if is_copy {
                touches.copies_out[stream] = number;
            }
        }
    }
}
