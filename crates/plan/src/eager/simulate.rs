//! Predicts the bytes at every operation and the time of a step under given decisions.
//!
//! It mirrors the program that carries them out. A tensor is fetched or recomputed when it is first needed again, unless the plan fetches it earlier,
//! and stays until its last use. Reruns count with all tensors that they hold on the way.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::eager::rerun::{Call, leaves, made_by};
use crate::eager::step::{EagerStep, Impossible, NONE};
use crate::{TensorDecision, Treatment};

/// The predicted memory and time of decisions.
#[derive(Clone, Debug, Default)]
pub struct Prediction {
    /// Peak bytes on the device.
    pub peak: i64,
    /// The operation at the peak.
    pub at: usize,
    /// Bytes on the device at each operation, including the peak of its reruns.
    pub live: Vec<i64>,
    /// Bytes copied to the host, and held there.
    pub moved: i64,
    /// Time of reruns in microseconds.
    pub rebuilt_us: f64,
    /// Time spent waiting for copies.
    pub stalled_us: f64,
    /// Time of the step with both.
    pub time_us: f64,
    /// For each offloaded tensor, the operation that first needs it again.
    pub needed: Vec<(usize, usize)>,
    pub(super) blocks: Blocks,
}

/// The blocks on the device, for an allocator.
#[derive(Clone, Debug, Default)]
pub(super) struct Blocks {
    pub(super) spans: Vec<Span>,
    /// By operation, the calls that rerun before it, in order.
    pub(super) reruns: BTreeMap<usize, Vec<RerunCall>>,
    /// For each number of a block: the tensor that owns the block after the rerun, or [`NONE`].
    pub(super) stay: Vec<usize>,
}

/// A block of a tensor: the first and the last operation at which it is on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) bytes: i64,
    pub(super) tensor: usize,
}

/// A block that a rerun allocates, with a unique number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) number: usize,
    pub(super) bytes: i64,
}

/// A call of a rerun (`operation` may be `None`): the blocks that it copies and allocates, and the numbers of blocks that it releases.
#[derive(Clone, Debug, Default)]
pub(super) struct RerunCall {
    pub(super) operation: Option<usize>,
    pub(super) copies: Vec<Block>,
    pub(super) makes: Vec<Block>,
    pub(super) drops: Vec<usize>,
}

impl EagerStep {
    /// Predicts a step under decisions, at most one for each tensor; other tensors are kept. Takes time in the length of the step.
    ///
    /// # Errors
    /// If the decisions cannot be carried out.
    pub fn simulate(&self, decisions: &[TensorDecision]) -> Result<Prediction, Impossible> {
        for decision in decisions {
            let places = [decision.offload_after, decision.release_after, decision.prefetch_before];
            let reruns = decision.rebuilt.iter().flat_map(|one| one.operations.iter().chain([&one.before]));
            let mut places = places.iter().flatten().chain(reruns);
            if decision.tensor >= self.tensors.len() || places.any(|&place| place >= self.operations.len()) {
                return Err(Impossible(format!("the decision for tensor {} is of another step", decision.tensor)));
            }
        }
        Simulator::new(self, decisions).run()
    }
}

struct Simulator<'a> {
    step: &'a EagerStep,
    decisions: &'a [TensorDecision],
    of: Vec<Option<&'a TensorDecision>>,
    blocks: Blocks,
    /// By tensor, the index of its last span.
    latest: Vec<usize>,
    /// By operation: the bytes that reruns before it hold from then on, and their peak.
    held: Vec<i64>,
    most: Vec<i64>,
    rerun_us: Vec<f64>,
    /// When each rebuilt or fetched tensor is on the device again, and until when.
    back: Vec<usize>,
    until: Vec<usize>,
    /// How often each tensor was rebuilt.
    times: Vec<usize>,
    /// Until when each tensor that a rerun has made is there.
    alive: Vec<Option<usize>>,
}

impl<'a> Simulator<'a> {
    fn new(step: &'a EagerStep, decisions: &'a [TensorDecision]) -> Simulator<'a> {
        let (count, tensors) = (step.operations.len(), step.tensors.len());
        let mut of = vec![None; tensors];
        for decision in decisions {
            of[decision.tensor] = Some(decision);
        }
        Simulator {
            step,
            decisions,
            of,
            blocks: Blocks::default(),
            latest: vec![NONE; tensors],
            held: vec![0; count],
            most: vec![0; count],
            rerun_us: vec![0.0; count],
            back: vec![NONE; tensors],
            until: vec![0; tensors],
            times: vec![0; tensors],
            alive: vec![None; tensors],
        }
    }

    fn run(mut self) -> Result<Prediction, Impossible> {
        let step = self.step;
        let count = step.operations.len();
        if count == 0 {
            return Ok(Prediction::default());
        }
        self.reruns()?;
        for (number, tensor) in step.tensors.iter().enumerate() {
            if tensor.resident {
                self.lives_in(0, count - 1, number, NONE);
            } else if tensor.first != NONE {
                self.one(number);
            }
        }
        let mut changes = vec![0; count + 1];
        for span in &self.blocks.spans {
            changes[span.first] += span.bytes;
            changes[span.last + 1] -= span.bytes;
        }
        let mut there = 0;
        let mut prediction = Prediction { live: Vec::with_capacity(count), ..Prediction::default() };
        for (index, operation) in step.operations.iter().enumerate() {
            there += changes[index];
            let live = there.max(there - self.held[index] + self.most[index]) + operation.scratch;
            if live > prediction.peak || index == 0 {
                (prediction.peak, prediction.at) = (live, index);
            }
            prediction.live.push(live);
        }
        prediction.rebuilt_us = self.rerun_us.iter().sum();
        self.time(&mut prediction);
        prediction.blocks = self.blocks;
        Ok(prediction)
    }

    /// Adds a span, or extends the last span of the tensor `before` if it ends right before this one.
    fn lives_in(&mut self, start: usize, end: usize, tensor: usize, before: usize) {
        if end < start {
            return;
        }
        let bytes = self.step.tensors[tensor].bytes;
        let place = if before == NONE { NONE } else { self.latest[before] };
        match self.blocks.spans.get_mut(place) {
            Some(span) if span.last + 1 == start && span.bytes == bytes => {
                (span.last, span.tensor) = (end, tensor);
                self.latest[tensor] = place;
            }
            _ => {
                self.latest[tensor] = self.blocks.spans.len();
                self.blocks.spans.push(Span { first: start, last: end, bytes, tensor });
            }
        }
    }

    /// The spans in which a tensor is on the device.
    fn one(&mut self, number: usize) {
        let tensor = &self.step.tensors[number];
        let last = tensor.last.max(self.until[number]);
        let changed = tensor.before != NONE && self.step.tensors[tensor.before].last == tensor.first;
        // In the operation that changes it, the same bytes change their name.
        let (first, before) = if changed { (tensor.first + 1, tensor.before) } else { (tensor.first, NONE) };
        let forward = if tensor.last_forward == NONE { 0 } else { tensor.last_forward };
        let Some(decision) = self.of[number].filter(|decision| decision.decision != Treatment::Keep) else {
            return self.lives_in(first, last, number, before);
        };
        self.lives_in(first, forward.max(decision.release_after.unwrap_or(0)), number, before);
        if decision.decision == Treatment::Offload {
            let fetched = self.needed_from(number).min(decision.prefetch_before.unwrap_or(NONE));
            if fetched != NONE {
                self.lives_in(fetched, last, number, NONE);
            }
        }
    }

    fn needed_from(&self, tensor: usize) -> usize {
        self.step.tensors[tensor].first_backward.min(self.back[tensor])
    }

    /// Carries out reruns in the order in which the backward pass needs them.
    fn reruns(&mut self) -> Result<(), Impossible> {
        let mut queue: Vec<(usize, usize, usize)> = Vec::new();
        let needs = self.needs();
        for decision in self.decisions.iter().filter(|decision| decision.decision == Treatment::Recompute) {
            let tensor = decision.tensor;
            if decision.rebuilt.is_empty() && self.step.tensors[tensor].first_backward != NONE {
                return Err(Impossible(format!("tensor {tensor} is recomputed, but no rerun is given")));
            }
            for (order, entry) in decision.rebuilt.iter().enumerate() {
                let before = if needs[tensor] == NONE { entry.before } else { needs[tensor] };
                queue.push((before, order, tensor));
            }
        }
        queue.sort_unstable();
        queue.into_iter().try_for_each(|(before, order, tensor)| self.rerun(tensor, order, before))
    }

    /// Where tensors that are rebuilt once are first needed: there they are rebuilt, however early that is planned.
    fn needs(&self) -> Vec<usize> {
        let tensors = &self.step.tensors;
        let mut found = vec![NONE; tensors.len()];
        let mut read_at = vec![NONE; tensors.len()];
        let mut decisions: Vec<&TensorDecision> = self.decisions.iter().collect();
        // Later tensors are rebuilt earlier. The reads of their reruns are needed then.
        decisions.sort_by_key(|decision| Reverse(tensors[decision.tensor].first));
        for decision in decisions {
            let tensor = decision.tensor;
            if decision.rebuilt.len() == 1 && tensors[tensor].first_backward != NONE {
                found[tensor] = tensors[tensor].first_backward.min(read_at[tensor]);
            }
            for entry in &decision.rebuilt {
                let now = if found[tensor] == NONE { entry.before } else { found[tensor] };
                for leaf in leaves(self.step, &entry.operations) {
                    read_at[leaf] = read_at[leaf].min(now);
                }
            }
        }
        found
    }

    /// The last operation that needs a tensor before it is rebuilt again.
    fn window_end(&self, tensor: usize, order: usize) -> usize {
        let entries = self.of[tensor].map_or(&[][..], |decision| &decision.rebuilt);
        let (Some(entry), Some(next)) = (entries.get(order), entries.get(order + 1)) else {
            return self.step.tensors[tensor].last;
        };
        let reads = |index: &usize| self.step.operations[*index].reads.contains(&tensor);
        (self.step.backward_start..next.before).rev().find(reads).unwrap_or(entry.before)
    }

    fn rerun(&mut self, tensor: usize, order: usize, now: usize) -> Result<(), Impossible> {
        let step = self.step;
        if self.alive[tensor].is_some_and(|end| end >= now) {
            return Ok(());
        }
        let Some(entry) = self.of[tensor].and_then(|one| one.rebuilt.get(order).or(one.rebuilt.last())) else {
            return Err(Impossible(format!("tensor {tensor} is recomputed, but no rerun is given")));
        };
        let held: Vec<usize> = made_by(step, &entry.operations)
            .into_iter()
            .filter(|&other| {
                let again = self.of[other].filter(|decision| decision.decision == Treatment::Recompute);
                again.is_some_and(|again| other == tensor || self.stays(again, entry.before, now))
            })
            .collect();
        for leaf in leaves(step, &entry.operations) {
            if !step.tensors[leaf].resident {
                self.leaf(leaf, now)?;
            }
        }
        let mut current = self.held[now];
        let bytes = |tensors: &[usize]| -> i64 { tensors.iter().map(|&one| step.tensors[one].bytes).sum() };
        let mut found = Vec::new();
        // The blocks that this rerun holds, by tensor.
        let mut there: Vec<(usize, usize)> = Vec::new();
        for call in step.calls(&entry.operations, &held)? {
            let operation = &step.operations[call.operation];
            current += bytes(&call.copies) + bytes(&call.makes);
            self.most[now] = self.most[now].max(current + operation.scratch);
            current -= bytes(&call.drops);
            self.rerun_us[now] += operation.rerun_us;
            found.push(self.call(call, &mut there));
        }
        for other in held {
            let Some(&(_, number)) = there.iter().find(|(one, _)| *one == other) else { continue };
            if self.alive[other].is_some_and(|end| end >= now) {
                // The tensor on the device stays, and its rerun copy is released.
                current -= step.tensors[other].bytes;
                found.push(RerunCall { drops: vec![number], ..RerunCall::default() });
                continue;
            }
            self.blocks.stay[number] = other;
            self.times[other] += 1;
            let end = self.window_end(other, self.times[other] - 1).max(now);
            self.alive[other] = Some(end);
            self.lives_in(now, end, other, NONE);
        }
        self.held[now] = current;
        self.blocks.reruns.entry(now).or_default().append(&mut found);
        Ok(())
    }

    /// The blocks of a call; `there` has the blocks that the rerun holds, by tensor.
    fn call(&mut self, call: Call, there: &mut Vec<(usize, usize)>) -> RerunCall {
        let mut new = |tensor: usize, there: &mut Vec<(usize, usize)>| {
            let block = Block { number: self.blocks.stay.len(), bytes: self.step.tensors[tensor].bytes };
            self.blocks.stay.push(NONE);
            there.push((tensor, block.number));
            block
        };
        let mut copies = Vec::with_capacity(call.copies.len());
        for (before, after) in call.renames {
            match there.iter_mut().find(|(tensor, _)| *tensor == before) {
                Some(one) if !call.copies.contains(&before) => one.0 = after,
                _ => copies.push(new(after, there)),
            }
        }
        let makes = call.makes.into_iter().map(|tensor| new(tensor, there)).collect();
        let mut drops = Vec::with_capacity(call.drops.len());
        for tensor in call.drops {
            if let Some(place) = there.iter().position(|(one, _)| *one == tensor) {
                drops.push(there.swap_remove(place).1);
            }
        }
        RerunCall { operation: Some(call.operation), copies, makes, drops }
    }

    /// Whether a tensor computed on the way of a rerun planned there stays: yes if no rerun of the tensor itself is planned later.
    fn stays(&self, again: &TensorDecision, planned: usize, now: usize) -> bool {
        let later = again.rebuilt.iter().any(|entry| entry.before > planned);
        !later && self.step.tensors[again.tensor].last >= now
    }

    /// Makes sure that a rerun finds a tensor on the device.
    fn leaf(&mut self, tensor: usize, now: usize) -> Result<(), Impossible> {
        if self.of[tensor].is_some_and(|decision| decision.decision == Treatment::Recompute) {
            if self.alive[tensor].is_none() {
                self.rerun(tensor, self.times[tensor], now)?;
            }
            if let Some(end) = self.alive[tensor].filter(|&end| end < now) {
                self.lives_in(end + 1, now, tensor, tensor);
                self.alive[tensor] = Some(now);
            }
            return Ok(());
        }
        if self.step.tensors[tensor].last < now && !self.step.tensors[tensor].saved {
            return Err(Impossible(format!(
                "a rerun before operation {now} reads tensor {tensor}, which nothing holds"
            )));
        }
        self.back[tensor] = self.back[tensor].min(now);
        self.until[tensor] = self.until[tensor].max(now);
        Ok(())
    }

    /// Times the step with one queue of copies each way. Operations are slower while copies run.
    fn time(&self, prediction: &mut Prediction) {
        #[derive(Default)]
        struct Events {
            fetches: Vec<(usize, usize)>,
            needs: Vec<usize>,
            starts: Vec<usize>,
            waits: Vec<usize>,
        }
        let step = self.step;
        let mut events: BTreeMap<usize, Events> = BTreeMap::new();
        for decision in self.decisions.iter().filter(|decision| decision.decision == Treatment::Offload) {
            let tensor = decision.tensor;
            prediction.moved += step.tensors[tensor].bytes;
            if let Some(after) = decision.offload_after {
                events.entry(after).or_default().starts.push(tensor);
            }
            if let Some(after) = decision.release_after {
                events.entry(after).or_default().waits.push(tensor);
            }
            let needed = self.needed_from(tensor);
            if needed != NONE {
                prediction.needed.push((tensor, needed));
                let fetched = needed.min(decision.prefetch_before.unwrap_or(NONE));
                events.entry(fetched).or_default().fetches.push((needed, tensor));
                events.entry(needed).or_default().needs.push(tensor);
            }
        }
        // When each operation begins if nothing is waited for.
        let mut begins = Vec::with_capacity(step.operations.len() + 1);
        let mut now = 0.0;
        begins.push(now);
        for (index, (rerun, operation)) in self.rerun_us.iter().zip(&step.operations).enumerate() {
            let copies = events.get(&index).map_or(0, |events| events.starts.len() + events.fetches.len());
            now += rerun + operation.time_us + copies as f64 * step.copy_us;
            begins.push(now);
        }
        let bytes = |tensor: usize| step.tensors[tensor].bytes as f64;
        let (mut out_free, mut in_free, mut fetched) = (0.0_f64, 0.0_f64, 0.0);
        let mut done = vec![0.0_f64; step.tensors.len()];
        let mut there = vec![0.0_f64; step.tensors.len()];
        let wait = |stalled: &mut f64, now: f64, until: f64| *stalled += (until - now).max(0.0);
        for (&index, events) in &mut events {
            let now = begins[index] + prediction.stalled_us;
            events.fetches.sort_by_key(|&(needed, _)| needed);
            for &(_, tensor) in &events.fetches {
                in_free = in_free.max(now) + bytes(tensor) / step.in_rate;
                fetched += bytes(tensor);
                there[tensor] = in_free;
            }
            let until = events.needs.iter().map(|&tensor| there[tensor]).fold(now, f64::max);
            wait(&mut prediction.stalled_us, now, until);
            let now = begins[index + 1] + prediction.stalled_us;
            for &tensor in &events.starts {
                out_free = out_free.max(now) + bytes(tensor) / step.out_rate;
                done[tensor] = out_free;
            }
            let until = events.waits.iter().map(|&tensor| done[tensor]).fold(now, f64::max);
            wait(&mut prediction.stalled_us, now, until);
        }
        let copying = (prediction.moved as f64) / step.out_rate + fetched / step.in_rate;
        prediction.time_us = now + prediction.stalled_us + (step.slowdown - 1.0) * copying;
    }
}
