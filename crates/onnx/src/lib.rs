//! Networks from ONNX files, as PyTorch and others export them.
//!
//! ```text
//! file --stream--> messages --graph--> nodes in order --operators--> layers
//!                                        |  control: the branches that are taken
//!                                        |  constants: what does not depend on the samples: shapes, and computed weights
//!                                        |  fuse: activations that are spelled out in several nodes
//! ```
//!
//! ```
//! // A built-in network, a layer list, the JSON form, or an ONNX model: `model.onnx`.
//! let network = tightfit_onnx::open("lenet")?;
//! assert_eq!(network.convolutions().count(), 2);
//! # Ok::<(), tightfit_units::Error>(())
//! ```
//!
//! Convolutions, pooling, batch normalization and the other layers that every backend runs become these layers. Any other node becomes
//! [`LayerKind::Other`](tightfit_network::LayerKind::Other): it is planned from its sizes and the reads of its backward pass, and runs if its function is known.
//! The mini-batch of the file, fixed or free, does not matter, because layers have shapes per sample. Weights stay in the file until
//! [`Model::weights`].
//!
//! 1. `stream`, `proto` and `decode` decode the file; `graph` indexes it; `table` and `given` check the fields of nodes.
//! 2. `reading` walks the nodes: constants first (`constants`, `control`), then nodes on samples.
//! 3. `call` gives typed access to a node; `operators`, `windows`, `products`, `shapes`, `functions` and `pointwise` convert it; `fuse`, `evaluate`
//!    and `random` recognize operations spelled out in several nodes; `layers` collects the result.
//! 4. `weights`, `tensor` and `shared` read and relate the parameters.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod call;
mod constants;
mod control;
mod decode;
mod evaluate;
mod functions;
mod fuse;
mod given;
mod graph;
mod layers;
mod operators;
mod pointwise;
mod products;
mod proto;
mod random;
mod reading;
mod shapes;
mod shared;
mod shown;
mod slots;
mod stream;
mod table;
mod tensor;
mod value;
mod weights;
mod windows;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use self::decode::{decode, file_error};
use self::graph::STAND_INS;
use self::layers::Reason;
use self::proto::OperatorSetIdProto;
use self::reading::{Found, Whole};
pub use self::shared::Shared;
use self::shared::Uses;
pub use self::slots::Slot;
pub use self::table::KNOWN_VERSIONS;
use self::value::Order;
pub use self::weights::Numbers;
use self::weights::Weights;
use tightfit_units::{Bytes, Error};

use tightfit_network::{LayerId, Network};

/// The most bytes of a graph without its weights.
const MOST_GRAPH: Bytes = Bytes::mib(32);

/// Longest payload to read with the graph; constants that extents depend on are shorter.
const LONGEST: usize = 64 << 10;

/// Opens a network: an ONNX model if the path ends in `.onnx`, otherwise as [`Network::open`].
///
/// # Errors
/// The errors of [`Model::read`] and of [`Network::open`].
pub fn open(name_or_path: &str) -> Result<Network, Error> {
    let path = Path::new(name_or_path);
    match path.extension().is_some_and(|extension| extension == "onnx") {
        true => Model::read(path).map(Model::into_network),
        false => Network::open(name_or_path),
    }
}

/// A network from an ONNX file, and where its weights are.
#[derive(Clone, Debug)]
pub struct Model {
    path: PathBuf,
    network: Network,
    version: Option<i64>,
    is_for_inference: bool,
    weights: Weights,
    uses: Uses,
    reasons: Vec<Reason>,
}

impl Model {
    /// Reads the graph of an ONNX file. The network ends in a loss, like built-in networks: the softmax of its output, or of its joined outputs.
    ///
    /// - Cost: reads the graph and skips the weights.
    ///
    /// # Errors
    /// [`Error::File`] for a file that cannot be read, is not an ONNX model, or has an invalid graph;
    /// [`Error::BadNode`] for a node that cannot become a layer.
    pub fn read(path: &Path) -> Result<Model, Error> {
        let model = decode(path, LONGEST, MOST_GRAPH.0)?;
        let is_own = |import: &&OperatorSetIdProto| ["", "ai.onnx"].contains(&import.domain.as_str());
        let versions: Vec<i64> = model.opset_import.iter().filter(is_own).map(|import| import.version).collect();
        let version = versions.first().copied();
        let mut proto =
            model.graph.ok_or_else(|| file_error(path, "is not an ONNX model: it has no graph".to_owned()))?;
        let bad = |what: String| file_error(path, format!("cannot be read as a network: {what}"));
        if versions.iter().any(|other| Some(*other) != version) {
            return Err(bad(format!("it names several versions of ONNX's operators: {versions:?}")));
        }
        let mut branches = Vec::new();
        loop {
            match reading::read(path, &proto, version, STAND_INS[0])? {
                Found::Network(whole) => {
                    let Whole { network, mut weights, uses, reasons, is_for_inference } = *whole;
                    weights.branches = branches;
                    if weights.follow_from_shapes() {
                        // Reads the graph with another mini-batch: values that change with it are unknown before the model runs.
                        match reading::read(path, &proto, version, STAND_INS[1]) {
                            Ok(Found::Network(other)) => weights.forget_changed(Some(&other.weights)),
                            _ => weights.forget_changed(None),
                        }
                    }
                    let path = path.to_owned();
                    return Ok(Model { path, network, version, is_for_inference, weights, uses, reasons });
                }
                Found::Branches(found) => {
                    control::inline(&mut proto, &found).map_err(bad)?;
                    branches.extend(found);
                    control::check(branches.len(), &proto).map_err(bad)?;
                }
            }
        }
    }

    /// The network.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The network, without the sources of its weights.
    pub fn into_network(self) -> Network {
        self.network
    }

    /// The version of ONNX's operators that the file was written for, if stated.
    pub fn version(&self) -> Option<i64> {
        self.version
    }

    /// Whether the model was probably exported for inference: batch normalizations are merged into convolutions, or the model has no normalization.
    pub fn is_for_inference(&self) -> bool {
        self.is_for_inference
    }

    /// The reason why a layer cannot run although its operator can.
    pub fn reason(&self, layer: LayerId) -> Option<&str> {
        self.reasons.iter().find(|(of, _)| *of == layer).map(|(_, why)| why.as_str())
    }

    /// The file's name for each slot of a layer, if the file holds the numbers in the order of the slot.
    pub fn names(&self) -> impl Iterator<Item = (LayerId, Slot, &str)> {
        let sources = self.weights.sources.iter();
        let same = sources.filter(|source| source.order == Order::Same && source.is_initializer);
        same.map(|source| (source.layer, source.slot, source.value.as_str()))
    }

    /// The numbers that several layers use as one parameter: training adds up their gradients. They come from one initializer, or are computed once.
    ///
    /// # Errors
    /// [`Error::File`] if layers use the same numbers in different ways, so that they cannot be trained as one: in another order, through different
    /// computations, or as statistics of batch normalization and as weights.
    pub fn shared(&self) -> Result<Vec<Shared>, Error> {
        self.uses.shared(&self.network).map_err(|what| file_error(&self.path, what))
    }

    /// The layers whose parameters the file computes, each with the computed value. Training changes the computed value, not its inputs.
    pub fn computed(&self) -> impl Iterator<Item = (LayerId, Slot, &str)> {
        let computed = self.weights.sources.iter().filter(|source| source.is_computed);
        computed.map(|source| (source.layer, source.slot, source.value.as_str()))
    }

    /// Reads the weights of the layers that run here from the file and its external data files, and computes the weights that the file computes.
    ///
    /// - Cost: the memory and time of reading all of them.
    ///
    /// # Errors
    /// [`Error::File`] for the first layer that lacks numbers for a parameter, with the parameter's name and the reason: the numbers cannot be read,
    /// or a node cannot be computed.
    pub fn weights(&self) -> Result<Vec<Numbers>, Error> {
        self.weights.read(&self.path, &self.network)
    }
}
