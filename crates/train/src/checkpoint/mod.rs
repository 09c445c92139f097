//! Weights and the state of a training run in one safetensors file.
//!
//! ```text
//! conv1.weight  conv1.bias  bn1.weight  bn1.bias  bn1.running_mean  bn1.running_var      weights, for `load`
//! solver.momentum/conv1.weight ..                                                        solver state, for `resume`
//! metadata: "tightfit": {"network": .., "step": .., "seed": .., ..}                      position in the run
//! ```
//!
//! Tensors are named LAYER.PARAMETER with PyTorch's words and shapes, so other tools can read the weights; see [`Names`].
//! All numbers are in 32 bits; a network that trains in 16 bits saves its master weights.

mod convert;
mod names;
mod torchvision;

use std::collections::{BTreeSet, HashMap};
use std::io::Read;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde::{Deserialize, Serialize};
use tightfit_plan::Workload;
use tightfit_units::{Bytes, output};

use self::convert::{Words, numbers};
pub use self::names::Names;
use self::names::{SOLVER, Slice, solver_slices, weight_slices};
use crate::data::file;
use crate::{Error, Learned};

/// The metadata key of [`Progress`].
const KEY: &str = "tightfit";
/// Bytes of a number.
const WORD: u64 = 4;
/// How many names an error lists.
const SHOWN: usize = 3;

/// A training run's position and settings, saved with its weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Name of the network.
    pub network: String,
    /// Number of steps taken.
    pub step: u64,
    /// Number of samples taken from the shuffled data.
    pub samples: u64,
    /// Seed of the initial weights, of dropout and of the order of the data.
    pub seed: u64,
    /// Name of the data set.
    pub data: String,
    /// Number of training samples in it.
    pub data_samples: u64,
    /// The solver's settings, as text.
    pub solver: String,
    /// The names of the classes, by label, if they have names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<String>,
}

/// A safetensors file with weights, read and checked.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    bytes: Vec<u8>,
}

/// Saves weights, running statistics and, if `kept` has it, the solver's state. The file is complete or the previous
/// one stays.
///
/// - Cost: the bytes of all tensors in host memory, once more.
///
/// # Errors
/// [`Error::Core`] if the file cannot be written; [`Error::Batch`] if `kept` lacks a tensor of the workload.
pub fn save(
    path: &Path,
    workload: &Workload<'_>,
    names: &Names,
    kept: &Learned,
    progress: &Progress,
) -> Result<(), Error> {
    let mut tensors = Vec::new();
    for slice in saved(workload, names) {
        let numbers = slice.of(kept).ok_or_else(|| Error::Batch {
            what: format!("no numbers for {}", slice.name),
            wanted: format!("{} in shape {:?}", slice.elements(), slice.shape),
        })?;
        tensors.push((slice.name, Words::new(slice.shape, numbers)));
    }
    let failed = |source: String| file::failed(path, "cannot be encoded as safetensors", source);
    let progress = serde_json::to_string(progress).map_err(|error| failed(error.to_string()))?;
    // One key only: a map of several has no fixed order, and equal runs are to write equal files.
    let metadata = HashMap::from([(KEY.to_owned(), progress)]);
    let bytes = safetensors::serialize(tensors, Some(metadata)).map_err(|error| failed(error.to_string()))?;
    Ok(output::write(path, bytes)?)
}

/// The bytes of the tensors in a file of [`save`]; names and shapes come on top.
pub fn size(workload: &Workload<'_>, names: &Names) -> Bytes {
    Bytes(saved(workload, names).iter().map(|slice| slice.elements() as u64 * WORD).sum())
}

/// The tensors of a file, each once: layers that share one have equal copies.
fn saved(workload: &Workload<'_>, names: &Names) -> Vec<Slice> {
    let mut known = BTreeSet::new();
    let all = weight_slices(workload, names).into_iter().chain(solver_slices(workload, names));
    all.filter(|slice| known.insert(slice.name.clone())).collect()
}

impl Checkpoint {
    /// Reads a file.
    ///
    /// - Cost: the file's bytes in host memory.
    ///
    /// # Errors
    /// [`Error::Data`] if it cannot be read, is truncated, or is not a safetensors file.
    pub fn read(path: &Path) -> Result<Checkpoint, Error> {
        let mut bytes = Vec::new();
        file::open(path)?.read_to_end(&mut bytes).map_err(|source| file::failed(path, "cannot be read", source))?;
        let checkpoint = Checkpoint { path: path.to_owned(), bytes };
        checkpoint.tensors()?;
        Ok(checkpoint)
    }

    fn tensors(&self) -> Result<SafeTensors<'_>, Error> {
        SafeTensors::deserialize(&self.bytes).map_err(|error| {
            use safetensors::SafeTensorError::{InvalidHeaderLength, MetadataIncompleteBuffer};
            let what = match error {
                InvalidHeaderLength | MetadataIncompleteBuffer => {
                    format!("is not a complete safetensors file: {} bytes are not what it announces", self.bytes.len())
                }
                // The beginning of an archive, and of a pickled object.
                _ if [&b"PK\x03\x04"[..], b"\x80\x02"].iter().any(|begin| self.bytes.starts_with(begin)) => {
                    "is a file of PyTorch; save the weights in Python: `from safetensors.torch import save_file; \
                     save_file(model.state_dict(), \"w.safetensors\")`"
                        .to_owned()
                }
                _ => "is not a safetensors file".to_owned(),
            };
            file::failed(&self.path, &what, error.to_string())
        })
    }

    /// The position of the training run that wrote the file; `None` if it was written by something else.
    ///
    /// # Errors
    /// [`Error::Data`] if the position cannot be read.
    pub fn progress(&self) -> Result<Option<Progress>, Error> {
        let read = SafeTensors::read_metadata(&self.bytes);
        let (_, metadata) =
            read.map_err(|error| file::failed(&self.path, "is not a safetensors file", error.to_string()))?;
        let text = metadata.metadata().as_ref().and_then(|metadata| metadata.get(KEY));
        let parse = |text: &String| {
            serde_json::from_str(text)
                .map_err(|source| file::failed(&self.path, "does not say which step it was saved at", source))
        };
        text.map(parse).transpose()
    }

    /// Overwrites the weights and running statistics in `learned`. Returns the names of tensors that the network does
    /// not have, other than the solver's.
    ///
    /// # Errors
    /// [`Error::Data`] if a tensor is missing, or has another shape or a type that is not floating-point.
    pub fn weights(&self, workload: &Workload<'_>, names: &Names, learned: &mut Learned) -> Result<Vec<String>, Error> {
        let slices = weight_slices(workload, names);
        self.fill(workload, &slices, learned)?;
        let known: BTreeSet<&str> = slices.iter().map(|slice| slice.name.as_str()).collect();
        let tensors = self.tensors()?;
        let extra = tensors.names().into_iter().filter(|name| is_extra(&known, name));
        let mut extra: Vec<String> = extra.map(str::to_owned).collect();
        extra.sort();
        Ok(extra)
    }

    /// Overwrites the solver's state in `kept`.
    ///
    /// # Errors
    /// As [`Checkpoint::weights`].
    pub fn solver_state(&self, workload: &Workload<'_>, names: &Names, kept: &mut Learned) -> Result<(), Error> {
        self.fill(workload, &solver_slices(workload, names), kept)
    }

    fn fill(&self, workload: &Workload<'_>, slices: &[Slice], kept: &mut Learned) -> Result<(), Error> {
        let tensors = self.tensors()?;
        let missing: Vec<&str> =
            slices.iter().map(|slice| slice.name.as_str()).filter(|name| tensors.tensor(name).is_err()).collect();
        if !missing.is_empty() {
            let shown = missing[..missing.len().min(SHOWN)].join(", ");
            let more = match missing.len().saturating_sub(SHOWN) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let name = workload.network.name();
            return Err(file::bad(&self.path, format!("has no tensor {shown}{more}, which {name} needs")));
        }
        for slice in slices {
            let found = tensors.tensor(&slice.name).map_err(|error| file::bad(&self.path, error.to_string()))?;
            let numbers = self.numbers(slice, &found)?;
            for tensor in slice.tensors() {
                if let Some(own) = kept.get_mut(&tensor).and_then(|all| all.get_mut(slice.range())) {
                    own.copy_from_slice(&numbers);
                }
            }
        }
        Ok(())
    }

    fn numbers(&self, slice: &Slice, found: &TensorView<'_>) -> Result<Vec<f32>, Error> {
        let name = &slice.name;
        if found.shape() != slice.shape {
            let (has, wanted) = (found.shape(), &slice.shape);
            return Err(file::bad(&self.path, format!("{name} has shape {has:?}, expected {wanted:?}")));
        }
        numbers(found).ok_or_else(|| {
            let dtype = found.dtype();
            file::bad(&self.path, format!("{name} has type {dtype}, expected F32, F64, F16 or BF16"))
        })
    }
}

/// Whether a tensor is neither known nor something that no network here has: solver state, PyTorch's counters.
fn is_extra(known: &BTreeSet<&str>, name: &str) -> bool {
    !known.contains(name) && !name.starts_with(SOLVER) && !name.ends_with(".num_batches_tracked")
}
