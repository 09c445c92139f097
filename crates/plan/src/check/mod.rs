//! An independent check of every schedule, by any planner.
//!
//! The checker shares no code with placement, schedule writing or simulation, and walks the list once. It tracks:
//!
//! - for every byte of both arenas: the owner, and the instructions that accessed it;
//! - for every stream: the instructions of other streams that have certainly ended;
//! - for every block and sample: its content (the output of an operation, a sum, or nothing).
//!
//! Parts of an operation must cover each sample once, and sums over samples must include each part once. Results computed from sums over all samples
//! come after all of the sums.
//!
//! An empty list of violations means three things. Any machine that respects streams and waits computes the same as the step's operations run in
//! order. The step stays within the budget. The results are present at the end of the step. If the step was lowered from a network, a separate check
//! compares the two (`network`).
//!
//! `content` follows the contents, `order` the streams and owners of bytes; `violation` lists all violations, and `checked` holds schedules that
//! passed.

mod checked;
mod content;
mod order;
mod samples;
mod violation;

pub use checked::Checked;
pub use violation::{Budgets, Violation};

use std::collections::HashMap;
use std::ops::Range;

use tightfit_conv::Configuration;
use tightfit_units::Bytes;

use crate::step::{Access, Again, Cost, GroupId, Phase, Residence, Step, Use};
use crate::{ALIGNMENT, Action, BlockId, Compute, Holding, HostBlockId, InstructionId, Schedule, Stream};
use content::{Content, Progress};
use order::{Arena, Order};

/// Returns every violation in a schedule of this step; empty if it can run.
///
/// - Cost: O(instructions × operands + blocks × earlier owners of their bytes).
///
/// ```
/// use tightfit_plan::{Action, Budgets, CostModel, Fronts, Mode, Options, Workload, check, plan};
/// use tightfit_conv::Types;
/// use tightfit_network::Network;
/// let network = Network::open("lenet")?;
/// let (workload, costs) = (Workload::new(&network, 8, Types::F32, Mode::Training)?, CostModel::cpu());
/// let step = workload.step(&Fronts::assumed(&workload, &costs)?, &costs)?;
/// let mut schedule = plan(&step, &costs, &Options::default())?.schedule.into_schedule();
/// assert!(check(&step, &schedule, Budgets::default()).is_empty());
/// schedule.instructions.retain(|instruction| !matches!(instruction.action, Action::Release(_)));
/// assert!(!check(&step, &schedule, Budgets::default()).is_empty());
/// # Ok::<(), tightfit_units::Error>(())
/// ```
pub fn check(step: &Step, schedule: &Schedule, budgets: Budgets) -> Vec<Violation> {
    let mut checker = Checker::new(step, schedule);
    checker.form(budgets);
    // With indices out of range, the instructions cannot be walked.
    if checker.violations.iter().any(|violation| matches!(violation, Violation::NoSuch { .. })) {
        return checker.violations;
    }
    for (place, instruction) in schedule.instructions.iter().enumerate() {
        checker.instruction(InstructionId(place), instruction.stream, &instruction.action);
    }
    checker.end();
    checker.violations
}

/// The stage of a block's lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Unborn,
    Live,
    Over,
}

struct Checker<'a> {
    step: &'a Step,
    schedule: &'a Schedule,
    order: Order,
    device: Arena,
    host: Arena,
    stages: Vec<Stage>,
    contents: Vec<Content>,
    host_contents: Vec<Content>,
    progress: Progress,
    violations: Vec<Violation>,
}

impl<'a> Checker<'a> {
    fn new(step: &'a Step, schedule: &'a Schedule) -> Checker<'a> {
        let mut device = Arena::new(schedule.blocks.len());
        let mut stages = vec![Stage::Unborn; schedule.blocks.len()];
        let mut contents = vec![Content::default(); schedule.blocks.len()];
        let mut violations = Vec::new();
        let mut residents = HashMap::new();
        for (index, block) in schedule.blocks.iter().enumerate().filter(|(_, block)| block.resident) {
            if let Some(other) = device.take(index, block.offset, block.bytes).first() {
                violations.push(Violation::Overlap {
                    block: BlockId(index),
                    other: BlockId(*other),
                    at: InstructionId(0),
                });
            }
            // A resident tensor is loaded into one block before the first step; a second block would stay empty.
            if let Some(other) = residents.insert(block.holds, BlockId(index)) {
                violations.push(Violation::ResidentTwice { block: BlockId(index), other, holds: block.holds });
            }
            stages[index] = Stage::Live;
            contents[index] = Content::kept(step.batch);
        }
        Checker {
            step,
            schedule,
            order: Order::new(schedule.instructions.len()),
            device,
            host: Arena::new(schedule.host_blocks.len()),
            stages,
            contents,
            host_contents: vec![Content::default(); schedule.host_blocks.len()],
            progress: Progress::of(step),
            violations,
        }
    }

    fn refuse(&mut self, violation: Violation) {
        self.violations.push(violation);
    }

    fn holds(&self, block: BlockId) -> Holding {
        self.schedule.blocks[block.0].holds
    }

    /// The size that a block with this content must have, and whether it is resident; `None` for unknown content.
    fn wanted(&self, holds: Holding) -> Option<(Bytes, bool)> {
        match holds {
            Holding::Tensor(id) => {
                let tensor = self.step.tensors.get(id.0)?;
                Some((tensor.bytes, tensor.residence == Residence::Resident))
            }
            Holding::Workspace(group) => (group.0 < self.step.groups.len()).then_some((Bytes::ZERO, false)),
        }
    }

    /// The bytes of one sample in a block; `None` if the block is not divided into samples.
    fn sample_bytes(&self, holds: Holding) -> Option<Bytes> {
        match holds {
            Holding::Tensor(id) => self.step.tensors.get(id.0)?.sample_bytes,
            Holding::Workspace(_) => None,
        }
    }

    /// Checks indices, offsets, sizes and budgets, without walking the instructions.
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
            let Some((needed, resident)) = self.wanted(block.holds) else {
                self.refuse(Violation::NoSuch { what: format!("{:?}", block.holds), at: InstructionId(0) });
                continue;
            };
            if block.resident != resident {
                self.refuse(Violation::Residence { block: BlockId(index), holds: block.holds });
            }
            let Range { start: first, end: last } = block.samples;
            let is_part = self.sample_bytes(block.holds).is_some() && !resident && first < last;
            if (first, last) != (0, self.step.batch) && !(is_part && last <= self.step.batch) {
                self.refuse(Violation::Samples { block: BlockId(index), first, last });
                continue;
            }
            let of_part = self.sample_bytes(block.holds).filter(|_| block.samples.len() < self.step.batch);
            let needed = of_part.map_or(needed, |each| Bytes(each.0 * block.samples.len() as u64));
            if block.bytes < needed.0 {
                self.refuse(Violation::TooSmall { block: BlockId(index), bytes: Bytes(block.bytes), needed });
            }
        }
        for (index, block) in schedule.host_blocks.iter().enumerate() {
            if self.wanted(Holding::Tensor(block.tensor)).is_none() {
                self.refuse(Violation::NoSuch { what: format!("{:?}", block.tensor), at: InstructionId(0) });
            }
            self.bounds("host", index, block.offset, block.bytes, schedule.host_bytes);
        }
        for (place, instruction) in schedule.instructions.iter().enumerate() {
            if let Some(what) = self.missing_index(&instruction.action, place) {
                self.refuse(Violation::NoSuch { what, at: InstructionId(place) });
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
            Action::Wait(on) => (on.0 >= place).then(|| format!("earlier instruction {}", on.0)),
            Action::Compute(compute) => {
                let id = compute.operation.0;
                let operation = (id >= self.step.operations.len()).then(|| format!("operation {id}"));
                operation.or_else(|| compute.touched().find_map(|id| block(&id)))
            }
        }
    }

    fn instruction(&mut self, at: InstructionId, stream: Stream, action: &Action) {
        match action {
            Action::Allocate(block) => {
                self.order.mark(stream, at);
                self.allocate(*block, at);
            }
            Action::Release(block) => {
                self.order.mark(stream, at);
                self.release(*block, at);
            }
            Action::Wait(on) => {
                self.order.wait(stream, *on);
                self.order.mark(stream, at);
            }
            Action::Compute(compute) => {
                if !stream.is_lane() {
                    self.refuse(Violation::WrongStream { at, stream });
                }
                self.order.begin(stream, at);
                self.compute(compute, at);
            }
            Action::Offload(block, host) => {
                self.copy_stream(stream, at);
                self.order.begin(stream, at);
                self.offload(*block, *host, at);
            }
            Action::Prefetch(host, block) => {
                self.copy_stream(stream, at);
                self.order.begin(stream, at);
                self.prefetch(*host, *block, at);
            }
        }
    }

    fn copy_stream(&mut self, stream: Stream, at: InstructionId) {
        if stream.is_lane() {
            self.refuse(Violation::WrongStream { at, stream });
        }
    }

    fn allocate(&mut self, block: BlockId, at: InstructionId) {
        let new = &self.schedule.blocks[block.0];
        if new.resident || self.stages[block.0] != Stage::Unborn {
            self.refuse(Violation::AllocatedTwice { block, at });
            return;
        }
        self.stages[block.0] = Stage::Live;
        for other in self.device.take(block.0, new.offset, new.bytes) {
            if self.stages[other] == Stage::Live {
                self.refuse(Violation::Overlap { block, other: BlockId(other), at });
            }
            let of = &self.schedule.blocks[other];
            if let Holding::Tensor(tensor) = of.holds
                && self.progress.is_result(tensor, &self.contents[other], &of.samples)
            {
                let (result, holds) = (BlockId(other), self.holds(BlockId(other)));
                self.refuse(Violation::ResultLost { result, holds, block, at });
            }
        }
    }

    fn release(&mut self, block: BlockId, at: InstructionId) {
        if self.schedule.blocks[block.0].resident || self.stages[block.0] != Stage::Live {
            self.refuse(Violation::NotLive { block, holds: self.holds(block), at });
        }
        self.stages[block.0] = Stage::Over;
    }

    /// Checks an access by the current instruction: the block must be live, and every earlier conflicting access must
    /// have ended.
    fn access(&mut self, block: BlockId, access: Access, is_copy: bool, at: InstructionId) {
        if self.stages[block.0] != Stage::Live {
            self.refuse(Violation::NotLive { block, holds: self.holds(block), at });
        }
        if let Some(after) = self.device.stranger(block.0, &self.order) {
            self.refuse(Violation::Unordered { block, holds: self.holds(block), at, after });
        }
        let writes = access != Access::Read;
        if let Some((after, was_copied)) = self.device.conflict(block.0, writes, &self.order) {
            let holds = self.holds(block);
            self.refuse(if was_copied && writes {
                Violation::ChangedWhileCopied { block, holds, at, copy: after }
            } else {
                Violation::Unordered { block, holds, at, after }
            });
        }
        self.device.touch(block.0, writes, is_copy, &self.order);
    }

    fn offload(&mut self, block: BlockId, host: HostBlockId, at: InstructionId) {
        self.access(block, Access::Read, true, at);
        if self.contents[block.0].is_nothing() {
            self.refuse(Violation::NeverWritten { block, holds: self.holds(block), at });
        }
        let (device_block, host_block) = (&self.schedule.blocks[block.0], &self.schedule.host_blocks[host.0]);
        if (device_block.holds, device_block.bytes) != (Holding::Tensor(host_block.tensor), host_block.bytes) {
            self.refuse(Violation::HostMismatch { block, host, at });
        }
        for other in self.host.take(host.0, host_block.offset, host_block.bytes) {
            // Its old content is lost; a later reader finds nothing.
            if other != host.0 {
                self.host_contents[other] = Content::default();
            }
        }
        self.host_order(host, true, at);
        self.host_contents[host.0] = self.contents[block.0].clone();
    }

    fn prefetch(&mut self, host: HostBlockId, block: BlockId, at: InstructionId) {
        self.access(block, Access::Write, true, at);
        let (device_block, host_block) = (&self.schedule.blocks[block.0], &self.schedule.host_blocks[host.0]);
        if (device_block.holds, device_block.bytes) != (Holding::Tensor(host_block.tensor), host_block.bytes) {
            self.refuse(Violation::HostMismatch { block, host, at });
        }
        if self.host_contents[host.0].is_nothing() {
            self.refuse(Violation::NotOnHost { host, tensor: host_block.tensor, at });
        }
        self.host_order(host, false, at);
        self.contents[block.0] = self.host_contents[host.0].clone();
    }

    fn host_order(&mut self, host: HostBlockId, writes: bool, at: InstructionId) {
        let stranger = self.host.stranger(host.0, &self.order);
        let conflict = self.host.conflict(host.0, writes, &self.order).map(|(after, _)| after);
        if let Some(after) = stranger.or(conflict) {
            self.refuse(Violation::HostUnordered { host, at, after });
        }
        self.host.touch(host.0, writes, true, &self.order);
    }

    fn compute(&mut self, compute: &Compute, at: InstructionId) {
        let (id, operation) = (compute.operation, self.step.operation(compute.operation));
        let is_whole = compute.samples == (0..self.step.batch);
        let may_divide = match compute.phase {
            Phase::Whole => is_whole || self.step.may_divide(id),
            Phase::Sums | Phase::Apply => self.step.may_divide_after_sums(id),
        };
        if compute.samples.is_empty() || !may_divide {
            self.refuse(Violation::PartOfBatch { at });
        }
        let uses: Vec<(usize, &Use)> = self.step.uses(id, compute.phase).collect();
        if compute.blocks.len() != uses.len() {
            let (given, wanted) = (compute.blocks.len(), uses.len());
            self.refuse(Violation::WrongOperands { operation: id, given, wanted, at });
            return;
        }
        for (place, (&(operand, used), block)) in uses.iter().zip(&compute.blocks).enumerate() {
            if self.holds(*block) != Holding::Tensor(used.tensor) {
                let holds = self.holds(*block);
                self.refuse(Violation::WrongTensor { operation: id, operand, holds, at });
            }
            let tensor = self.step.tensor(used.tensor);
            let (access, reach) = (compute.access(used, tensor), compute.reach(tensor, self.step.batch));
            let held = &self.schedule.blocks[block.0].samples;
            if reach.start < held.start || held.end < reach.end {
                self.refuse(Violation::OtherSamples { operation: id, operand, at });
            }
            self.access(*block, access, false, at);
            let mut before = uses[..place].iter().zip(&compute.blocks);
            // For a sum of a map with itself, the second gradient is added to the first.
            let just_written = before.any(|((_, other), of)| of == block && other.access == Access::Write);
            if access != Access::Write && !just_written && self.contents[block.0].has_nothing_of(&reach) {
                self.refuse(Violation::NeverWritten { block: *block, holds: self.holds(*block), at });
            }
        }
        // The outputs of the sums stay as the first run left them.
        if compute.again && (operation.again == Again::Never || compute.phase == Phase::Sums) {
            self.refuse(Violation::RunsAgain { operation: id, at });
        }
        self.configuration(compute, operation.group, at);
        let found = self.progress.compute(self.step, compute, &mut self.contents, at);
        self.violations.extend(found);
    }

    /// Checks that an operation with a choice has a configuration whose workspace fits, and that any other operation
    /// has neither.
    fn configuration(&mut self, compute: &Compute, group: GroupId, at: InstructionId) {
        let operation = compute.operation;
        let mut scratch = Bytes::ZERO;
        if let Some(block) = compute.workspace {
            let holds = self.holds(block);
            if holds != Holding::Workspace(group) {
                let operand = compute.blocks.len();
                self.refuse(Violation::WrongTensor { operation, operand, holds, at });
            }
            self.access(block, Access::Write, false, at);
            scratch = Bytes(self.schedule.blocks[block.0].bytes);
        }
        let has_choice = !matches!(self.step.operation(operation).cost, Cost::Fixed(_));
        let is_right = match &compute.configuration {
            Some(configuration) => {
                let enough = Configuration::workspace(configuration) <= scratch;
                has_choice && enough && configuration.batch() == compute.samples.len()
            }
            None => !has_choice && scratch == Bytes::ZERO,
        };
        if !is_right {
            self.refuse(Violation::WrongConfiguration { operation, at });
        }
    }

    fn end(&mut self) {
        for index in 0..self.stages.len() {
            let resident = self.schedule.blocks[index].resident;
            if self.stages[index] == Stage::Live && !resident {
                let block = BlockId(index);
                self.refuse(Violation::Leak { block, holds: self.holds(block) });
            }
        }
        let missing: Vec<Violation> = self.progress.missing().collect();
        self.violations.extend(missing);
    }
}
