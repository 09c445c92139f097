//! One training or inference step as data that knows no layers: tensors, and operations in order that read and write them.
//!
//! ```text
//! tensors      0 map a    1 map b    2 weights (resident)
//! operations   load: =0 | multiply: 0 2 =1 | .. | update: +2            = writes, + adds or changes in place
//! ```
//!
//! A network's layers become one ([`super::Workload::step`]); whatever else can say what it reads and writes may. Plans,
//! schedules, the checker and the simulator hang on this form alone.

mod cost;
mod lifetimes;

pub use cost::{Cost, Division, Front};
pub(super) use lifetimes::{Lifetime, Lifetimes};

use serde::{Deserialize, Serialize};

use super::{Compute, Holding, Kind};
use crate::{Bytes, Error, Nanos, Types};

/// A tensor's place in [`Step::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TensorId(pub usize);

/// An operation's place in [`Step::operations`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(pub usize);

/// A group's place in [`Step::groups`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub usize);

/// How long a tensor is there, and where it may be in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Residence {
    /// On the device from step to step, with its content.
    Resident,
    /// Made and dropped within the step; it may leave the device while nothing uses it.
    Movable,
    /// Made and dropped within the step, on the device all the while.
    Temporary,
}

/// Memory that operations read and write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// What reports call it.
    pub name: String,
    /// Its length, before rounding up to [`super::ALIGNMENT`].
    pub bytes: Bytes,
    /// What the bytes are for.
    pub kind: Kind,
    /// How long it is there.
    pub residence: Residence,
    /// Whether it is read after the step, by whoever asked for it.
    pub is_result: bool,
    /// The groups that write it, in order; the first is the one that reports name it after.
    pub groups: Vec<GroupId>,
}

/// What an operation does with a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// Reads it.
    Read,
    /// Overwrites it, whatever it held. With a read of the same tensor by the same operation: works in place.
    Write,
    /// Adds to what it holds, or changes it in place.
    Add,
}

/// What becomes of a tensor when its operation runs a second time in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Again {
    /// It is accessed as the first time.
    Alike,
    /// It is only read, with what the first run left: statistics that count each mini-batch once, a saved random mask.
    Kept,
}

/// A tensor as an operation uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Use {
    /// Which.
    pub tensor: TensorId,
    /// What is done with it.
    pub access: Access,
    /// What is done with it when the operation runs again.
    pub again: Again,
}

impl Use {
    /// What a first or a further run of the operation does with it.
    pub fn access_of_run(&self, again: bool) -> Access {
        match self.again {
            Again::Kept if again => Access::Read,
            Again::Kept | Again::Alike => self.access,
        }
    }
}

/// The part of a step that an operation belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// Going forward.
    Forward,
    /// Going backward.
    Backward,
    /// The solver.
    Update,
}

/// What policies that were published for certain operations have to know of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tag {
    /// A convolution.
    Convolution,
    /// A pooling.
    Pooling,
    /// Anything else.
    Other,
}

/// What an operation keeps busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Resource {
    /// The device's arithmetic and memory.
    Device,
    /// The link from the host: the upload of a mini-batch.
    Link,
}

/// Something that is computed once in a step, in one go.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// Which part of the model it is of.
    pub group: GroupId,
    /// What it is within its group: `forward`.
    pub name: String,
    /// Which part of the step it is of.
    pub stage: Stage,
    /// What it is to policies.
    pub tag: Tag,
    /// What it keeps busy.
    pub resource: Resource,
    /// The tensors that it touches, those that it reads first.
    pub uses: Vec<Use>,
    /// How long it takes, and in how much workspace.
    pub cost: Cost,
}

/// A part of the model as people know it: a layer, a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its name.
    pub name: String,
    /// Bytes of what it reads going forward.
    pub input: Bytes,
    /// Bytes of what it gives; nothing where that is its input, changed in place.
    pub output: Bytes,
    /// Bytes of its weights.
    pub weights: Bytes,
}

/// Whether a step learns. In files it is whether it is inference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "bool", into = "bool")]
pub enum Mode {
    /// Forward, backward, update.
    Training,
    /// Forward alone: what was computed goes after its last use.
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
    /// What reports call the model.
    pub name: String,
    /// Samples of one step.
    pub batch: usize,
    /// Number types of its arithmetic.
    pub types: Types,
    /// Whether it learns.
    pub mode: Mode,
    /// All tensors, those that may move in the order in which they are first written.
    pub tensors: Vec<Tensor>,
    /// All operations in an order in which they can run; those that go forward first.
    pub operations: Vec<Operation>,
    /// The parts of the model.
    pub groups: Vec<Group>,
}

impl Step {
    /// One tensor.
    ///
    /// # Panics
    /// If there is none of this place.
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id.0]
    }

    /// One operation.
    ///
    /// # Panics
    /// If there is none of this place.
    pub fn operation(&self, id: OperationId) -> &Operation {
        &self.operations[id.0]
    }

    /// The name of an operation's group, or nothing if there is no such operation.
    pub fn group_name(&self, id: OperationId) -> &str {
        let group = self.operations.get(id.0).and_then(|operation| self.groups.get(operation.group.0));
        group.map_or("", |group| &group.name)
    }

    /// What a block holds, in words.
    pub fn describe(&self, holds: Holding) -> String {
        match holds {
            Holding::Tensor(id) => self.tensors.get(id.0).map(|tensor| tensor.name.clone()).unwrap_or_default(),
            Holding::Workspace(id) => {
                format!("workspace {}", self.groups.get(id.0).map_or("", |group| group.name.as_str()))
            }
        }
    }

    /// What the bytes of a block are for.
    ///
    /// # Panics
    /// If the step has no such tensor.
    pub fn kind(&self, holds: Holding) -> Kind {
        match holds {
            Holding::Tensor(id) => self.tensor(id).kind,
            Holding::Workspace(_) => Kind::Workspace,
        }
    }

    /// How many of the operations go forward: they come first.
    pub fn forward(&self) -> usize {
        self.operations.iter().take_while(|operation| operation.stage == Stage::Forward).count()
    }

    /// Time of an operation as a schedule has it run.
    ///
    /// # Panics
    /// If the step has no such operation.
    pub fn time(&self, compute: &Compute) -> Nanos {
        match &self.operation(compute.operation).cost {
            Cost::Fixed(time) => *time,
            Cost::Choice(_) => compute.configuration.as_ref().map_or(Nanos::ZERO, |chosen| chosen.time()),
        }
    }

    /// The same work without what it costs: what a schedule has to know of it.
    pub fn without_costs(&self) -> Step {
        let mut step = self.clone();
        step.operations.iter_mut().for_each(|operation| operation.cost = operation.cost.forgotten());
        step
    }

    /// Refuses operations that name what is not there or use what was never written, and a backward pass before the last
    /// forward one.
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
                return Err(bad("goes forward after an operation that goes backward".to_owned()));
            }
            for used in &operation.uses {
                let Some(written) = written.get_mut(used.tensor.0) else {
                    return Err(bad(format!("there is no tensor {}", used.tensor.0)));
                };
                if used.access != Access::Write && !*written {
                    return Err(bad(format!("reads {} before anything has written it", self.tensor(used.tensor).name)));
                }
                *written = true;
            }
        }
        match self.tensors.iter().find(|tensor| tensor.groups.iter().any(|group| group.0 >= self.groups.len())) {
            Some(tensor) => Err(Error::BadStep {
                step: self.name.clone(),
                operation: tensor.name.clone(),
                what: "is of a group that is not there".to_owned(),
            }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Fronts, Workload};
    use crate::{Network, Types};

    /// The step of a small network once `spoil` has changed it: what is wrong with it.
    fn fault(spoil: impl FnOnce(&mut Step)) -> String {
        let network = Network::open("lenet").unwrap();
        let workload = Workload::new(&network, 4, Types::F32, Mode::Training).unwrap();
        let mut step = workload.step(&Fronts::default(), &crate::plan::CostModel::cpu()).unwrap();
        step.check().unwrap();
        spoil(&mut step);
        step.check().unwrap_err().to_string()
    }

    #[test]
    fn a_step_that_does_not_fit_together_is_refused() {
        let unwritten = fault(|step| _ = step.operations.remove(0));
        assert!(
            unwritten.contains("conv1 forward: reads feature map input before anything has written it"),
            "{unwritten}"
        );
        let unknown = fault(|step| step.operations[2].uses[0].tensor = TensorId(999));
        assert!(unknown.ends_with("there is no tensor 999"), "{unknown}");
        let group = fault(|step| step.operations[2].group = GroupId(999));
        assert!(group.ends_with("there is no group 999"), "{group}");
        let late = fault(|step| {
            let last = step.operations.len() - 1;
            step.operations[last].stage = Stage::Forward;
        });
        assert!(late.ends_with("goes forward after an operation that goes backward"), "{late}");
    }
}
