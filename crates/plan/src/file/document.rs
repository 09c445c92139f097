//! The file form of a schedule, in terms of its network. Its keys are a stable format.
//!
//! The structs below mirror the document key for key, so the internal types stay free to change.

use std::collections::HashMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use tightfit_conv::{Configuration, Types};
use tightfit_network::LayerId;
use tightfit_units::Bytes;

use crate::file::action::ActionObject;
use crate::step::{Access, GroupId, OperationId, Phase, TensorId};
use crate::{
    Block, BlockId, Compute, Holding, HostBlock, Instruction, Lowered, NetworkTensor, Pass, Role, Schedule, Stream,
};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    pub batch: usize,
    pub types: Types,
    pub device_bytes: Bytes,
    pub host_bytes: Bytes,
    pub blocks: Vec<BlockObject>,
    pub host_blocks: Vec<HostBlockObject>,
    pub steps: Vec<InstructionObject>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockObject {
    tensor: NetworkTensor,
    pub offset: u64,
    bytes: u64,
    samples: Range<usize>,
    resident: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostBlockObject {
    tensor: NetworkTensor,
    offset: u64,
    bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstructionObject {
    stream: Stream,
    action: ActionObject<ComputeObject>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ComputeObject {
    layer: LayerId,
    pass: Pass,
    #[serde(default, skip_serializing_if = "Phase::is_whole")]
    phase: Phase,
    operands: Vec<OperandObject>,
    samples: Range<usize>,
    configuration: Option<Configuration>,
    again: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct OperandObject {
    role: Role,
    block: BlockId,
    access: Access,
}

impl Document {
    /// The document of a schedule of this network's step.
    ///
    /// # Panics
    /// If the schedule belongs to another step.
    pub fn of(schedule: &Schedule, lowered: &Lowered) -> Document {
        let layer = |GroupId(group): GroupId| lowered.layers[group];
        let tensor = |holds| match holds {
            Holding::Tensor(TensorId(tensor)) => lowered.tensors[tensor],
            Holding::Workspace(group) => NetworkTensor::Workspace(layer(group)),
        };
        let block = |block: &Block| BlockObject {
            tensor: tensor(block.holds),
            offset: block.offset,
            bytes: block.bytes,
            samples: block.samples.clone(),
            resident: block.resident,
        };
        let host_block = |block: &HostBlock| HostBlockObject {
            tensor: lowered.tensors[block.tensor.0],
            offset: block.offset,
            bytes: block.bytes,
        };
        let instruction = |instruction: &Instruction| InstructionObject {
            stream: instruction.stream,
            action: ActionObject::of(&instruction.action, |compute| written(compute, lowered)),
        };
        Document {
            batch: schedule.batch,
            types: schedule.types,
            device_bytes: schedule.device_bytes,
            host_bytes: schedule.host_bytes,
            blocks: schedule.blocks.iter().map(block).collect(),
            host_blocks: schedule.host_blocks.iter().map(host_block).collect(),
            steps: schedule.instructions.iter().map(instruction).collect(),
        }
    }

    /// The schedule, unchecked; an error names a reference that the network lacks.
    pub fn schedule(self, lowered: &Lowered) -> Result<Schedule, String> {
        let tensors: HashMap<NetworkTensor, TensorId> =
            lowered.tensors.iter().enumerate().map(|(place, tensor)| (*tensor, TensorId(place))).collect();
        let tensor = |tensor: NetworkTensor| {
            tensors.get(&tensor).copied().ok_or_else(|| format!("no pass of the network uses {tensor:?}"))
        };
        let holds = |held| match held {
            NetworkTensor::Workspace(layer) => Ok(Holding::Workspace(GroupId(layer.index()))),
            held => tensor(held).map(Holding::Tensor),
        };
        let block = |block: BlockObject| {
            let BlockObject { tensor, offset, bytes, samples, resident } = block;
            Ok(Block { holds: holds(tensor)?, offset, bytes, samples, resident })
        };
        let host_block = |block: HostBlockObject| {
            Ok(HostBlock { tensor: tensor(block.tensor)?, offset: block.offset, bytes: block.bytes })
        };
        let operations: HashMap<(LayerId, Pass), OperationId> =
            lowered.passes.iter().enumerate().map(|(place, of)| ((of.layer, of.pass), OperationId(place))).collect();
        let instruction = |instruction: InstructionObject| {
            let action = instruction.action.action(|compute| {
                let (layer, pass) = (compute.layer.index(), compute.pass.name());
                let operation = operations.get(&(compute.layer, compute.pass));
                let missing = || {
                    format!("layer {layer} has no separate pass {pass}; if an older version wrote the plan, plan again")
                };
                let operation = *operation.ok_or_else(missing)?;
                read(compute, operation, lowered)
            })?;
            Ok(Instruction { stream: instruction.stream, action })
        };
        Ok(Schedule {
            batch: self.batch,
            types: self.types,
            device_bytes: self.device_bytes,
            host_bytes: self.host_bytes,
            blocks: self.blocks.into_iter().map(block).collect::<Result<_, String>>()?,
            host_blocks: self.host_blocks.into_iter().map(host_block).collect::<Result<_, String>>()?,
            instructions: self.steps.into_iter().map(instruction).collect::<Result<_, String>>()?,
        })
    }
}

fn written(compute: &Compute, lowered: &Lowered) -> ComputeObject {
    let pass = &lowered.passes[compute.operation.0];
    let operands = lowered.step.uses(compute.operation, compute.phase).zip(&compute.blocks);
    let operands = operands.map(|((place, used), block)| {
        let access = compute.access(used, lowered.step.tensor(used.tensor));
        OperandObject { role: pass.roles[place], block: *block, access }
    });
    let scratch = |block| OperandObject { role: Role::Workspace, block, access: Access::Write };
    ComputeObject {
        layer: pass.layer,
        pass: pass.pass,
        phase: compute.phase,
        operands: operands.chain(compute.workspace.map(scratch)).collect(),
        samples: compute.samples.clone(),
        configuration: compute.configuration.clone(),
        again: compute.again,
    }
}

/// Reads a computation and puts its operands in the order of the operation's uses; an error names the wrong operand.
fn read(compute: ComputeObject, operation: OperationId, lowered: &Lowered) -> Result<Compute, String> {
    let ComputeObject { layer, pass, phase, mut operands, samples, configuration, again } = compute;
    let bad = |what: &str, role: Role| Err(format!("layer {} {}: {role:?} {what}", layer.index(), pass.name()));
    let mut take = |role: Role| {
        let place = operands.iter().position(|operand| operand.role == role)?;
        Some(operands.remove(place))
    };
    let mut blocks = Vec::new();
    // If other samples have run, the operation's access alone would overwrite their sum, or change their result.
    let mut adds = false;
    for (place, used) in lowered.step.uses(operation, phase) {
        let role = lowered.passes[operation.0].roles[place];
        let whole = if again { used.access_in_rerun() } else { used.access };
        let access = |adds: bool| phase.access(whole, lowered.step.has_samples(used), adds);
        match take(role) {
            Some(operand) if operand.access == access(false) => blocks.push(operand.block),
            Some(operand) if operand.access == access(true) => {
                adds = true;
                blocks.push(operand.block);
            }
            Some(_) => return bad("has the wrong access", role),
            None => return bad("is missing", role),
        }
    }
    let workspace = match take(Role::Workspace) {
        Some(OperandObject { access: Access::Write, block, .. }) => Some(block),
        Some(_) => return bad("is only read", Role::Workspace),
        None => None,
    };
    match operands.first() {
        Some(left) => bad("is not used", left.role),
        None => Ok(Compute { operation, phase, blocks, workspace, samples, configuration, again, adds }),
    }
}
