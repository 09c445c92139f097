//! Writes the schedule of a program and a script: blocks where they are needed, copies where the script has them, and a
//! wait wherever a step would otherwise touch a block too early.
//!
//! Bytes change hands on the compute stream alone: it waits for a copy before it gives the copy's bytes back, and a copy
//! that takes bytes first waits for all that the compute stream knows. So what is over in the list is over on the device.

use std::collections::HashMap;

use super::clock::Clocks;
use super::program::{Operation, Program, is_resident};
use super::script::{Move, Script};
use super::{
    Access, Action, Block, BlockId, Compute, HostBlock, HostBlockId, Operand, Role, Schedule, Step, StepId, Stream,
    Tensor, Workload,
};
use crate::network::MapId;
use crate::{Bytes, Configuration};

/// The schedule of a script, without offsets; `configurations` by place of computation.
pub(super) fn write(
    workload: &Workload<'_>,
    program: &Program,
    script: &Script,
    configurations: &[Option<&Configuration>],
) -> Schedule {
    let mut writer = Writer::new(workload, script.one_stream);
    let held = |tensor| script.network_wide && !matches!(tensor, Tensor::Gradient(_) | Tensor::Workspace(_));
    let mut whole_step: Vec<Tensor> = Vec::new();
    for used in program.operations.iter().flat_map(|operation| &operation.uses) {
        if is_resident(used.tensor) || held(used.tensor) {
            writer.block(used.tensor, Stream::Compute);
            if held(used.tensor) && !is_resident(used.tensor) && !whole_step.contains(&used.tensor) {
                whole_step.push(used.tensor);
            }
        }
    }
    for (at, operation) in program.operations.iter().enumerate() {
        script.moves_before(at).iter().for_each(|decision| writer.carry_out(*decision));
        writer.compute(operation, configurations[at]);
        script.moves_after(at).iter().for_each(|decision| writer.carry_out(*decision));
        for used in &operation.uses {
            let is_last = program.uses(used.tensor).is_none_or(|uses| uses.last == at);
            if is_last && !is_resident(used.tensor) && !held(used.tensor) {
                writer.release(used.tensor);
            }
        }
    }
    whole_step.into_iter().for_each(|tensor| writer.release(tensor));
    // What is read after the step by whoever asked for it, and was not used last.
    let left: Vec<Tensor> = writer.schedule.blocks.iter().map(|block| block.tensor).collect();
    left.into_iter().filter(|tensor| !is_resident(*tensor)).for_each(|tensor| writer.release(tensor));
    writer.schedule
}

/// Who touched a block, or a place on the host: the number of the last step of each stream, and the last that wrote it.
#[derive(Clone, Copy, Debug, Default)]
struct Touched {
    last: [u32; 3],
    written: Option<(Stream, u32)>,
}

struct Writer<'a> {
    workload: &'a Workload<'a>,
    one_stream: bool,
    schedule: Schedule,
    clocks: Clocks,
    touched: Vec<Touched>,
    host_touched: Vec<Touched>,
    on_device: HashMap<Tensor, BlockId>,
    on_host: HashMap<MapId, HostBlockId>,
}

impl<'a> Writer<'a> {
    fn new(workload: &'a Workload<'a>, one_stream: bool) -> Writer<'a> {
        let schedule = Schedule {
            batch: workload.batch,
            types: workload.types,
            device_bytes: Bytes::ZERO,
            host_bytes: Bytes::ZERO,
            blocks: Vec::new(),
            host_blocks: Vec::new(),
            steps: Vec::new(),
        };
        Writer {
            workload,
            one_stream,
            schedule,
            clocks: Clocks::default(),
            touched: Vec::new(),
            host_touched: Vec::new(),
            on_device: HashMap::new(),
            on_host: HashMap::new(),
        }
    }

    fn push(&mut self, stream: Stream, action: Action) -> StepId {
        self.schedule.steps.push(Step { stream, action });
        StepId(self.schedule.steps.len() - 1)
    }

    /// The block that a tensor is in, allocated if it is in none.
    fn block(&mut self, tensor: Tensor, stream: Stream) -> BlockId {
        let bytes = self.workload.bytes(tensor).0;
        match self.on_device.get(&tensor) {
            Some(block) => *block,
            None => self.allocate(tensor, bytes, stream),
        }
    }

    fn allocate(&mut self, tensor: Tensor, bytes: u64, stream: Stream) -> BlockId {
        let block = BlockId(self.schedule.blocks.len());
        let resident = is_resident(tensor);
        self.schedule.blocks.push(Block { tensor, offset: 0, bytes, samples: 0..self.workload.batch, resident });
        self.touched.push(Touched::default());
        self.on_device.insert(tensor, block);
        if !resident {
            self.push(stream, Action::Allocate(block));
        }
        block
    }

    /// Makes a stream wait for the step with this number on another, unless it knows of its end.
    fn wait(&mut self, stream: Stream, other: Stream, number: u32) {
        if self.clocks.known(stream)[other.index()] < number
            && let Some(step) = self.clocks.step(other, number)
        {
            self.push(stream, Action::Wait(step));
            self.clocks.wait(stream, other, number);
        }
    }

    /// Makes a stream wait for all that the compute stream knows.
    fn catch_up(&mut self, stream: Stream) {
        // The compute stream's own last step first: it may have waited for the others' already.
        for other in Stream::ALL {
            self.wait(stream, other, self.clocks.known(Stream::Compute)[other.index()]);
        }
    }

    /// Makes a stream wait until it may use what was touched so.
    fn wait_for(&mut self, stream: Stream, touched: Touched, access: Access) {
        match (access, touched.written) {
            (Access::Read, Some((other, number))) => self.wait(stream, other, number),
            (Access::Read, None) => {}
            (Access::Write | Access::Add, _) => {
                for other in Stream::ALL {
                    self.wait(stream, other, touched.last[other.index()]);
                }
            }
        }
    }

    /// Waits for every user of a tensor's block and gives its bytes back; nothing if it is in none.
    fn release(&mut self, tensor: Tensor) {
        if let Some(block) = self.on_device.remove(&tensor) {
            self.wait_for(Stream::Compute, self.touched[block.0], Access::Write);
            self.push(Stream::Compute, Action::Release(block));
        }
    }

    fn carry_out(&mut self, decision: Move) {
        match decision {
            Move::Offload(map) => self.offload(map),
            Move::Leave(map) => self.release(Tensor::FeatureMap(map)),
            Move::Prefetch(map) => self.prefetch(map),
            Move::Arrive(map) => {
                if let Some(block) = self.on_device.get(&Tensor::FeatureMap(map)) {
                    self.wait_for(Stream::Compute, self.touched[block.0], Access::Read);
                }
            }
        }
    }

    fn offload(&mut self, map: MapId) {
        let tensor = Tensor::FeatureMap(map);
        let Some(&block) = self.on_device.get(&tensor) else { return };
        let host = HostBlockId(self.schedule.host_blocks.len());
        let bytes = self.schedule.blocks[block.0].bytes;
        self.schedule.host_blocks.push(HostBlock { tensor, offset: 0, bytes });
        self.wait_for(Stream::Offload, self.touched[block.0], Access::Read);
        let step = self.push(Stream::Offload, Action::Offload(block, host));
        let number = self.clocks.run(Stream::Offload, step);
        self.touched[block.0].last[Stream::Offload.index()] = number;
        let mut touched = Touched { written: Some((Stream::Offload, number)), ..Touched::default() };
        touched.last[Stream::Offload.index()] = number;
        self.host_touched.push(touched);
        self.on_host.insert(map, host);
    }

    fn prefetch(&mut self, map: MapId) {
        let tensor = Tensor::FeatureMap(map);
        let Some(&host) = self.on_host.get(&map) else { return };
        if self.on_device.contains_key(&tensor) {
            return;
        }
        let stream = if self.one_stream { Stream::Offload } else { Stream::Prefetch };
        self.catch_up(stream);
        self.wait_for(stream, self.host_touched[host.0], Access::Read);
        let block = self.allocate(tensor, self.schedule.host_blocks[host.0].bytes, stream);
        let step = self.push(stream, Action::Prefetch(host, block));
        let number = self.clocks.run(stream, step);
        self.host_touched[host.0].last[stream.index()] = number;
        let touched = &mut self.touched[block.0];
        touched.last[stream.index()] = number;
        touched.written = Some((stream, number));
    }

    fn compute(&mut self, operation: &Operation, configuration: Option<&Configuration>) {
        let mut operands = Vec::with_capacity(operation.uses.len() + 1);
        for used in &operation.uses {
            if let (Tensor::FeatureMap(map), Access::Read) = (used.tensor, used.access) {
                // On demand, where no decision brought it back in time.
                self.prefetch(map);
            }
            let block = self.block(used.tensor, Stream::Compute);
            self.wait_for(Stream::Compute, self.touched[block.0], used.access);
            operands.push(Operand { role: used.role, block, access: used.access });
        }
        let workspace = configuration.map_or(Bytes::ZERO, Configuration::workspace);
        let scratch = Tensor::Workspace(operation.layer);
        if workspace > Bytes::ZERO {
            let block = self.allocate(scratch, workspace.0, Stream::Compute);
            operands.push(Operand { role: Role::Workspace, block, access: Access::Write });
        }
        let blocks: Vec<(BlockId, Access)> = operands.iter().map(|operand| (operand.block, operand.access)).collect();
        let compute = Compute {
            layer: operation.layer,
            pass: operation.pass,
            operands,
            samples: 0..self.workload.batch,
            configuration: configuration.cloned(),
            again: false,
        };
        let step = self.push(Stream::Compute, Action::Compute(Box::new(compute)));
        let number = self.clocks.run(Stream::Compute, step);
        for (block, access) in blocks {
            let touched = &mut self.touched[block.0];
            touched.last[Stream::Compute.index()] = number;
            if access != Access::Read {
                touched.written = Some((Stream::Compute, number));
            }
        }
        self.release(scratch);
    }
}
