//! One training or inference step as data, without layers: tensors, and the operations that read and write them, in
//! order.
//!
//! ```text
//! tensors      0 map a    1 map b    2 weights (resident)
//! operations   load: =0 | multiply: 0 2 =1 | .. | update: +2            = writes, + adds or changes in place
//! ```
//!
//! Lowering turns a network into a step ([`crate::Workload::step`]). Any other program that can list its reads and writes can be a step too. Plans,
//! schedules, the checker and the simulator depend only on this form.
//!
//! - `cost` has the time and workspace of operations, `kind` the kinds of memory, `lifetimes` the uses of tensors, and `part` runs over some samples.
//! - `rates` has what plans know of a device and its link; `machines` and `cards` list the known ones.
//! - `file` reads and writes step files, with the `machine` in them.

mod cards;
mod cost;
mod file;
mod kind;
mod lifetimes;
mod machine;
mod machines;
mod part;
mod pass;
pub(crate) mod rates;

pub use cost::{Cost, Division, Front};
pub use file::StepFile;
pub use kind::{Kind, KindBytes};
pub(crate) use lifetimes::{Lifetime, Lifetimes};
pub use machine::Machine;
pub use machines::MACHINES;
pub use part::Phase;
pub(crate) use part::{part_numbers, part_sizes};
pub use pass::Pass;
pub(crate) use rates::{APART, AVERAGE_APART, BIAS, DENSE, SUM};
pub use rates::{CostModel, Direction, Figure, MAX_LANES, NamedMachine};

use serde::{Deserialize, Serialize};
use tightfit_conv::Types;
use tightfit_units::{Bytes, Error, Nanos};

/// Every block, and every parameter inside its block, begins at a multiple of this many bytes. The fastest algorithms
/// of every backend need this alignment.
pub const ALIGNMENT: u64 = 256;

/// The bytes that a block of this size occupies in its arena.
pub fn footprint(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGNMENT)
}

/// A tensor's index in [`Step::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TensorId(pub usize);

/// An operation's index in [`Step::operations`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(pub usize);

/// A group's index in [`Step::groups`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub usize);

/// How long a tensor lives, and whether it may leave the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Residence {
    /// Keeps its place and content on the device between steps.
    Resident,
    /// Lives within one step and may leave the device while unused.
    Movable,
    /// Lives within one step, always on the device.
    Temporary,
}

/// A piece of memory that operations read and write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name in reports.
    pub name: String,
    /// Its length, before rounding up to [`crate::ALIGNMENT`].
    pub bytes: Bytes,
    /// The kind of memory it counts as.
    pub kind: Kind,
    /// How long it lives.
    pub residence: Residence,
    /// Whether it is a result, read after the step.
    pub is_result: bool,
    /// The groups that write it, in order; reports name it after the first one.
    pub groups: Vec<GroupId>,
    /// The tensor whose bytes it shares, if it is a view; operations then refer to that tensor alone.
    pub alias: Option<TensorId>,
    /// The tensor whose bytes an operation changes in place to make this one, where a program's allocator places both; such an operation
    /// reads it.
    pub in_place_of: Option<TensorId>,
    /// The bytes that one sample needs; `None` if it has no samples or if that is unknown.
    pub sample_bytes: Option<Bytes>,
}

/// How an operation accesses a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Reads it.
    Read,
    /// Overwrites it. An operation that also reads the same tensor works in place.
    Write,
    /// Adds to its content, or changes it in place.
    Add,
}

/// How an operation accesses a tensor when it reruns within a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rerun {
    /// As in the first run.
    Same,
    /// It only reads the first run's output, such as statistics that count each mini-batch once or a saved random mask.
    ReadOnly,
}

/// An operation's use of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Use {
    /// The tensor.
    pub tensor: TensorId,
    /// The access in the first run.
    pub access: Access,
    /// The access in a rerun.
    pub rerun: Rerun,
}

impl Use {
    /// The access in a rerun; [`Use::access`] is the access in the first run.
    pub fn access_in_rerun(&self) -> Access {
        match self.rerun {
            Rerun::ReadOnly => Access::Read,
            Rerun::Same => self.access,
        }
    }
}

/// The phase of a step that an operation belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Going forward.
    Forward,
    /// Going backward.
    Backward,
    /// The solver.
    Update,
}

/// The kind of operation, in the distinctions that published policies make.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tag {
    /// A convolution.
    Convolution,
    /// Another layer of the feature extraction: pooling, normalization, activation, concatenation, sum, dropout of maps
    /// that have spatial extents.
    Feature,
    /// Any other operation: the input, the classifier, the solver's updates of its parameters.
    Other,
}

/// The resource an operation keeps busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// The device's arithmetic and memory.
    Device,
    /// The link from the host, for the upload of a mini-batch.
    Link,
}

/// One unit of computation in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// The part of the model it belongs to.
    pub group: GroupId,
    /// Its name within its group, such as `forward`.
    pub name: String,
    /// The phase of the step it belongs to.
    pub stage: Stage,
    /// Its kind for policies.
    pub tag: Tag,
    /// The resource it keeps busy.
    pub resource: Resource,
    /// The tensors it uses, reads first.
    pub uses: Vec<Use>,
    /// Its time and workspace.
    pub cost: Cost,
    /// Whether and how fast it may run again in the same step.
    pub again: Again,
    /// Whether each output sample depends only on the same input sample, and weight gradients are sums over the samples.
    pub independent_samples: bool,
    /// The time of a separate call for its sums over all samples. Set if each output sample depends only on the same input sample and on these sums,
    /// as in batch normalization. The sums are the outputs without samples that it overwrites. [`Phase`] describes how it then runs in parts.
    pub sums: Option<Nanos>,
    /// Its allocations and releases of workspace as recorded by a program's allocator, in order: bytes of a block, 0 for a result, and -n to release
    /// the n-th block. Empty if only their sum is known.
    pub workspaces: Vec<i64>,
}

/// Whether an operation may run again within a step, and the time of a rerun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Again {
    /// It may not.
    Never,
    /// It may, and takes the time of the first run.
    Allowed,
    /// It may, in this time.
    Taking(Nanos),
}

/// A named part of the model, such as a layer or a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Bytes of its inputs going forward.
    pub input: Bytes,
    /// Bytes of its output; 0 if it changes its input in place.
    pub output: Bytes,
    /// Bytes of its weights.
    pub weights: Bytes,
}

/// Training or inference. Files store it as a flag for inference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "bool", into = "bool")]
pub enum Mode {
    /// Forward, backward, update.
    Training,
    /// Forward only; every map is released after its last use.
    Inference,
}

impl From<bool> for Mode {
    fn from(is_inference: bool) -> Mode {
        if is_inference { Mode::Inference } else { Mode::Training }
    }
}

impl From<Mode> for bool {
    fn from(mode: Mode) -> bool {
        mode == Mode::Inference
    }
}

/// A step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Name of the model in reports.
    pub name: String,
    /// Samples of one step.
    pub batch: usize,
    /// Number types of its arithmetic.
    pub types: Types,
    /// Training or inference.
    pub mode: Mode,
    /// All tensors; the movable ones in the order of their first write.
    pub tensors: Vec<Tensor>,
    /// All operations in a valid order of execution; forward ones first.
    pub operations: Vec<Operation>,
    /// The parts of the model.
    pub groups: Vec<Group>,
}

impl Step {
    /// One tensor.
    ///
    /// # Panics
    /// If the index is out of range.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0]
    }

    /// One operation.
    ///
    /// # Panics
    /// If the index is out of range.
    pub fn operation(&self, id: OperationId) -> &Operation {
        &self.operations[id.0]
    }

    /// The name of an operation's group; empty for an unknown operation.
    pub fn group_name(&self, id: OperationId) -> &str {
        let group = self.operations.get(id.0).and_then(|operation| self.groups.get(operation.group.0));
        group.map_or("", |group| &group.name)
    }

    /// The number of forward operations, which come first.
    pub fn forward(&self) -> usize {
        self.operations.iter().take_while(|operation| operation.stage == Stage::Forward).count()
    }

    /// The step without costs, which is all that a schedule depends on.
    pub fn without_costs(&self) -> Step {
        let mut step = self.clone();
        for operation in &mut step.operations {
            operation.cost = operation.cost.forgotten();
            if operation.again != Again::Never {
                operation.again = Again::Allowed;
            }
            operation.sums = operation.sums.map(|_| Nanos::ZERO);
        }
        step
    }

    /// Rejects operations that refer to missing groups or tensors or read unwritten tensors, and backward operations
    /// before the last forward one.
    ///
    /// # Errors
    /// [`Error::BadStep`] with the operation.
    pub fn check(&self) -> Result<(), Error> {
        let mut written: Vec<bool> =
            self.tensors.iter().map(|tensor| tensor.residence == Residence::Resident).collect();
        let forward = self.forward();
        for (place, operation) in self.operations.iter().enumerate() {
            let bad = |what: String| Error::BadStep {
                step: self.name.clone(),
                operation: format!("{} {}", self.group_name(OperationId(place)), operation.name),
                what,
            };
            if operation.group.0 >= self.groups.len() {
                return Err(bad(format!("there is no group {}", operation.group.0)));
            }
            if place >= forward && operation.stage == Stage::Forward {
                return Err(bad("is a forward operation after a backward one".to_owned()));
            }
            for used in &operation.uses {
                let Some(written) = written.get_mut(used.tensor.0) else {
                    return Err(bad(format!("there is no tensor {}", used.tensor.0)));
                };
                if used.access != Access::Write && !*written {
                    return Err(bad(format!("reads {} before anything writes it", self.tensor(used.tensor).name)));
                }
                *written = true;
            }
        }
        match self.tensors.iter().find(|tensor| tensor.groups.iter().any(|group| group.0 >= self.groups.len())) {
            Some(tensor) => Err(Error::BadStep {
                step: self.name.clone(),
                operation: tensor.name.clone(),
                what: "belongs to a group that does not exist".to_owned(),
            }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tightfit_conv::Types;
    use tightfit_network::Network;

    use super::*;
    use crate::{Fronts, Workload};

    /// The fault found after `spoil` has changed a small network's step.
    fn fault(spoil: impl FnOnce(&mut Step)) -> String {
        let network = Network::open("lenet").unwrap();
        let workload = Workload::new(&network, 4, Types::F32, Mode::Training).unwrap();
        let mut step = workload.step(&Fronts::default(), &crate::CostModel::cpu()).unwrap();
        step.check().unwrap();
        spoil(&mut step);
        step.check().unwrap_err().to_string()
    }

    #[test]
    fn inconsistent_steps_are_rejected() {
        let unwritten = fault(|step| _ = step.operations.remove(0));
        assert!(unwritten.contains("conv1 forward: reads feature map input before anything writes it"), "{unwritten}");
        let unknown = fault(|step| step.operations[2].uses[0].tensor = TensorId(999));
        assert!(unknown.ends_with("there is no tensor 999"), "{unknown}");
        let group = fault(|step| step.operations[2].group = GroupId(999));
        assert!(group.ends_with("there is no group 999"), "{group}");
        let late = fault(|step| {
            let last = step.operations.len() - 1;
            step.operations[last].stage = Stage::Forward;
        });
        assert!(late.ends_with("is a forward operation after a backward one"), "{late}");
    }
}
