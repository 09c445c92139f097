//! A recorded step, and who writes and reads each of its tensors.

use std::sync::OnceLock;

use serde::Deserialize;

use super::rerun::{self, Impossible};

/// What stands for no operation or tensor.
pub(super) const NONE: usize = usize::MAX;

#[derive(Deserialize)]
struct FileContent {
    #[serde(default)]
    tensors: Vec<TensorLine>,
    operations: Vec<OperationLine>,
    #[serde(default)]
    machine: MachineLine,
}

#[derive(Deserialize)]
struct TensorLine {
    bytes: i64,
    residence: String,
    #[serde(default)]
    in_place_of: Option<usize>,
}

#[derive(Deserialize)]
struct OperationLine {
    #[serde(default)]
    name: String,
    stage: String,
    #[serde(default)]
    reads: Vec<usize>,
    #[serde(default)]
    writes: Vec<usize>,
    #[serde(default)]
    adds: Vec<usize>,
    #[serde(default)]
    time_us: f64,
    #[serde(default)]
    rerun_time_us: Option<f64>,
    #[serde(default)]
    workspace_bytes: Option<i64>,
    #[serde(default)]
    workspaces: Option<Vec<i64>>,
    #[serde(default)]
    rerun: serde_json::Value,
}

#[derive(Deserialize)]
#[serde(default)]
struct MachineLine {
    to_host_bytes_per_s: f64,
    to_device_bytes_per_s: f64,
    slowdown_beside_copies: f64,
    host_bytes: Option<i64>,
}

impl Default for MachineLine {
    fn default() -> MachineLine {
        MachineLine {
            to_host_bytes_per_s: 55e9,
            to_device_bytes_per_s: 55e9,
            slowdown_beside_copies: 1.0,
            host_bytes: None,
        }
    }
}

pub(super) struct Tensor {
    pub(super) bytes: i64,
    pub(super) resident: bool,
    pub(super) movable: bool,
    /// Whether autograd saves it.
    pub(super) saved: bool,
    /// The tensor whose bytes an operation changes in place to make this one.
    pub(super) before: usize,
    /// The first operation that has to do with it, the last one, and of each pass the last and the first; or [`NONE`].
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) last_forward: usize,
    pub(super) first_backward: usize,
    /// Operations of the forward pass that make or change it.
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
    /// What it takes and gives back beside its results, in order: bytes of a block, 0 for a result, and -1 where the first block goes.
    pub(super) workspaces: Vec<i64>,
    pub(super) may_rerun: bool,
}

/// A recorded step of a program whose saved tensors can be given up and brought back.
pub struct EagerStep {
    pub(super) tensors: Vec<Tensor>,
    pub(super) operations: Vec<Operation>,
    /// The first operation that is not of the forward pass.
    pub(super) turn: usize,
    /// Packs and unpacks: all that is seen of a step from outside.
    pub(super) packs: Vec<usize>,
    pub(super) unpacks: Vec<usize>,
    /// When each operation begins if nothing is given up, and the end.
    pub(super) begins: Vec<f64>,
    /// Rates of copies in bytes per microsecond.
    pub(super) out_rate: f64,
    pub(super) in_rate: f64,
    /// How much longer operations take beside copies.
    pub(super) slowdown: f64,
    pub(super) host: i64,
    closures: Vec<OnceLock<Result<Vec<usize>, Impossible>>>,
}

impl EagerStep {
    /// Reads the text of a step file.
    ///
    /// # Errors
    /// If it is none, or names tensors that it has not.
    pub fn from_json(text: &str) -> Result<EagerStep, Impossible> {
        let content: FileContent = serde_json::from_str(text).map_err(|error| Impossible(error.to_string()))?;
        let count = content.tensors.len();
        for (index, operation) in content.operations.iter().enumerate() {
            let mut used = operation.reads.iter().chain(&operation.writes).chain(&operation.adds);
            if let Some(tensor) = used.find(|&&tensor| tensor >= count) {
                return Err(Impossible(format!(
                    "operations[{index}] has tensor {tensor}, but there are {count} tensors"
                )));
            }
        }
        Ok(EagerStep::of(content))
    }

    fn of(content: FileContent) -> EagerStep {
        let of_forward = |operation: &OperationLine| operation.stage == "forward";
        let turn = content.operations.iter().position(|one| !of_forward(one)).unwrap_or(content.operations.len());
        let count = content.tensors.len();
        let tensor = |line: TensorLine| Tensor {
            bytes: line.bytes,
            resident: line.residence == "resident",
            movable: line.residence == "movable",
            saved: false,
            before: line.in_place_of.filter(|&before| before < count).unwrap_or(NONE),
            first: NONE,
            last: NONE,
            last_forward: NONE,
            first_backward: NONE,
            writers: Vec::new(),
        };
        let mut tensors: Vec<Tensor> = content.tensors.into_iter().map(tensor).collect();
        let operations: Vec<Operation> = content.operations.into_iter().map(operation).collect();
        let of_name = |name: &str, from: usize, to: usize| -> Vec<usize> {
            (from..to).filter(|&index| operations[index].name == name).collect()
        };
        let (packs, unpacks) = (of_name("pack", 0, turn), of_name("unpack", turn, operations.len()));
        for (index, operation) in operations.iter().enumerate() {
            for &number in operation.reads.iter().chain(&operation.writes).chain(&operation.adds) {
                let tensor = &mut tensors[number];
                if tensor.first == NONE {
                    tensor.first = index;
                }
                tensor.last = index;
                if index < turn {
                    tensor.last_forward = index;
                } else if tensor.first_backward == NONE {
                    tensor.first_backward = index;
                }
            }
            if index < turn {
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
        let machine = content.machine;
        EagerStep {
            closures: tensors.iter().map(|_| OnceLock::new()).collect(),
            tensors,
            operations,
            turn,
            packs,
            unpacks,
            begins,
            out_rate: machine.to_host_bytes_per_s / 1e6,
            in_rate: machine.to_device_bytes_per_s / 1e6,
            slowdown: machine.slowdown_beside_copies,
            host: machine.host_bytes.unwrap_or(i64::MAX),
        }
    }

    /// The operations that make a tensor from others that are saved, or stay, in order.
    ///
    /// # Errors
    /// If one of them may not run again, or they are too many.
    pub fn closure(&self, tensor: usize) -> Result<&[usize], Impossible> {
        let Some(known) = self.closures.get(tensor) else {
            return Err(Impossible(format!("there is no tensor {tensor}")));
        };
        known.get_or_init(|| rerun::closure(self, tensor)).as_deref().map_err(Clone::clone)
    }
}

fn operation(line: OperationLine) -> Operation {
    let scratch = line.workspace_bytes.unwrap_or(0);
    Operation {
        name: line.name,
        reads: line.reads,
        writes: line.writes,
        adds: line.adds,
        time_us: line.time_us,
        rerun_us: line.rerun_time_us.filter(|&time| time != 0.0).unwrap_or(line.time_us),
        scratch,
        workspaces: line.workspaces.unwrap_or_else(|| if scratch > 0 { vec![scratch, -1] } else { Vec::new() }),
        may_rerun: !line.rerun.is_null() && line.rerun != "never",
    }
}
