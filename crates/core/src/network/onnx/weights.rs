//! The numbers that a file holds for the parameters of its layers.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::proto::{EXTERNAL, TensorProto, data_type};
use super::value::Order;
use super::{decode, file_error};
use crate::network::{LayerId, Network};
use crate::{Bytes, Error};

/// Most bytes of weights to read.
const MOST: Bytes = Bytes::gib(64);

/// What a layer keeps from step to step, one list of numbers each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Slot {
    /// Filters of a convolution (k, c / groups, r, s) or the matrix of a fully connected layer (outputs, inputs).
    Weight,
    /// One number per filter or output.
    Bias,
    /// Batch normalization's factor per channel.
    Scale,
    /// Batch normalization's offset per channel.
    Shift,
    /// Batch normalization's running mean per channel.
    Mean,
    /// Batch normalization's running variance per channel.
    Variance,
}

/// Where the numbers of a layer's slot are.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    /// The layer.
    pub layer: LayerId,
    /// What of the layer they are.
    pub slot: Slot,
    /// Name of the initializer.
    pub initializer: String,
    /// How they are to be ordered, compared with the file.
    pub(super) order: Order,
}

/// The numbers of a layer's slot.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbers {
    /// The layer.
    pub layer: LayerId,
    /// What of the layer they are.
    pub slot: Slot,
    /// The numbers, in the order of the slot.
    pub numbers: Vec<f32>,
}

/// Reads the numbers of all sources from a file and the files beside it that hold its weights.
pub(super) fn read(path: &Path, network: &Network, sources: &[Source]) -> Result<Vec<Numbers>, Error> {
    let model = decode(path, usize::MAX, MOST.0)?;
    let tensors = model.graph.map(|graph| graph.initializer).unwrap_or_default();
    let tensors: HashMap<&str, &TensorProto> = tensors.iter().map(|tensor| (tensor.name.as_str(), tensor)).collect();
    let mut all = Vec::new();
    for source in sources {
        let wrong = |what: String| {
            let layer = &network.layer(source.layer).name;
            file_error(path, format!("layer {layer}: the weights `{}` {what}", source.initializer))
        };
        let tensor = tensors.get(source.initializer.as_str()).ok_or_else(|| wrong("are not in the file".to_owned()))?;
        let mut numbers = numbers(path, tensor).map_err(wrong)?;
        match source.order {
            Order::Same => {}
            Order::Transposed => numbers = transposed(&tensor.dims, &numbers).map_err(wrong)?,
            Order::Permuted => return Err(wrong("are rearranged before use, which is not supported".to_owned())),
        }
        all.push(Numbers { layer: source.layer, slot: source.slot, numbers });
    }
    Ok(all)
}

/// The elements of a tensor of 16-bit or 32-bit numbers.
fn numbers(path: &Path, tensor: &TensorProto) -> Result<Vec<f32>, String> {
    let size = match tensor.data_type {
        data_type::FLOAT => 4,
        data_type::FLOAT16 | data_type::BFLOAT16 => 2,
        other => return Err(format!("have data type {other}; only 32-bit and 16-bit floating point can be read")),
    };
    let count = tensor.dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(usize::try_from(dim).ok()?));
    let wanted = count.and_then(|count| count.checked_mul(size)).ok_or("are too large")?;
    let external;
    let bytes: &[u8] = if tensor.data_location == EXTERNAL {
        external = read_external(path, tensor, wanted)?;
        &external
    } else if tensor.raw_data.is_empty() && size == 4 {
        &tensor.float_data
    } else {
        &tensor.raw_data
    };
    if bytes.len() != wanted {
        return Err(format!("have {}, not the {wanted} of {:?}", Bytes(bytes.len() as u64), tensor.dims));
    }
    let half = |pair: &[u8]| [pair[0], pair[1]];
    Ok(match tensor.data_type {
        data_type::FLOAT => {
            bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
        }
        data_type::FLOAT16 => bytes.chunks_exact(2).map(|pair| half::f16::from_le_bytes(half(pair)).to_f32()).collect(),
        _ => bytes.chunks_exact(2).map(|pair| half::bf16::from_le_bytes(half(pair)).to_f32()).collect(),
    })
}

/// The bytes of a tensor in a file beside the model's.
fn read_external(path: &Path, tensor: &TensorProto, wanted: usize) -> Result<Vec<u8>, String> {
    use std::io::{Read, Seek, SeekFrom};
    let entry =
        |key: &str| tensor.external_data.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str());
    let location = entry("location").ok_or("name no file that holds them")?;
    // A model must not read files outside its folder.
    let is_plain = Path::new(location).components().all(|part| matches!(part, std::path::Component::Normal(_)));
    if !is_plain {
        return Err(format!("are in {location:?}, which is not inside the model's folder"));
    }
    let number = |key: &str| entry(key).map_or(Ok(0), str::parse::<u64>).map_err(|_| format!("have a bad {key}"));
    let offset = number("offset")?;
    let beside: PathBuf = path.parent().unwrap_or(Path::new("")).join(location);
    let failed = |error: std::io::Error| format!("cannot be read from {}: {error}", beside.display());
    let mut file = std::fs::File::open(&beside).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    if offset.checked_add(wanted as u64).is_none_or(|end| end > length) {
        return Err(format!("end at byte {offset} + {wanted} of {}, which has {length}", beside.display()));
    }
    file.seek(SeekFrom::Start(offset)).map_err(failed)?;
    let mut bytes = vec![0; wanted];
    file.read_exact(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// A matrix with rows and columns exchanged; `dims` are those of the file.
fn transposed(dims: &[i64], numbers: &[f32]) -> Result<Vec<f32>, String> {
    let [_, columns] = dims else { return Err(format!("of {dims:?} are not a matrix")) };
    let columns = usize::try_from(*columns).ok().filter(|columns| *columns > 0).ok_or("have no columns")?;
    Ok((0..columns).flat_map(|column| numbers.iter().skip(column).step_by(columns).copied()).collect())
}
