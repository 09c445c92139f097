//! Networks: layers as a directed acyclic graph in topological order, each with its output shape per sample.
//!
//! ```text
//! built_in("resnet18"), a layer list, or a Builder
//!        |
//!     Network  input -> conv1 -> conv1.bn -> conv1.relu -> pool1 -+-> l1.0.c1 -> .. -> l1.0.c2.bn -+-> l1.0 -> ..
//!        |                                                        `--------------------------------'
//!     kernels(mini-batch, operations)                  one problem per convolution and operation
//!        |
//!     distinct                                         each distinct problem, with its kernels
//! ```
//!
//! ```
//! use tightfit_conv::{Layout, Operation, Types};
//! use tightfit_network::{built_in, distinct};
//!
//! let network = built_in("resnet18")?;
//! let kernels = network.kernels(Some(64), &Operation::ALL, Types::F32, Layout::Nchw)?;
//! assert_eq!((network.convolutions().count(), kernels.len()), (20, 60));
//! assert!(distinct(&kernels).len() < kernels.len());
//! # Ok::<(), tightfit_units::Error>(())
//! ```
//!
//! A layer list is also a network: unconnected convolutions, each with a separate input and mini-batch.
//!
//! `kind` lists the kinds of layers and `behavior` their facts for planning; `maps` assigns outputs to memory; `kernels` lists the convolutions.
//! `json` and `list` read files; ONNX models are read by `tightfit-onnx`.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod activation;
mod behavior;
mod builder;
mod built_in;
mod concurrent;
mod fields;
mod function;
mod json;
mod kernels;
mod kind;
mod layer;
mod list;
mod maps;
mod other;
mod pooling;
mod rule;
mod sampling;
mod shape;

use std::path::Path;

pub use activation::{Activation, erf};
pub use behavior::{BackwardReads, Behavior, ParameterKind, ParameterPass, Part, Placement, Saved, WithRelu, Work};
pub use builder::{Builder, Filters, Window};
pub use built_in::{built_in, names};
pub use function::Function;
pub use kernels::{Kernel, distinct};
pub use kind::LayerKind;
pub use layer::{Layer, LayerId};
pub use maps::{FeatureMap, FeatureMaps, MapId};
pub use other::Other;
pub use pooling::{Pooling, PoolingMethod};
pub use rule::{AdamW, Hyperparameter, Rule, Sgd};
pub use sampling::Sampling;
pub use shape::Shape;

use tightfit_conv::Convolution;
use tightfit_units::{Bytes, Error, bounded};

/// Size limit of a file; a layer takes a few hundred bytes.
const MAX_TEXT: Bytes = Bytes::mib(64);

/// How files of PyTorch end.
const OF_PYTORCH: [&str; 5] = ["pt", "pth", "pt2", "ckpt", "safetensors"];

/// A network: named layers, each after its inputs.
///
/// Made by a [`Builder`], by [`built_in`], or from a file. All of them check every layer, so later queries cannot fail.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    name: String,
    layers: Vec<Layer>,
    consumers: Vec<Vec<LayerId>>,
}

impl Network {
    /// Makes a network of layers that a builder has checked.
    fn new(name: String, layers: Vec<Layer>) -> Network {
        let mut consumers = vec![Vec::new(); layers.len()];
        for (index, layer) in layers.iter().enumerate() {
            for input in &layer.inputs {
                consumers[input.0].push(LayerId(index));
            }
        }
        Network { name, layers, consumers }
    }

    /// Opens a built-in network by name, or a file: JSON if the path ends in `.json`, otherwise a layer list.
    ///
    /// # Errors
    /// [`Error::UnknownWord`] with the nearest names if it is neither. [`Error::File`] if the file cannot be read, with the error of
    /// [`Network::from_json`] or [`Network::from_list`], or if it is a PyTorch file, which must be exported, or an ONNX model,
    /// which the crate `tightfit-onnx` reads.
    pub fn open(name_or_path: &str) -> Result<Network, Error> {
        let path = Path::new(name_or_path);
        let looks_like_path = name_or_path.contains(['/', '\\', '.']);
        if names().any(|(name, _)| name == name_or_path) || !(looks_like_path || path.exists()) {
            return built_in(name_or_path);
        }
        if path.extension().is_some_and(|extension| extension == "onnx") {
            let what = "is an ONNX model, which the crate `tightfit-onnx` reads".to_owned();
            return Err(Error::File { path: path.to_owned(), what, source: None });
        }
        if path.extension().is_some_and(|extension| OF_PYTORCH.iter().any(|known| extension == *known)) && path.exists()
        {
            return Err(of_pytorch(path));
        }
        let error =
            |what: &str, source| Error::File { path: path.to_owned(), what: what.to_owned(), source: Some(source) };
        let text = bounded::read_text(path, MAX_TEXT)
            .map_err(|source| error("cannot be read as a network", Box::new(source)))?;
        let network = if path.extension().is_some_and(|extension| extension == "json") {
            Network::from_json(&text)
        } else {
            let name = path.file_stem().map_or(name_or_path.into(), |stem| stem.to_string_lossy());
            Network::from_list(&name, &text)
        };
        network.map_err(|source| error("is not a valid network", Box::new(source)))
    }

    /// The name of the network.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All layers in topological order: each after its inputs.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// The layers with their IDs, in topological order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (LayerId, &Layer)> {
        self.layers.iter().enumerate().map(|(index, layer)| (LayerId(index), layer))
    }

    /// One layer.
    ///
    /// # Panics
    /// If `id` is out of range.
    pub fn layer(&self, id: LayerId) -> &Layer {
        &self.layers[id.0]
    }

    /// The layers that read this one's output, in topological order; a layer that reads it twice appears twice.
    ///
    /// # Panics
    /// If `id` is out of range.
    pub fn consumers(&self, id: LayerId) -> &[LayerId] {
        &self.consumers[id.0]
    }

    /// The convolutions in order.
    pub fn convolutions(&self) -> impl Iterator<Item = (LayerId, &Convolution)> {
        self.iter().filter_map(|(id, layer)| match &layer.kind {
            LayerKind::Convolution { convolution, .. } => Some((id, convolution)),
            _ => None,
        })
    }

    /// Number of learned parameters, over all layers.
    pub fn parameters(&self) -> usize {
        self.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.parameters))
    }

    /// Multiply-adds of the forward convolutions, fully connected layers and other products, per sample.
    pub fn multiply_adds(&self) -> f64 {
        let count = |layer: &Layer| match &layer.kind {
            LayerKind::Convolution { convolution, .. } => {
                convolution.output_len() as f64 * (convolution.filter_len() / convolution.filters()) as f64
            }
            LayerKind::FullyConnected { outputs, .. } => {
                layer.inputs.iter().map(|input| self.layer(*input).shape.len() as f64).sum::<f64>() * *outputs as f64
            }
            LayerKind::Other(other) => other.multiply_adds as f64,
            _ => 0.0,
        };
        self.layers.iter().map(count).sum()
    }

    /// The mini-batch stated by the input upstream of a layer, if any.
    fn own_batch(&self, mut id: LayerId) -> Option<usize> {
        loop {
            let layer = self.layer(id);
            match (&layer.kind, layer.inputs.first()) {
                (LayerKind::Input { batch, .. }, _) => return *batch,
                (_, Some(first)) => id = *first,
                (_, None) => return None,
            }
        }
    }
}

/// The error for a PyTorch file, which has weights without layers or needs PyTorch to be read.
fn of_pytorch(path: &Path) -> Error {
    let onnx = path.with_extension("onnx");
    let what = format!(
        "a file of PyTorch does not say how its layers are connected; export the model in Python: `import torch, \
         tightfit.torch; tightfit.torch.network(model, torch.randn(1, 3, 224, 224), {:?})`, and name {}",
        onnx.display().to_string(),
        onnx.display()
    );
    Error::File { path: path.to_owned(), what, source: None }
}
