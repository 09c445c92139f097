//! A recorded step, and who writes and reads each of its tensors.

use std::fmt;
use std::sync::OnceLock;

use tightfit_conv::Configuration;
use tightfit_units::{Error, Nanos};

use crate::step::{Access, Again, Cost, Machine, Operation as Of, Residence, StepFile, Tensor as TensorOf};

/// Bytes per microsecond of a copy, if a step file names no machine.
const LINK_RATE: f64 = 55e3;

/// A plan that cannot be carried out; the text gives the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impossible(pub String);

impl fmt::Display for Impossible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Impossible {}

/// Marks the absence of an operation or tensor.
pub(super) const NONE: usize = usize::MAX;

pub(super) struct Tensor {
    pub(super) bytes: i64,
    pub(super) resident: bool,
    pub(super) movable: bool,
    /// Whether autograd saves it.
    pub(super) saved: bool,
    /// The tensor whose bytes an operation changes in place to make this one.
    pub(super) before: usize,
    /// The first and the last operation that uses it, the last of the forward pass and the first of the backward pass; or [`NONE`].
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) last_forward: usize,
    pub(super) first_backward: usize,
    /// Operations of the forward pass that compute or change it.
    pub(super) writers: Vec<usize>,
}

pub(super) struct Operation {
    pub(super) name: String,
    pub(super) reads: Vec<usize>,
    pub(super) writes: Vec<usize>,
    pub(super) adds: Vec<usize>,
    pub(super) time_us: f64,
    pub(super) rerun_us: f64,
    pub(super) scratch: i64,
    /// Its allocations and releases of workspace, in order: the bytes of a block, 0 for a result, or -n to release the n-th block.
    pub(super) workspaces: Vec<i64>,
    pub(super) may_rerun: bool,
}

/// A recorded step of a program whose saved tensors can be evicted and brought back.
pub struct EagerStep {
    pub(super) tensors: Vec<Tensor>,
    pub(super) operations: Vec<Operation>,
    /// The first operation after the forward pass.
    pub(super) backward_start: usize,
    /// Packs and unpacks: the only events visible from outside a step.
    pub(super) packs: Vec<usize>,
    pub(super) unpacks: Vec<usize>,
    /// The start time of each operation if nothing is evicted, and the end of the step.
    pub(super) begins: Vec<f64>,
    /// Rates of copies in bytes per microsecond.
    pub(super) out_rate: f64,
    pub(super) in_rate: f64,
    /// The time that each copy adds to the step.
    pub(super) copy_us: f64,
    /// The slowdown of operations during copies.
    pub(super) slowdown: f64,
    pub(super) host: i64,
    pub(super) closures: Vec<OnceLock<Result<Vec<usize>, Impossible>>>,
}

impl EagerStep {
    /// Reads the text of a step file.
    ///
    /// # Errors
    /// The errors of [`StepFile::from_json`].
    pub fn from_json(text: &str) -> Result<EagerStep, Error> {
        StepFile::from_json(text).map(EagerStep::of)
    }

    /// Converts a step file, and indexes reads and writes.
    pub fn of(file: StepFile) -> EagerStep {
        let StepFile { step, machine } = file;
        let backward_start = step.forward();
        let mut tensors: Vec<Tensor> = step.tensors.iter().map(tensor).collect();
        let operations: Vec<Operation> = step.operations.iter().map(operation).collect();
        let of_name = |name: &str, from: usize, to: usize| -> Vec<usize> {
            (from..to).filter(|&index| operations[index].name == name).collect()
        };
        let (packs, unpacks) =
            (of_name("pack", 0, backward_start), of_name("unpack", backward_start, operations.len()));
        for (index, operation) in operations.iter().enumerate() {
            for &number in operation.reads.iter().chain(&operation.writes).chain(&operation.adds) {
                let tensor = &mut tensors[number];
                if tensor.first == NONE {
                    tensor.first = index;
                }
                tensor.last = index;
                if index < backward_start {
                    tensor.last_forward = index;
                } else if tensor.first_backward == NONE {
                    tensor.first_backward = index;
                }
            }
            if index < backward_start {
                for &number in operation.writes.iter().chain(&operation.adds) {
                    tensors[number].writers.push(index);
                }
            }
            if let ("pack", Some(&number)) = (operation.name.as_str(), operation.reads.first()) {
                tensors[number].saved = true;
            }
        }
        let mut begins = vec![0.0];
        begins.extend(operations.iter().scan(0.0, |now, operation| {
            *now += operation.time_us;
            Some(*now)
        }));
        let rate = |of: fn(&Machine) -> f64| machine.as_ref().map_or(LINK_RATE, |machine| of(machine) / 1e6);
        EagerStep {
            out_rate: rate(|machine| machine.to_host_bytes_per_s),
            in_rate: rate(|machine| machine.to_device_bytes_per_s),
            copy_us: machine.as_ref().map_or(0.0, |machine| machine.copy_host_us),
            slowdown: machine.as_ref().map_or(1.0, |machine| machine.slowdown_beside_copies),
            host: machine.as_ref().and_then(|machine| machine.host_bytes).map_or(i64::MAX, |bytes| bytes.0 as i64),
            closures: tensors.iter().map(|_| OnceLock::new()).collect(),
            tensors,
            operations,
            backward_start,
            packs,
            unpacks,
            begins,
        }
    }
}

fn tensor(of: &TensorOf) -> Tensor {
    Tensor {
        bytes: of.bytes.0 as i64,
        resident: of.residence == Residence::Resident,
        movable: of.residence == Residence::Movable,
        saved: false,
        before: of.in_place_of.map_or(NONE, |before| before.0),
        first: NONE,
        last: NONE,
        last_forward: NONE,
        first_backward: NONE,
        writers: Vec::new(),
    }
}

fn operation(of: &Of) -> Operation {
    let used = |access: Access| of.uses.iter().filter(move |used| used.access == access).map(|used| used.tensor.0);
    // The fastest choice.
    let (time, scratch) = match &of.cost {
        Cost::Fixed(time) => (*time, 0),
        Cost::Choice(front) => fastest(&front.divided),
        Cost::Listed(choices) => fastest(choices),
    };
    let again = match of.again {
        Again::Taking(again) if again > Nanos::ZERO => again,
        _ => time,
    };
    let known = &of.workspaces;
    Operation {
        name: of.name.clone(),
        reads: used(Access::Read).collect(),
        writes: used(Access::Write).collect(),
        adds: used(Access::Add).collect(),
        time_us: time.as_micros(),
        rerun_us: again.as_micros(),
        scratch,
        workspaces: if known.is_empty() && scratch > 0 { vec![scratch, -1] } else { known.clone() },
        may_rerun: of.again != Again::Never,
    }
}

fn fastest(choices: &[Configuration]) -> (Nanos, i64) {
    choices.last().map_or((Nanos::ZERO, 0), |choice| (choice.time(), choice.workspace().0 as i64))
}
