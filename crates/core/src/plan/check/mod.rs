//! An independent check of every schedule, whoever wrote it.
//!
//! Nothing here is shared with what places, writes or simulates. The list is walked once. Every byte of both arenas knows
//! who had it and which steps touched it; every stream knows which steps of the others have ended for it; every block
//! knows what it holds: whose output, whose gradients, or nothing. An empty list of violations means that every machine
//! which keeps to streams and waits computes what the network says, within the budget, and that the results are still
//! there when the step has ended.

mod content;
mod order;
mod violation;

pub use violation::{Budgets, Violation};

use std::collections::HashMap;

use content::{Content, Learning};
use order::{Arena, Order};

use super::{ALIGNMENT, Access, Action, BlockId, Compute, HostBlockId, Schedule, StepId, Stream, Tensor, Workload};
use crate::Bytes;

/// Everything that is wrong with a schedule of this workload; nothing if it can be carried out.
///
/// - Cost: O(steps × operands + blocks × the blocks before that had their bytes).
///
/// ```
/// use tightfit_core::plan::{Action, Budgets, Costs, Kernels, Options, Workload, check, plan};
/// use tightfit_core::{Network, Types};
/// let network = Network::open("lenet")?;
/// let workload = Workload::new(&network, 8, Types::F32, false)?;
/// let kernels = Kernels::assumed(&workload, &Costs::cpu())?;
/// let mut schedule = plan(&workload, &kernels, &Costs::cpu(), &Options::default())?.schedule;
/// assert!(check(&workload, &schedule, Budgets::default()).is_empty());
/// schedule.steps.retain(|step| !matches!(step.action, Action::Release(_)));
/// assert!(!check(&workload, &schedule, Budgets::default()).is_empty());
/// # Ok::<(), tightfit_core::Error>(())
/// ```
pub fn check(workload: &Workload<'_>, schedule: &Schedule, budgets: Budgets) -> Vec<Violation> {
    let mut checker = Checker::new(workload, schedule);
    checker.form(budgets);
    // With indices out of range there is nothing to walk through.
    if checker.violations.iter().any(|violation| matches!(violation, Violation::NoSuch { .. })) {
        return checker.violations;
    }
    for (place, step) in schedule.steps.iter().enumerate() {
        checker.step(StepId(place), step.stream, &step.action);
    }
    checker.end();
    checker.violations
}

/// Where a block is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Unborn,
    Live,
    Over,
}

struct Checker<'a> {
    workload: &'a Workload<'a>,
    schedule: &'a Schedule,
    order: Order,
    device: Arena,
    host: Arena,
    stages: Vec<Stage>,
    contents: Vec<Content>,
    host_contents: Vec<Content>,
    learning: Learning,
    violations: Vec<Violation>,
}

impl<'a> Checker<'a> {
    fn new(workload: &'a Workload<'a>, schedule: &'a Schedule) -> Checker<'a> {
        let mut device = Arena::new(schedule.blocks.len());
        let mut stages = vec![Stage::Unborn; schedule.blocks.len()];
        let mut contents = vec![Content::Nothing; schedule.blocks.len()];
        let mut violations = Vec::new();
        let mut residents = HashMap::new();
        for (index, block) in schedule.blocks.iter().enumerate().filter(|(_, block)| block.resident) {
            if let Some(other) = device.take(index, block.offset, block.bytes).first() {
                violations.push(Violation::Overlap { block: BlockId(index), other: BlockId(*other), step: StepId(0) });
            }
            // What stays is put into one block before the first step; nothing would be in another.
            if let Some(other) = residents.insert(block.tensor, BlockId(index)) {
                violations.push(Violation::ResidentTwice { block: BlockId(index), other, tensor: block.tensor });
            }
            stages[index] = Stage::Live;
            if !matches!(block.tensor, Tensor::WeightGradient(_)) {
                contents[index] = Content::Kept;
            }
        }
        Checker {
            workload,
            schedule,
            order: Order::new(schedule.steps.len()),
            device,
            host: Arena::new(schedule.host_blocks.len()),
            stages,
            contents,
            host_contents: vec![Content::Nothing; schedule.host_blocks.len()],
            learning: Learning::of(workload),
            violations,
        }
    }

    fn refuse(&mut self, violation: Violation) {
        self.violations.push(violation);
    }

    fn tensor(&self, block: BlockId) -> Tensor {
        self.schedule.blocks[block.0].tensor
    }

    /// Indices, offsets, sizes, budgets: what can be seen without walking through the steps.
    fn form(&mut self, budgets: Budgets) {
        let schedule = self.schedule;
        for (arena, bytes, budget) in
            [("device", schedule.device_bytes, budgets.device), ("host", schedule.host_bytes, budgets.host)]
        {
            if bytes > budget {
                self.refuse(Violation::OverBudget { arena, bytes, budget });
            }
        }
        for (index, block) in schedule.blocks.iter().enumerate() {
            self.bounds("device", index, block.offset, block.bytes, schedule.device_bytes);
            if let Some(tensor) = content::unknown(self.workload, block.tensor) {
                self.refuse(Violation::NoSuch { what: tensor, step: StepId(0) });
                continue;
            }
            let samples = block.samples.clone();
            let (first, last) = (samples.start, samples.end);
            if first >= last || last > self.workload.batch {
                self.refuse(Violation::Samples { block: BlockId(index), first, last });
                continue;
            }
            let needed = content::bytes(self.workload, block.tensor, samples.len());
            if block.bytes < needed.0 {
                self.refuse(Violation::TooSmall { block: BlockId(index), bytes: Bytes(block.bytes), needed });
            }
        }
        for (index, block) in schedule.host_blocks.iter().enumerate() {
            self.bounds("host", index, block.offset, block.bytes, schedule.host_bytes);
        }
        for (place, step) in schedule.steps.iter().enumerate() {
            if let Some(what) = self.missing_index(&step.action, place) {
                self.refuse(Violation::NoSuch { what, step: StepId(place) });
            }
        }
    }

    fn bounds(&mut self, arena: &'static str, index: usize, offset: u64, bytes: u64, size: Bytes) {
        if !offset.is_multiple_of(ALIGNMENT) {
            self.refuse(Violation::Misaligned { arena, index, offset });
        }
        if offset.checked_add(bytes).is_none_or(|end| end > size.0) {
            self.refuse(Violation::Outside { arena, index, end: Bytes(offset.saturating_add(bytes)), size });
        }
    }

    fn missing_index(&self, action: &Action, place: usize) -> Option<String> {
        let schedule = self.schedule;
        let block = |block: &BlockId| (block.0 >= schedule.blocks.len()).then(|| format!("block {}", block.0));
        let host =
            |host: &HostBlockId| (host.0 >= schedule.host_blocks.len()).then(|| format!("host block {}", host.0));
        match action {
            Action::Allocate(id) | Action::Release(id) => block(id),
            Action::Offload(id, at) | Action::Prefetch(at, id) => block(id).or_else(|| host(at)),
            Action::Wait(step) => (step.0 >= place).then(|| format!("earlier step {}", step.0)),
            Action::Compute(compute) => {
                let layers = self.workload.network.layers().len();
                let layer = (compute.layer.index() >= layers).then(|| format!("layer {}", compute.layer.index()));
                layer.or_else(|| compute.operands.iter().find_map(|operand| block(&operand.block)))
            }
        }
    }

    fn step(&mut self, step: StepId, stream: Stream, action: &Action) {
        match action {
            Action::Allocate(block) => {
                self.order.mark(stream, step);
                self.allocate(*block, step);
            }
            Action::Release(block) => {
                self.order.mark(stream, step);
                self.release(*block, step);
            }
            Action::Wait(on) => {
                self.order.wait(stream, *on);
                self.order.mark(stream, step);
            }
            Action::Compute(compute) => {
                if stream != Stream::Compute {
                    self.refuse(Violation::WrongStream { step, stream });
                }
                self.order.begin(stream, step);
                self.compute(compute, step);
            }
            Action::Offload(block, host) => {
                self.copy_stream(stream, step);
                self.order.begin(stream, step);
                self.offload(*block, *host, step);
            }
            Action::Prefetch(host, block) => {
                self.copy_stream(stream, step);
                self.order.begin(stream, step);
                self.prefetch(*host, *block, step);
            }
        }
    }

    fn copy_stream(&mut self, stream: Stream, step: StepId) {
        if stream == Stream::Compute {
            self.refuse(Violation::WrongStream { step, stream });
        }
    }

    fn allocate(&mut self, block: BlockId, step: StepId) {
        let of = &self.schedule.blocks[block.0];
        if of.resident || self.stages[block.0] != Stage::Unborn {
            self.refuse(Violation::AllocatedTwice { block, step });
            return;
        }
        self.stages[block.0] = Stage::Live;
        for other in self.device.take(block.0, of.offset, of.bytes) {
            if self.stages[other] == Stage::Live {
                self.refuse(Violation::Overlap { block, other: BlockId(other), step });
            }
            if self.learning.is_result(self.workload, &self.contents[other]) {
                let (result, tensor) = (BlockId(other), self.tensor(BlockId(other)));
                self.refuse(Violation::ResultLost { result, tensor, block, step });
            }
        }
    }

    fn release(&mut self, block: BlockId, step: StepId) {
        if self.schedule.blocks[block.0].resident || self.stages[block.0] != Stage::Live {
            self.refuse(Violation::NotLive { block, tensor: self.tensor(block), step });
        }
        self.stages[block.0] = Stage::Over;
    }

    /// An access of the step that has begun: whether the block is there, and comes after everything that it must.
    fn access(&mut self, block: BlockId, access: Access, is_copy: bool, step: StepId) {
        if self.stages[block.0] != Stage::Live {
            self.refuse(Violation::NotLive { block, tensor: self.tensor(block), step });
        }
        if let Some(after) = self.device.stranger(block.0, &self.order) {
            self.refuse(Violation::Unordered { block, tensor: self.tensor(block), step, after });
        }
        let writes = access != Access::Read;
        if let Some((after, was_copied)) = self.device.conflict(block.0, writes, &self.order) {
            let tensor = self.tensor(block);
            self.refuse(if was_copied && writes {
                Violation::ChangedWhileCopied { block, tensor, step, copy: after }
            } else {
                Violation::Unordered { block, tensor, step, after }
            });
        }
        self.device.touch(block.0, writes, is_copy, &self.order);
    }

    fn offload(&mut self, block: BlockId, host: HostBlockId, step: StepId) {
        self.access(block, Access::Read, true, step);
        if self.contents[block.0] == Content::Nothing {
            self.refuse(Violation::NeverWritten { block, tensor: self.tensor(block), step });
        }
        let (of, at) = (&self.schedule.blocks[block.0], &self.schedule.host_blocks[host.0]);
        if (of.tensor, of.bytes) != (at.tensor, at.bytes) {
            self.refuse(Violation::HostMismatch { block, host, step });
        }
        for other in self.host.take(host.0, at.offset, at.bytes) {
            // What it held is lost; whoever reads it later finds nothing.
            if other != host.0 {
                self.host_contents[other] = Content::Nothing;
            }
        }
        self.host_order(host, true, step);
        self.host_contents[host.0] = self.contents[block.0].clone();
    }

    fn prefetch(&mut self, host: HostBlockId, block: BlockId, step: StepId) {
        self.access(block, Access::Write, true, step);
        let (of, at) = (&self.schedule.blocks[block.0], &self.schedule.host_blocks[host.0]);
        if (of.tensor, of.bytes) != (at.tensor, at.bytes) {
            self.refuse(Violation::HostMismatch { block, host, step });
        }
        if self.host_contents[host.0] == Content::Nothing {
            self.refuse(Violation::NotOnHost { host, tensor: at.tensor, step });
        }
        self.host_order(host, false, step);
        self.contents[block.0] = self.host_contents[host.0].clone();
    }

    fn host_order(&mut self, host: HostBlockId, writes: bool, step: StepId) {
        let stranger = self.host.stranger(host.0, &self.order);
        let conflict = self.host.conflict(host.0, writes, &self.order).map(|(after, _)| after);
        if let Some(after) = stranger.or(conflict) {
            self.refuse(Violation::HostUnordered { host, step, after });
        }
        self.host.touch(host.0, writes, true, &self.order);
    }

    fn compute(&mut self, compute: &Compute, step: StepId) {
        let blocks = |id: BlockId| &self.schedule.blocks[id.0];
        self.violations.extend(content::roles(self.workload, compute, &blocks, step));
        for (place, operand) in compute.operands.iter().enumerate() {
            let block = operand.block;
            self.access(block, operand.access, false, step);
            let reads = operand.access != Access::Write;
            // A sum of one map with itself adds its second gradient to the first.
            let mut before = compute.operands[..place].iter();
            let just_written = before.any(|other| other.block == block && other.access == Access::Write);
            if reads && !just_written && self.contents[block.0] == Content::Nothing {
                self.refuse(Violation::NeverWritten { block, tensor: self.tensor(block), step });
            }
        }
        let found = self.learning.compute(self.workload, compute, &mut self.contents, step);
        self.violations.extend(found);
    }

    fn end(&mut self) {
        for index in 0..self.stages.len() {
            let resident = self.schedule.blocks[index].resident;
            if self.stages[index] == Stage::Live && !resident {
                let block = BlockId(index);
                self.refuse(Violation::Leak { block, tensor: self.tensor(block) });
            }
        }
        let missing = self.learning.missing(self.workload);
        self.violations.extend(missing);
    }
}
