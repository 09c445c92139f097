//! The schedule of a step file's plan, in terms of the step's tensors and operations by number. Its keys are a stable format.
//!
//! ```json
//! {"device_bytes": .., "host_bytes": ..,
//!  "blocks": [{"tensor": 2, "offset": 0, "bytes": 1024, "samples": [0, 8], "resident": false}, {"workspace": 1, ..}, ..],
//!  "host_blocks": [{"tensor": 2, "offset": 0, "bytes": 1024}, ..],
//!  "instructions": [{"stream": "compute", "compute": {"operation": 4, "blocks": [0], "samples": [0, 8], ..}}, ..]}
//! ```
//!
//! The structs below mirror the document key for key, so the internal types stay free to change.

use std::convert::Infallible;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use tightfit_conv::Configuration;
use tightfit_units::Bytes;

use crate::file::action::ActionObject;
use crate::step::{GroupId, OperationId, Phase, Step, TensorId};
use crate::{Block, BlockId, Compute, Holding, HostBlock, Instruction, Schedule, Stream};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    pub device_bytes: Bytes,
    pub host_bytes: Bytes,
    pub blocks: Vec<BlockObject>,
    host_blocks: Vec<HostBlockObject>,
    pub instructions: Vec<InstructionObject>,
}

/// First and last sample, the last one exclusive.
type Samples = [usize; 2];

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BlockObject {
    #[serde(flatten)]
    holds: HoldingObject,
    pub offset: u64,
    bytes: u64,
    samples: Samples,
    #[serde(default, skip_serializing_if = "is_false")]
    resident: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum HoldingObject {
    Tensor(usize),
    /// Scratch memory of a group.
    Workspace(usize),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct HostBlockObject {
    tensor: usize,
    offset: u64,
    bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InstructionObject {
    stream: Stream,
    #[serde(flatten)]
    action: ActionObject<ComputeObject>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ComputeObject {
    operation: usize,
    #[serde(default, skip_serializing_if = "Phase::is_whole")]
    phase: Phase,
    blocks: Vec<BlockId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workspace: Option<BlockId>,
    samples: Samples,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    configuration: Option<Configuration>,
    #[serde(default, skip_serializing_if = "is_false")]
    again: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    adds: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

fn written(samples: &Range<usize>) -> Samples {
    [samples.start, samples.end]
}

fn read([first, last]: Samples) -> Range<usize> {
    first..last
}

impl Document {
    pub fn of(schedule: &Schedule) -> Document {
        let block = |block: &Block| BlockObject {
            holds: match block.holds {
                Holding::Tensor(TensorId(tensor)) => HoldingObject::Tensor(tensor),
                Holding::Workspace(GroupId(group)) => HoldingObject::Workspace(group),
            },
            offset: block.offset,
            bytes: block.bytes,
            samples: written(&block.samples),
            resident: block.resident,
        };
        let host_block =
            |block: &HostBlock| HostBlockObject { tensor: block.tensor.0, offset: block.offset, bytes: block.bytes };
        let instruction = |instruction: &Instruction| InstructionObject {
            stream: instruction.stream,
            action: ActionObject::of(&instruction.action, |compute| ComputeObject {
                operation: compute.operation.0,
                phase: compute.phase,
                blocks: compute.blocks.clone(),
                workspace: compute.workspace,
                samples: written(&compute.samples),
                configuration: compute.configuration.clone(),
                again: compute.again,
                adds: compute.adds,
            }),
        };
        Document {
            device_bytes: schedule.device_bytes,
            host_bytes: schedule.host_bytes,
            blocks: schedule.blocks.iter().map(block).collect(),
            host_blocks: schedule.host_blocks.iter().map(host_block).collect(),
            instructions: schedule.instructions.iter().map(instruction).collect(),
        }
    }

    /// The schedule of a step, unchecked.
    pub fn schedule(self, step: &Step) -> Schedule {
        let block = |block: BlockObject| Block {
            holds: match block.holds {
                HoldingObject::Tensor(tensor) => Holding::Tensor(TensorId(tensor)),
                HoldingObject::Workspace(group) => Holding::Workspace(GroupId(group)),
            },
            offset: block.offset,
            bytes: block.bytes,
            samples: read(block.samples),
            resident: block.resident,
        };
        let host_block = |block: HostBlockObject| HostBlock {
            tensor: TensorId(block.tensor),
            offset: block.offset,
            bytes: block.bytes,
        };
        let compute = |compute: ComputeObject| {
            Ok::<_, Infallible>(Compute {
                operation: OperationId(compute.operation),
                phase: compute.phase,
                blocks: compute.blocks,
                workspace: compute.workspace,
                samples: read(compute.samples),
                configuration: compute.configuration,
                again: compute.again,
                adds: compute.adds,
            })
        };
        let instruction = |instruction: InstructionObject| {
            let Ok(action) = instruction.action.action(compute);
            Instruction { stream: instruction.stream, action }
        };
        Schedule {
            batch: step.batch,
            types: step.types,
            device_bytes: self.device_bytes,
            host_bytes: self.host_bytes,
            blocks: self.blocks.into_iter().map(block).collect(),
            host_blocks: self.host_blocks.into_iter().map(host_block).collect(),
            instructions: self.instructions.into_iter().map(instruction).collect(),
        }
    }
}
