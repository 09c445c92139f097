//! Networks: layers as a directed acyclic graph in topological order, each with the shape it gives per sample.
//!
//! ```text
//! built_in("resnet18"), a layer list, or a Builder
//!        |
//!     Network  input -> conv1 -> conv1.bn -> conv1.relu -> pool1 -+-> l1.0.c1 -> .. -> l1.0.c2.bn -+-> l1.0 -> ..
//!        |                                                        `--------------------------------'
//!     kernels(mini-batch, operations)                  one problem for every convolution and operation
//!        |
//!     distinct                                         each shape once, with the kernels that have it
//! ```
//!
//! A layer list is a network as well: convolutions side by side, each with an input and a mini-batch of its own.

mod behavior;
mod builder;
mod built_in;
mod concurrent;
mod fields;
mod json;
mod kernels;
mod kind;
mod layer;
mod list;
mod maps;
mod pooling;
mod selection;
mod sgd;
mod shape;

use std::path::Path;

pub use behavior::{BackwardReads, Behavior, ParameterKind, ParameterPass, Part, Placement, Saved, Work};
pub use builder::{Builder, Filters, Window};
pub use built_in::{built_in, names};
pub use kernels::{Kernel, distinct};
pub use kind::LayerKind;
pub use layer::{Layer, LayerId};
pub use maps::{FeatureMap, FeatureMaps, MapId};
pub use pooling::{Pooling, PoolingMethod};
pub use selection::Selection;
pub use sgd::Sgd;
pub use shape::Shape;

use crate::{Bytes, Convolution, Error, bounded};

/// The largest file: a layer takes some hundred bytes.
const MOST_TEXT: Bytes = Bytes::mib(64);

/// A network: named layers, every one after those it reads.
///
/// Made by a [`Builder`], by [`built_in`], or from a layer list, all of which check every layer; so what is asked of it
/// later cannot fail.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    name: String,
    layers: Vec<Layer>,
    consumers: Vec<Vec<LayerId>>,
}

impl Network {
    /// The network of layers that a builder has checked.
    fn new(name: String, layers: Vec<Layer>) -> Network {
        let mut consumers = vec![Vec::new(); layers.len()];
        for (index, layer) in layers.iter().enumerate() {
            for input in &layer.inputs {
                consumers[input.0].push(LayerId(index));
            }
        }
        Network { name, layers, consumers }
    }

    /// The built-in network of this name, or that in the file of this path: JSON if it ends in `.json`, else a layer list.
    ///
    /// # Errors
    /// [`Error::UnknownWord`] with the nearest names for what is neither; [`Error::File`] for a file that cannot be read;
    /// those of [`Network::from_json`] and of [`Network::from_list`].
    pub fn open(name_or_path: &str) -> Result<Network, Error> {
        let path = Path::new(name_or_path);
        let looks_like_path = name_or_path.contains(['/', '\\', '.']);
        if names().any(|(name, _)| name == name_or_path) || !(looks_like_path || path.exists()) {
            return built_in(name_or_path);
        }
        let text = bounded::read_text(path, MOST_TEXT).map_err(|source| Error::File {
            path: path.to_owned(),
            what: "cannot be read as a network".to_owned(),
            source: Some(Box::new(source)),
        })?;
        if path.extension().is_some_and(|extension| extension == "json") {
            return Network::from_json(&text);
        }
        let name = path.file_stem().map_or(name_or_path.into(), |stem| stem.to_string_lossy());
        Network::from_list(&name, &text)
    }

    /// The network's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All layers in topological order: every one after those it reads.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// The layers with their places, in topological order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (LayerId, &Layer)> {
        self.layers.iter().enumerate().map(|(index, layer)| (LayerId(index), layer))
    }

    /// One layer.
    ///
    /// # Panics
    /// If `id` is of a larger network.
    pub fn layer(&self, id: LayerId) -> &Layer {
        &self.layers[id.0]
    }

    /// The layers that read this one's output, in topological order; one that reads it twice is there twice.
    ///
    /// # Panics
    /// If `id` is of a larger network.
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

    /// Numbers that the network learns, over all layers.
    pub fn parameters(&self) -> usize {
        self.layers.iter().fold(0, |sum, layer| sum.saturating_add(layer.parameters))
    }

    /// Multiply-add operations of the convolutions and fully connected layers, forward, for one sample.
    pub fn multiply_adds(&self) -> f64 {
        let of = |layer: &Layer| match &layer.kind {
            LayerKind::Convolution { convolution, .. } => {
                convolution.output_len() as f64 * (convolution.filter_len() / convolution.filters()) as f64
            }
            LayerKind::FullyConnected { outputs, .. } => {
                layer.inputs.iter().map(|input| self.layer(*input).shape.len() as f64).sum::<f64>() * *outputs as f64
            }
            _ => 0.0,
        };
        self.layers.iter().map(of).sum()
    }

    /// The mini-batch that the input upstream of a layer states, if it states one.
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
