//! Which steps have certainly ended when another begins, and who had which bytes before.

use std::collections::BTreeMap;

use crate::plan::{InstructionId, Stream};

/// By stream: how many of its steps.
type Count = [u32; 3];

fn join(one: &mut Count, other: Count) {
    for (one, other) in one.iter_mut().zip(other) {
        *one = (*one).max(other);
    }
}

/// The streams as the list is walked.
pub(super) struct Order {
    known: [Count; 3],
    /// By step: what its stream knew after it.
    after: Vec<Count>,
    /// By stream: its steps that do something.
    steps: [Vec<InstructionId>; 3],
    /// The stream whose step is under way.
    current: usize,
}

impl Order {
    pub(super) fn new(steps: usize) -> Order {
        Order { known: [[0; 3]; 3], after: vec![[0; 3]; steps], steps: [const { Vec::new() }; 3], current: 0 }
    }

    /// A step that does something begins on a stream.
    pub(super) fn begin(&mut self, stream: Stream, step: InstructionId) {
        self.current = stream.index();
        self.steps[self.current].push(step);
        self.known[self.current][self.current] += 1;
        self.mark(stream, step);
    }

    /// A step that does nothing is passed.
    pub(super) fn mark(&mut self, stream: Stream, step: InstructionId) {
        self.after[step.0] = self.known[stream.index()];
    }

    /// A stream waits for an earlier step.
    pub(super) fn wait(&mut self, stream: Stream, on: InstructionId) {
        join(&mut self.known[stream.index()], self.after[on.0]);
    }

    /// A step among those counted of which the current one does not know that it has ended.
    fn unknown(&self, counted: &Count) -> Option<InstructionId> {
        let known = self.known[self.current];
        let stream = (0..3).find(|&stream| counted[stream] > known[stream])?;
        self.steps[stream].get(counted[stream] as usize - 1).copied()
    }

    /// The number of the current step on its stream.
    fn number(&self) -> u32 {
        self.known[self.current][self.current]
    }
}

/// The steps that touched one block.
#[derive(Clone, Copy, Debug, Default)]
struct Touches {
    /// Those that touched its bytes while others had them.
    strangers: Count,
    reads: Count,
    writes: Count,
    copies_out: Count,
}

/// The bytes of an arena: who has them, and who touched them before.
pub(super) struct Arena {
    /// By first byte: the byte after the last, and the block that has them.
    stretches: BTreeMap<u64, (u64, usize)>,
    blocks: Vec<Touches>,
}

impl Arena {
    pub(super) fn new(blocks: usize) -> Arena {
        Arena { stretches: BTreeMap::new(), blocks: vec![Touches::default(); blocks] }
    }

    /// Gives bytes to a block; names the blocks that had some of them last.
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

    /// A step that touched the block's bytes before they were its own, and may not have ended.
    pub(super) fn stranger(&self, block: usize, order: &Order) -> Option<InstructionId> {
        order.unknown(&self.blocks[block].strangers)
    }

    /// A step that touched the block and may not have ended, where that matters; and whether it is a copy out of it.
    pub(super) fn conflict(&self, block: usize, writes: bool, order: &Order) -> Option<(InstructionId, bool)> {
        let touches = &self.blocks[block];
        if let Some(step) = order.unknown(&touches.writes) {
            return Some((step, false));
        }
        let reader = order.unknown(&touches.reads).filter(|_| writes)?;
        let is_copy = order.unknown(&touches.copies_out) == Some(reader);
        Some((reader, is_copy))
    }

    /// The current step touches the block.
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
