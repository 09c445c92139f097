//! Predicts the bytes that PyTorch's allocator reserves for a step. They exceed the allocated bytes because of fragmentation.

use crate::eager::simulate::{Block, Prediction, RerunCall, Span};
use crate::eager::step::{EagerStep, NONE};
use crate::memory::caching::{InitialReservation, Segment, length};

/// The memory that the allocator reserves for a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// In bytes.
    pub bytes: i64,
    /// The first operation at which this exceeds the given limit.
    pub at: Option<usize>,
}

impl EagerStep {
    /// The memory that the allocator reserves for a simulated step, and the first operation at which it exceeds `most`.
    pub fn reserved(&self, prediction: &Prediction, most: Option<i64>, initial: &InitialReservation) -> Reserved {
        Replay::new(self, prediction, initial).run(most)
    }
}

/// A step, as the allocator sees it.
struct Replay<'a> {
    step: &'a EagerStep,
    prediction: &'a Prediction,
    segment: Segment,
    small_block: i64,
    before: i64,
    /// By tensor, the operation that needs it again, if it is fetched.
    needed: Vec<usize>,
    /// Spans, sorted by the operation at which they begin; and for each operation, the range of its spans in this list.
    begins: Vec<Span>,
    from: Vec<usize>,
    /// Blocks with the next one that ends at the same operation, and by operation, the first one that ends there.
    blocks: Vec<(i64, i64, usize)>,
    ends: Vec<usize>,
    /// The added bytes of small blocks at each operation, and the most that the operation itself adds and releases.
    small: Vec<i64>,
    beside: Vec<i64>,
}

impl<'a> Replay<'a> {
    fn new(step: &'a EagerStep, prediction: &'a Prediction, initial: &InitialReservation) -> Replay<'a> {
        let count = step.operations.len();
        let mut found = Replay {
            step,
            prediction,
            segment: Segment::new(initial.sizes.page, &initial.free),
            small_block: initial.sizes.small,
            before: initial.bytes,
            needed: vec![NONE; step.tensors.len()],
            begins: Vec::with_capacity(prediction.blocks.spans.len()),
            from: Vec::new(),
            blocks: Vec::with_capacity(prediction.blocks.spans.len()),
            ends: vec![NONE; count],
            small: vec![0; count + 1],
            beside: vec![0; count],
        };
        for &(tensor, needed) in &prediction.needed {
            found.needed[tensor] = needed;
        }
        let mut taken = initial.bytes - initial.free.iter().sum::<i64>();
        for span in &prediction.blocks.spans {
            let length = length(span.bytes);
            if length <= found.small_block {
                found.small[span.first] += length;
                found.small[span.last + 1] -= length;
            } else if (span.first, span.last) != (0, count - 1) {
                found.begins.push(*span);
            } else if taken >= length {
                // It stays from step to step, and is there.
                taken -= length;
            } else {
                found.segment.take(length);
            }
        }
        (found.begins, found.from) = by_first(&found.begins, count);
        found
    }

    fn run(mut self, most: Option<i64>) -> Reserved {
        let (mut at, mut small, mut most_small) = (None, 0, 0);
        for index in 0..self.step.operations.len() {
            self.one(index);
            small += self.small[index];
            most_small = most_small.max(small + self.beside[index]);
            if at.is_none() && most.is_some_and(|most| self.before + self.segment.end + most_small > most) {
                at = Some(index);
            }
            let mut place = self.ends[index];
            while let Some(&(begin, length, next)) = self.blocks.get(place) {
                self.segment.give(begin, length);
                place = next;
            }
        }
        Reserved { bytes: self.before + self.segment.end + most_small, at }
    }

    /// Fetches, reruns and then the operation itself.
    fn one(&mut self, index: usize) {
        let (step, prediction) = (self.step, self.prediction);
        let mut spans = self.begins[self.from[index]..self.from[index + 1]].to_vec();
        let writes = &step.operations[index].writes;
        let own: Vec<Span> =
            writes.iter().filter_map(|tensor| spans.iter().find(|span| span.tensor == *tensor).copied()).collect();
        spans.retain(|span| !writes.contains(&span.tensor));
        let calls: &[RerunCall] = prediction.blocks.reruns.get(&index).map_or(&[], |calls| calls);
        // Blocks of reruns that stay, with their spans.
        let mut stay: Vec<(usize, Span)> = Vec::new();
        for block in calls.iter().flat_map(|call| call.copies.iter().chain(&call.makes)) {
            let tensor = prediction.blocks.stay[block.number];
            if let Some(place) = spans.iter().position(|span| tensor != NONE && span.tensor == tensor) {
                stay.push((block.number, spans.remove(place)));
            }
        }
        // Of the tensors fetched at once, the tensor that is needed first comes first.
        spans.sort_by_key(|span| self.needed[span.tensor]);
        for span in spans {
            self.hold(span);
        }
        let mut held: Vec<(usize, i64, i64)> = Vec::new();
        for call in calls {
            let mut take = |replay: &mut Replay, block: Block| match stay.iter().find(|(one, _)| *one == block.number) {
                Some(&(_, span)) => replay.hold(span),
                None => {
                    let length = length(block.bytes);
                    if length > replay.small_block {
                        held.push((block.number, replay.segment.take(length), length));
                    }
                }
            };
            for &block in &call.copies {
                take(self, block);
            }
            if let Some(operation) = call.operation {
                self.call(index, operation, &call.makes, |block| block.bytes, take);
            }
            for number in &call.drops {
                if let Some(place) = held.iter().position(|(one, ..)| one == number) {
                    let (_, begin, length) = held.swap_remove(place);
                    self.segment.give(begin, length);
                }
            }
        }
        self.call(index, index, &own, |span| span.bytes, Replay::hold);
    }

    /// A call at `index` of an operation, whose results `take` takes, among its workspaces.
    fn call<M: Copy>(
        &mut self,
        index: usize,
        operation: usize,
        makes: &[M],
        bytes: impl Fn(&M) -> i64,
        mut take: impl FnMut(&mut Replay<'a>, M),
    ) {
        let workspaces = &self.step.operations[operation].workspaces;
        let small = self.small_block;
        let placed = workspaces.iter().filter(|&&size| size == 0).count();
        let large = makes.iter().filter(|made| bytes(made) > small).count();
        let mut results = makes.iter().filter(|made| bytes(made) > small).copied();
        // Results without a known position among the workspaces come first.
        for made in results.by_ref().take(large.saturating_sub(placed)) {
            take(self, made);
        }
        let mut blocks: Vec<Option<(i64, i64)>> = Vec::new();
        let mut beside = 0;
        for &size in workspaces {
            match size {
                ..0 => {
                    let number = size.unsigned_abs() as usize - 1;
                    if let Some((begin, length)) = blocks.get_mut(number).and_then(Option::take) {
                        self.segment.give(begin, length);
                    }
                }
                0 => {
                    if let Some(made) = results.next() {
                        take(self, made);
                    }
                }
                _ => {
                    let length = length(size);
                    blocks.push((length > small).then(|| (self.segment.take(length), length)));
                    beside += if length > small { 0 } else { length };
                }
            }
        }
        for (begin, length) in blocks.into_iter().flatten() {
            self.segment.give(begin, length);
        }
        for made in results {
            take(self, made);
        }
        self.beside[index] = self.beside[index].max(beside);
    }

    fn hold(&mut self, span: Span) {
        let length = length(span.bytes);
        let begin = self.segment.take(length);
        self.blocks.push((begin, length, self.ends[span.last]));
        self.ends[span.last] = self.blocks.len() - 1;
    }
}

/// Spans, sorted by the operation at which they begin and then in the given order; and for each operation, the range of its spans in this list.
fn by_first(spans: &[Span], operations: usize) -> (Vec<Span>, Vec<usize>) {
    let mut from = vec![0; operations + 1];
    spans.iter().for_each(|span| from[span.first + 1] += 1);
    for index in 0..operations {
        from[index + 1] += from[index];
    }
    let (mut next, mut found) = (from.clone(), spans.to_vec());
    for span in spans {
        found[next[span.first]] = *span;
        next[span.first] += 1;
    }
    (found, from)
}
