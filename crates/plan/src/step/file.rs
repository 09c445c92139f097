//! Step files: a step as JSON, with the machine that it runs on. Their keys are a stable format.
//!
//! ```json
//! {"tightfit_step": 1, "name": "small", "batch": 8, "types": "f32", "mode": "training",
//!  "tensors": [{"name": "a", "bytes": 4096, "kind": "feature-map", "residence": "movable"}, ..],
//!  "groups": [{"name": "conv1"}, ..],
//!  "operations": [{"group": 0, "name": "conv", "stage": "forward", "reads": [], "writes": [0], "time_us": 12.5}, ..]}
//! ```
//!
//! The structs below mirror the document key for key, so the internal types stay free to change. `tensor` and `operation` have the entries of the
//! lists.

mod operation;
mod tensor;

use std::path::Path;

use serde::{Deserialize, Serialize};
use tightfit_conv::Types;
use tightfit_units::{Bytes, Error, bounded};

use super::machine::bad;
use super::{Access, Group, Machine, Mode, Residence, Step, Tensor, footprint};
use operation::{MAX_BYTES, OperationObject};
use tensor::TensorObject;

/// Increased when older files could no longer be read correctly.
const VERSION: u32 = 1;
/// Size limit of an uncompressed file; a step of 5000 operations needs a few MiB.
const MAX_TEXT: Bytes = Bytes::mib(512);

/// A step with the machine that it was recorded on.
#[derive(Clone, Debug, PartialEq)]
pub struct StepFile {
    /// The step.
    pub step: Step,
    /// The link and the host of the machine, if stated.
    pub machine: Option<Machine>,
}

#[derive(Serialize, Deserialize)]
struct Document {
    tightfit_step: u32,
    name: String,
    batch: usize,
    types: Types,
    mode: ModeWord,
    tensors: Vec<TensorObject>,
    groups: Vec<GroupObject>,
    operations: Vec<OperationObject>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    machine: Option<Machine>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ModeWord {
    Training,
    Inference,
}

#[derive(Serialize, Deserialize)]
struct GroupObject {
    name: String,
}

impl StepFile {
    /// Whether a file is a step, decided by a key that every step file has; false for an unreadable file.
    pub fn is_one(path: &Path) -> bool {
        let is_json = path.to_string_lossy();
        if ![".json", ".json.gz"].iter().any(|end| is_json.ends_with(end)) {
            return false;
        }
        // The key comes first in files of this package, but may be anywhere.
        bounded::read_text(path, MAX_TEXT).is_ok_and(|text| text.contains("\"tightfit_step\""))
    }

    /// Reads a step from JSON: the inverse of [`StepFile::to_json`].
    ///
    /// Operations on a view become operations on the tensor whose bytes it shares; writing a part of a tensor counts as
    /// adding to it. Choices that are no faster than one with less workspace are dropped.
    ///
    /// # Errors
    /// [`Error::BadDocument`] with the place and the value that is wrong; the errors of [`Step::check`].
    pub fn from_json(text: &str) -> Result<StepFile, Error> {
        let document: Document = serde_json::from_str(text).map_err(bad)?;
        let step = document.step()?;
        step.check()?;
        if let Some(machine) = &document.machine {
            machine.check()?;
        }
        Ok(StepFile { step, machine: document.machine })
    }

    /// Writes the step as JSON.
    ///
    /// # Errors
    /// [`Error::BadDocument`] if it cannot be written.
    pub fn to_json(&self) -> Result<String, Error> {
        let document = Document::of(self);
        Ok(serde_json::to_string(&document).map_err(bad)? + "\n")
    }

    /// Reads a step file, compressed if its name ends in `.gz`.
    ///
    /// # Errors
    /// [`Error::File`] if it cannot be read, or with the error of [`StepFile::from_json`] as its source.
    pub fn read(path: &Path) -> Result<StepFile, Error> {
        bounded::read_document(path, MAX_TEXT, "step", StepFile::from_json)
    }
}

impl Document {
    fn step(&self) -> Result<Step, Error> {
        if self.tightfit_step != VERSION {
            return Err(bad(format!(
                "it is of version {}, but this program reads version {VERSION}",
                self.tightfit_step
            )));
        }
        if self.batch == 0 {
            return Err(bad("batch is 0; a step has at least one sample"));
        }
        if self.operations.is_empty() {
            return Err(bad("operations is empty; a step has at least one"));
        }
        let roots = self.roots()?;
        let count = self.tensors.len();
        let is_unknown = |tensor: &TensorObject| tensor.in_place_of.is_some_and(|before| before >= count);
        if let Some(place) = self.tensors.iter().position(is_unknown) {
            return Err(bad(format!(
                "tensors[{place}].in_place_of names a tensor that does not exist; there are {count} tensors"
            )));
        }
        let mut tensors: Vec<Tensor> = self.tensors.iter().map(TensorObject::tensor).collect();
        let mut written: Vec<bool> = tensors.iter().map(|tensor| tensor.residence == Residence::Resident).collect();
        let mut operations = Vec::with_capacity(self.operations.len());
        for (place, operation) in self.operations.iter().enumerate() {
            let operation = operation.operation(place, (self.groups.len(), self.batch), &roots, &mut written)?;
            for used in operation.uses.iter().filter(|used| used.access != Access::Read) {
                let groups = &mut tensors[used.tensor.0].groups;
                if !groups.contains(&operation.group) {
                    groups.push(operation.group);
                }
            }
            operations.push(operation);
        }
        let group = |group: &GroupObject| Group {
            name: group.name.clone(),
            input: Bytes::ZERO,
            output: Bytes::ZERO,
            weights: Bytes::ZERO,
        };
        Ok(Step {
            name: self.name.clone(),
            batch: self.batch,
            types: self.types,
            mode: match self.mode {
                ModeWord::Training => Mode::Training,
                ModeWord::Inference => Mode::Inference,
            },
            tensors,
            operations,
            groups: self.groups.iter().map(group).collect(),
        })
    }

    /// For each tensor: the tensor that finally provides its bytes.
    fn roots(&self) -> Result<Vec<usize>, Error> {
        let mut total: u64 = 0;
        let mut roots = Vec::with_capacity(self.tensors.len());
        for (place, tensor) in self.tensors.iter().enumerate() {
            let mut root = place;
            for _ in 0..=self.tensors.len() {
                let Some(alias) = self.tensors[root].alias else { break };
                if alias >= self.tensors.len() {
                    return Err(bad(format!("tensors[{root}].alias is {alias}, but there are {}", self.tensors.len())));
                }
                root = alias;
            }
            if self.tensors[root].alias.is_some() {
                return Err(bad(format!("tensors[{place}].alias leads back to itself")));
            }
            let (own, whole) = (tensor.bytes, self.tensors[root].bytes);
            if own > whole {
                return Err(bad(format!("tensors[{place}] is a view of {own}, but tensors[{root}] has only {whole}")));
            }
            if root == place {
                total = total.saturating_add(own.0.checked_next_multiple_of(footprint(1)).unwrap_or(u64::MAX));
            }
            if total > MAX_BYTES {
                return Err(bad(format!(
                    "tensors[{place}].bytes is {}: all together exceed {}",
                    own.0,
                    Bytes(MAX_BYTES)
                )));
            }
            roots.push(root);
        }
        Ok(roots)
    }

    fn of(file: &StepFile) -> Document {
        let StepFile { step, machine } = file;
        Document {
            tightfit_step: VERSION,
            name: step.name.clone(),
            batch: step.batch,
            types: step.types,
            mode: if step.mode == Mode::Training { ModeWord::Training } else { ModeWord::Inference },
            tensors: step.tensors.iter().map(TensorObject::of).collect(),
            groups: step.groups.iter().map(|group| GroupObject { name: group.name.clone() }).collect(),
            operations: step.operations.iter().map(OperationObject::of).collect(),
            machine: *machine,
        }
    }
}
