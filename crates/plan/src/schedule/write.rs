//! Writes the schedule of a step and a script: allocates blocks when they are needed, places the script's copies, and
//! adds a wait wherever an instruction would otherwise access a block too early.
//!
//! Only the compute stream releases bytes: it waits for a copy before releasing the copy's bytes, and a copy that needs
//! bytes first waits for everything the compute stream knows to have ended. So a block that has ended in list order has
//! ended on the device.

use std::collections::HashMap;

use tightfit_conv::Configuration;
use tightfit_units::Bytes;

use crate::schedule::clock::{Clocks, LastAccesses};
use crate::schedule::script::{Move, Script};
use crate::step::{Access, Lifetimes, Operation, OperationId, Phase, Residence, Step, TensorId};
use crate::{
    Action, Block, BlockId, Compute, Holding, HostBlock, HostBlockId, Instruction, InstructionId, Kind, Schedule,
    Stream,
};

/// Writes the schedule of a script, without offsets; `configurations` has one entry per operation.
pub(crate) fn write(
    step: &Step,
    lifetimes: &Lifetimes,
    script: &Script,
    configurations: &[Option<&Configuration>],
) -> Schedule {
    let mut writer = Writer::new(step, script.one_stream);
    let is_resident = |tensor| step.tensor(tensor).residence == Residence::Resident;
    let held = |tensor| script.network_wide && step.tensor(tensor).kind != Kind::GradientMaps;
    let mut whole_step: Vec<TensorId> = Vec::new();
    for used in step.operations.iter().flat_map(|operation| &operation.uses) {
        if is_resident(used.tensor) || held(used.tensor) {
            writer.block(used.tensor, Stream::Compute);
            if held(used.tensor) && !is_resident(used.tensor) && !whole_step.contains(&used.tensor) {
                whole_step.push(used.tensor);
            }
        }
    }
    for (id, operation) in step.iter() {
        let at = id.0;
        script.moves_before(at).iter().for_each(|decision| writer.carry_out(*decision, configurations));
        writer.compute(id, operation, configurations[at], false);
        script.moves_after(at).iter().for_each(|decision| writer.carry_out(*decision, configurations));
        for used in &operation.uses {
            let is_last = lifetimes.get(used.tensor).is_none_or(|lifetime| lifetime.last == at);
            let leaves = script.releases && step.tensor(used.tensor).residence == Residence::Movable;
            if is_last && !leaves && !is_resident(used.tensor) && !held(used.tensor) {
                writer.release(used.tensor);
            }
        }
    }
    whole_step.into_iter().for_each(|tensor| writer.release(tensor));
    // Results, which are read after the step, unless the last operation used them.
    let blocks = writer.schedule.blocks.iter();
    let left: Vec<Holding> = blocks.filter(|block| !block.resident).map(|block| block.holds).collect();
    left.into_iter().for_each(|holds| writer.give_back(holds));
    writer.schedule
}

struct Writer<'a> {
    step: &'a Step,
    one_stream: bool,
    schedule: Schedule,
    clocks: Clocks,
    touched: Vec<LastAccesses>,
    host_touched: Vec<LastAccesses>,
    on_device: HashMap<Holding, BlockId>,
    on_host: HashMap<TensorId, HostBlockId>,
}

impl<'a> Writer<'a> {
    fn new(step: &'a Step, one_stream: bool) -> Writer<'a> {
        let schedule = Schedule {
            batch: step.batch,
            types: step.types,
            device_bytes: Bytes::ZERO,
            host_bytes: Bytes::ZERO,
            blocks: Vec::new(),
            host_blocks: Vec::new(),
            instructions: Vec::new(),
        };
        Writer {
            step,
            one_stream,
            schedule,
            clocks: Clocks::default(),
            touched: Vec::new(),
            host_touched: Vec::new(),
            on_device: HashMap::new(),
            on_host: HashMap::new(),
        }
    }

    fn push(&mut self, stream: Stream, action: Action) -> InstructionId {
        self.schedule.instructions.push(Instruction { stream, action });
        InstructionId(self.schedule.instructions.len() - 1)
    }

    /// The block that holds a tensor; allocates one if needed.
    fn block(&mut self, tensor: TensorId, stream: Stream) -> BlockId {
        let holds = Holding::Tensor(tensor);
        match self.on_device.get(&holds) {
            Some(block) => *block,
            None => self.allocate(holds, self.step.tensor(tensor).bytes, stream),
        }
    }

    fn allocate(&mut self, holds: Holding, bytes: Bytes, stream: Stream) -> BlockId {
        let block = BlockId(self.schedule.blocks.len());
        let resident = match holds {
            Holding::Tensor(tensor) => self.step.tensor(tensor).residence == Residence::Resident,
            Holding::Workspace(_) => false,
        };
        let samples = 0..self.step.batch;
        self.schedule.blocks.push(Block { holds, offset: 0, bytes: bytes.0, samples, resident });
        self.touched.push(LastAccesses::default());
        self.on_device.insert(holds, block);
        if !resident {
            self.push(stream, Action::Allocate(block));
        }
        block
    }

    /// Makes a stream wait for the instruction with this number on another stream, unless it is known to have ended.
    fn wait(&mut self, stream: Stream, other: Stream, number: u32) {
        if self.clocks.known(stream)[other.index()] < number
            && let Some(instruction) = self.clocks.instruction(other, number)
        {
            self.push(stream, Action::Wait(instruction));
            self.clocks.wait(stream, other, number);
        }
    }

    /// Makes a stream wait for everything the compute stream knows to have ended.
    fn catch_up(&mut self, stream: Stream) {
        // The compute stream's own last instruction first: it may already have waited for the others.
        for other in Stream::ALL {
            self.wait(stream, other, self.clocks.known(Stream::Compute)[other.index()]);
        }
    }

    /// Makes a stream wait until it may access a block.
    fn wait_for(&mut self, stream: Stream, touched: LastAccesses, access: Access) {
        for (other, number) in touched.before(access) {
            self.wait(stream, other, number);
        }
    }

    /// Waits for every user of a tensor's block, if any, and releases it.
    fn release(&mut self, tensor: TensorId) {
        self.give_back(Holding::Tensor(tensor));
    }

    fn give_back(&mut self, holds: Holding) {
        if let Some(block) = self.on_device.remove(&holds) {
            self.wait_for(Stream::Compute, self.touched[block.0], Access::Write);
            self.push(Stream::Compute, Action::Release(block));
        }
    }

    fn carry_out(&mut self, decision: Move, configurations: &[Option<&Configuration>]) {
        match decision {
            Move::Rerun(id) => self.compute(id, self.step.operation(id), configurations[id.0], true),
            Move::Offload(tensor) => self.offload(tensor),
            Move::Leave(tensor) => self.release(tensor),
            Move::Prefetch(tensor) => self.prefetch(tensor),
            Move::Arrive(tensor) => {
                if let Some(block) = self.on_device.get(&Holding::Tensor(tensor)) {
                    self.wait_for(Stream::Compute, self.touched[block.0], Access::Read);
                }
            }
        }
    }

    fn offload(&mut self, tensor: TensorId) {
        let Some(&block) = self.on_device.get(&Holding::Tensor(tensor)) else { return };
        let host = HostBlockId(self.schedule.host_blocks.len());
        let bytes = self.schedule.blocks[block.0].bytes;
        self.schedule.host_blocks.push(HostBlock { tensor, offset: 0, bytes });
        self.wait_for(Stream::Offload, self.touched[block.0], Access::Read);
        let copy = self.push(Stream::Offload, Action::Offload(block, host));
        let number = self.clocks.run(Stream::Offload, copy);
        self.touched[block.0].add(Stream::Offload, number, Access::Read);
        let mut touched = LastAccesses::default();
        touched.add(Stream::Offload, number, Access::Write);
        self.host_touched.push(touched);
        self.on_host.insert(tensor, host);
    }

    fn prefetch(&mut self, tensor: TensorId) {
        let Some(&host) = self.on_host.get(&tensor) else { return };
        if self.on_device.contains_key(&Holding::Tensor(tensor)) {
            return;
        }
        let stream = if self.one_stream { Stream::Offload } else { Stream::Prefetch };
        self.catch_up(stream);
        self.wait_for(stream, self.host_touched[host.0], Access::Read);
        let bytes = Bytes(self.schedule.host_blocks[host.0].bytes);
        let block = self.allocate(Holding::Tensor(tensor), bytes, stream);
        let copy = self.push(stream, Action::Prefetch(host, block));
        let number = self.clocks.run(stream, copy);
        self.host_touched[host.0].add(stream, number, Access::Read);
        self.touched[block.0].add(stream, number, Access::Write);
    }

    fn compute(&mut self, id: OperationId, operation: &Operation, configuration: Option<&Configuration>, again: bool) {
        let mut blocks = Vec::with_capacity(operation.uses.len());
        let mut accesses = Vec::with_capacity(operation.uses.len() + 1);
        for used in &operation.uses {
            let access = if again { used.access_in_rerun() } else { used.access };
            if access == Access::Read {
                // Fetch on demand, unless a decision has already started the copy back.
                self.prefetch(used.tensor);
            }
            let block = self.block(used.tensor, Stream::Compute);
            self.wait_for(Stream::Compute, self.touched[block.0], access);
            blocks.push(block);
            accesses.push((block, access));
        }
        let bytes = configuration.map_or(Bytes::ZERO, Configuration::workspace);
        let scratch = Holding::Workspace(operation.group);
        let workspace = (bytes > Bytes::ZERO).then(|| self.allocate(scratch, bytes, Stream::Compute));
        accesses.extend(workspace.map(|block| (block, Access::Write)));
        let compute = Compute {
            operation: id,
            phase: Phase::Whole,
            blocks,
            workspace,
            samples: 0..self.step.batch,
            configuration: configuration.cloned(),
            again,
            adds: false,
        };
        let compute = self.push(Stream::Compute, Action::Compute(Box::new(compute)));
        let number = self.clocks.run(Stream::Compute, compute);
        for (block, access) in accesses {
            self.touched[block.0].add(Stream::Compute, number, access);
        }
        self.give_back(scratch);
    }
}
