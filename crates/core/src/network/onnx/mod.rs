//! Networks from ONNX files, as PyTorch and others export them.
//!
//! ```text
//! file --stream--> messages --graph--> nodes in order --operators--> layers
//!                                        |  control: the branches that are taken
//!                                        |  constants: what does not depend on the samples: shapes, and computed weights
//!                                        |  fuse: activations that are spelled out in several nodes
//! ```
//!
//! Convolutions, pooling, batch normalization and the other layers that run everywhere become these layers. Everything
//! else becomes [`LayerKind::Other`], which is planned by its sizes and what its backward pass reads, and runs if its
//! function is known. The mini-batch of the
//! file, fixed or free, does not matter: layers have shapes per sample. Weights stay in the file until
//! [`Model::weights`].

mod call;
mod constants;
mod control;
mod evaluate;
mod functions;
mod fuse;
mod graph;
mod layers;
mod operators;
mod pointwise;
mod products;
mod proto;
mod random;
mod shapes;
mod shared;
mod stream;
mod tensor;
mod value;
mod weights;
mod windows;

#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use prost::Message;

use self::call::Call;
use self::control::Branch;
use self::graph::{Graph, Input, STAND_INS, shown};
use self::layers::{Layers, name_of};
use self::proto::{GraphProto, ModelProto, NodeProto};
pub use self::shared::Shared;
use self::shared::Uses;
use self::stream::Stream;
use self::value::{Order, Origin, Value};
use self::weights::Weights;
pub use self::weights::{Numbers, Slot};
use super::{Function, LayerId, LayerKind, Network};
use crate::{Bytes, Error};

/// The versions of ONNX's own operators ("opset") that are tested. Others are read alike, but an operator whose
/// attributes have become inputs or changed their meaning may be read wrong or refused.
pub const TESTED_VERSIONS: RangeInclusive<i64> = 13..=20;

/// Most bytes of a graph without its weights.
const MOST_GRAPH: Bytes = Bytes::mib(32);

/// Longest payload to read with the graph; constants that extents depend on are shorter.
const LONGEST: usize = 64 << 10;

/// A network from an ONNX file, and where its weights are.
#[derive(Clone, Debug)]
pub struct Model {
    path: PathBuf,
    network: Network,
    version: Option<i64>,
    is_for_inference: bool,
    weights: Weights,
    uses: Uses,
}

impl Model {
    /// Reads the graph of an ONNX file. Ends it in a loss, as built-in networks do: the softmax of its output, or of its
    /// outputs together.
    ///
    /// - Cost: reads the graph and skips the weights, whatever their size.
    ///
    /// # Errors
    /// [`Error::File`] for a file that cannot be read, is no ONNX model, or whose graph is wrong as a whole;
    /// [`Error::BadNode`] for a node that cannot become a layer.
    pub fn read(path: &Path) -> Result<Model, Error> {
        let model = decode(path, LONGEST, MOST_GRAPH.0)?;
        let mut versions = model.opset_import.iter().filter(|import| ["", "ai.onnx"].contains(&import.domain.as_str()));
        let version = versions.next().map(|import| import.version);
        let mut proto =
            model.graph.ok_or_else(|| file_error(path, "is not an ONNX model: it has no graph".to_owned()))?;
        let bad = |what: String| file_error(path, format!("cannot be read as a network: {what}"));
        let mut branches = Vec::new();
        loop {
            match read_graph(path, &proto, STAND_INS[0])? {
                Found::Network { network, mut weights, uses, is_for_inference } => {
                    weights.branches = branches;
                    if weights.follow_from_shapes() {
                        // With another mini-batch: what changes with it has no value before the model runs.
                        match read_graph(path, &proto, STAND_INS[1]) {
                            Ok(Found::Network { weights: other, .. }) => weights.forget_changed(Some(&other)),
                            _ => weights.forget_changed(None),
                        }
                    }
                    return Ok(Model { path: path.to_owned(), network, version, is_for_inference, weights, uses });
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

    /// The network, without where its weights are.
    pub fn into_network(self) -> Network {
        self.network
    }

    /// The version of ONNX's own operators that the file was written for, if it says so.
    pub fn version(&self) -> Option<i64> {
        self.version
    }

    /// Whether the model was exported for inference, as far as the graph tells: batch normalizations are merged into
    /// convolutions, or there is no normalization of any kind.
    pub fn is_for_inference(&self) -> bool {
        self.is_for_inference
    }

    /// The name that the file has for each slot of a layer, where it holds the numbers in the order of the slot.
    pub fn names(&self) -> impl Iterator<Item = (LayerId, Slot, &str)> {
        let sources = self.weights.sources.iter();
        let same = sources.filter(|source| source.order == Order::Same && source.is_initializer);
        same.map(|source| (source.layer, source.slot, source.value.as_str()))
    }

    /// The numbers that several layers use as one: training adds up their gradients. They are those of an initializer, or
    /// computed once.
    ///
    /// # Errors
    /// [`Error::File`] where layers use the same numbers in different ways, so that they cannot be trained as one: in
    /// another order, through different computations, or as statistics of batch normalization and as weights.
    pub fn shared(&self) -> Result<Vec<Shared>, Error> {
        self.uses.shared(&self.network).map_err(|what| file_error(&self.path, what))
    }

    /// The layers whose parameters the file computes, each with the value that it computes for them. Training changes what
    /// is computed, not what it is computed from.
    pub fn computed(&self) -> impl Iterator<Item = (LayerId, Slot, &str)> {
        let computed = self.weights.sources.iter().filter(|source| source.is_computed);
        computed.map(|source| (source.layer, source.slot, source.value.as_str()))
    }

    /// Reads the weights that the file, or files beside it, hold for the layers that run here, and computes those that the
    /// file computes.
    ///
    /// - Cost: the memory and time of reading all of them.
    ///
    /// # Errors
    /// [`Error::File`] for the first layer that has parameters without numbers, with the name of these and why: they cannot
    /// be read, or a node cannot be computed.
    pub fn weights(&self) -> Result<Vec<Numbers>, Error> {
        self.weights.read(&self.path, &self.network)
    }
}

/// What reading a graph gives.
enum Found {
    /// The network.
    Network { network: Network, weights: Weights, uses: Uses, is_for_inference: bool },
    /// Branches that take the place of their nodes, before the graph is read again.
    Branches(Vec<Branch>),
}

/// Reads a graph; `stand_in` stands for a mini-batch without a fixed size.
fn read_graph(path: &Path, proto: &GraphProto, stand_in: usize) -> Result<Found, Error> {
    let bad = |what: String| file_error(path, format!("cannot be read as a network: {what}"));
    let mut graph = Graph::of(proto).map_err(bad)?;
    let mut done = vec![false; graph.len()];
    let branches = read_constants(&mut graph, &mut done).map_err(|fault| fault.of(path))?;
    if !branches.is_empty() {
        return Ok(Found::Branches(branches));
    }
    let input = graph.input(stand_in).map_err(bad)?;
    let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let mut layers = Layers::new(&name, input.dims[0]);
    let shape = value::sample(&input.dims, input.dims[0]).map_err(bad)?;
    let kind = LayerKind::Input { shape, batch: None };
    let samples = layers.map("input", kind, &[], input.dims.clone()).map_err(bad)?;
    graph.set(input.name, samples);
    let mut seen = Seen::default();
    let branch = read_nodes(&mut graph, &input, &mut layers, &mut seen, &mut done).map_err(|fault| fault.of(path))?;
    if let Some(branch) = branch {
        return Ok(Found::Branches(vec![branch]));
    }
    end(&graph, &mut layers).map_err(bad)?;
    let (network, mut sources) = layers.finish()?;
    for source in &mut sources {
        let writer = graph.writer(&source.value);
        source.is_initializer = writer.is_none();
        source.is_computed = writer.is_some_and(|node| node.op_type != "Constant");
    }
    let uses = Uses::of(&graph, &sources);
    let weights = Weights::of(&graph, sources);
    Ok(Found::Network { network, weights, uses, is_for_inference: seen.is_for_inference() })
}

/// Decodes a file; payloads over `longest` bytes become empty, and at most `most` bytes are read.
fn decode(path: &Path, longest: usize, most: u64) -> Result<ModelProto, Error> {
    let wrong = |what: &str, source: Box<dyn std::error::Error + Send + Sync>| Error::File {
        path: path.to_owned(),
        what: what.to_owned(),
        source: Some(source),
    };
    let unreadable = "cannot be read as an ONNX model";
    let mut stream = Stream::open(path, longest, most).map_err(|error| wrong(unreadable, error.into()))?;
    let decoded = ModelProto::decode(&mut stream);
    match (stream.fault(), decoded) {
        (Some(fault), _) => Err(wrong(unreadable, fault.into())),
        (None, Err(error)) => Err(wrong("is not an ONNX model, or is cut off or damaged", error.into())),
        (None, Ok(model)) => Ok(model),
    }
}

fn file_error(path: &Path, what: String) -> Error {
    Error::File { path: path.to_owned(), what, source: None }
}

/// A node that cannot become a layer.
struct Fault {
    node: String,
    operator: String,
    what: String,
}

impl Fault {
    fn at(node: &NodeProto, what: String) -> Fault {
        Fault { node: shown(&node.name), operator: shown(&node.op_type), what }
    }

    fn of(self, path: &Path) -> Error {
        let Fault { node, operator, what } = self;
        Error::BadNode { path: path.to_owned(), node, operator, what }
    }
}

/// What tells an export for inference from one for training.
#[derive(Default)]
struct Seen {
    normalizations: usize,
    merged: bool,
}

impl Seen {
    fn is_for_inference(&self) -> bool {
        self.normalizations == 0 || self.merged
    }

    fn node(&mut self, operator: &str, inputs: &[String]) {
        self.normalizations += usize::from(operator.ends_with("Normalization"));
        // How PyTorch's exporters name filters and biases that they have merged with batch normalizations.
        let is_merged = |name: &String| name.starts_with("onnx::Conv_") || name.ends_with(".weight_bias");
        self.merged |= operator == "Conv" && inputs.iter().skip(1).any(is_merged);
    }
}

/// Reads the nodes that depend on no sample and on no shape of one. Returns the `If` among them, last first, without reading on
/// from them.
fn read_constants(graph: &mut Graph<'_>, done: &mut [bool]) -> Result<Vec<Branch>, Fault> {
    let mut branches = Vec::new();
    for (at, done) in done.iter_mut().enumerate() {
        let node = graph.node(at);
        if !graph.is_reached(at) || !graph.has_constants_only(node) {
            continue;
        }
        if control::graphs(node).next().is_some() {
            branches.extend(branch(graph, at));
            continue;
        }
        let fault = |what| Fault::at(node, what);
        let inputs = graph.inputs(node).map_err(fault)?;
        // Their extents follow from their inputs.
        let call = Call { node, inputs, batch: 1, stated: graph.stated_without_batch(&node.output) };
        let values = operators::of_constants(&call).map_err(fault)?;
        *done = true;
        set(graph, node, values);
    }
    branches.reverse();
    Ok(branches)
}

/// The branch that an `If` takes, if its condition is known.
fn branch(graph: &Graph<'_>, at: usize) -> Option<Branch> {
    let node = graph.node(at);
    let condition = graph.constant(node.input.first()?)?.integers()?;
    let is_if = node.op_type == "If" && matches!(node.domain.as_str(), "" | "ai.onnx");
    (is_if && condition.len() == 1).then_some(Branch { node: at, holds: condition[0] != 0 })
}

/// Why a node that holds graphs cannot be read.
fn holds_graphs(node: &NodeProto) -> String {
    match node.op_type.as_str() {
        "If" => {
            "its condition is not known before the model runs; export the model so that every run takes the same branch"
        }
        _ => "it runs a graph of its own, which is not supported; export the model without it, a loop step by step",
    }
    .to_owned()
}

/// Says what the outputs of a node stand for.
fn set<'a>(graph: &mut Graph<'a>, node: &'a NodeProto, values: Vec<Value>) {
    for (name, value) in node.output.iter().zip(values) {
        let named = match value {
            Value::Constant(constant) if constant.origin.is_none() => {
                let origin = Some(Origin { name: name.clone(), order: Order::Same, learned: 0 });
                Value::Constant(value::Constant { origin, ..(*constant).clone() }.into())
            }
            value => value,
        };
        graph.set(name, named);
    }
}

/// Reads the other nodes that contribute to an output, in order; stops at an `If` whose branch is known.
fn read_nodes<'a>(
    graph: &mut Graph<'a>,
    input: &Input<'a>,
    layers: &mut Layers,
    seen: &mut Seen,
    done: &mut [bool],
) -> Result<Option<Branch>, Fault> {
    for at in 0..graph.len() {
        if done[at] || !graph.is_reached(at) {
            continue;
        }
        let node = graph.node(at);
        let fault = |what| Fault::at(node, what);
        if control::graphs(node).next().is_some() {
            return branch(graph, at).map(Some).ok_or_else(|| fault(holds_graphs(node)));
        }
        let stated = node.output.first().and_then(|name| graph.stated(name, input));
        let inputs = graph.inputs(node).map_err(fault)?;
        let call = Call { node, inputs, batch: input.dims[0], stated };
        let (nodes, values) = together(graph, at, call, layers).map_err(fault)?;
        for &at in &nodes {
            done[at] = true;
            seen.node(graph.operator(at), &graph.node(at).input);
        }
        seen.normalizations += usize::from(nodes.len() > 2 && fuse::is_normalization(graph, &nodes));
        let last = nodes.last().map_or(node, |&last| graph.node(last));
        set(graph, last, values);
    }
    Ok(None)
}

/// Reads a node, with those that form one operation with it; the values are those of the last one's outputs.
fn together(
    graph: &Graph<'_>,
    at: usize,
    call: Call<'_>,
    layers: &mut Layers,
) -> Result<(Vec<usize>, Vec<Value>), String> {
    let node = call.node;
    let first_map = node.input.iter().find(|name| matches!(graph.value(name), Some(Value::Map(_))));
    if let Some(x) = first_map
        && let Some(fused) = fuse::find(graph, at, x)
        && let Some(Value::Map(map)) = graph.value(x)
    {
        let names = fused.nodes.iter().flat_map(|&at| &graph.node(at).input);
        let parameters = names.filter_map(|name| match graph.value(name) {
            Some(Value::Constant(constant)) => Some(constant.parameters()),
            _ => None,
        });
        let parameters = parameters.fold(0usize, usize::saturating_add);
        let (function, slots) = fused.function(graph, x, map.dims.len());
        let inputs = vec![Some(Value::Map(map.clone()))];
        let whole = Call { node, inputs, batch: call.batch, stated: None };
        let value = layers.other(&whole, map.dims.clone(), |other| {
            fused.operator.clone_into(&mut other.operator);
            other.parameters = parameters;
            other.reads_inputs = true;
            other.function = function;
        })?;
        layers.learn_function(&value, slots);
        return Ok((fused.nodes, vec![value]));
    }
    if call.operator() == "Mul"
        && let Some(value) = masked(graph, &call, layers)?
    {
        return Ok((vec![at], vec![value]));
    }
    if call.operator() == "MatMul"
        && !call.maps().is_empty()
        && let Some((adding, bias)) = bias_after(graph, node.output.first().map_or("", String::as_str))
        // Longer numbers would stretch the product.
        && call.input(1)?.dims().last() == bias.dims().first()
    {
        let value = products::matmul(&call, Some(&bias), layers)?;
        return Ok((vec![at, adding], vec![value]));
    }
    if is_final_softmax(graph, &call) {
        return Ok((vec![at], vec![call.input(0)?.clone()]));
    }
    Ok((vec![at], operators::read(&call, layers)?))
}

/// A product with a random mask: dropout of elements, or of samples as a whole.
fn masked(graph: &Graph<'_>, call: &Call<'_>, layers: &mut Layers) -> Result<Option<Value>, String> {
    let [left, right] = &call.node.input[..] else { return Ok(None) };
    for (x, mask, name) in [(0, 1, right), (1, 0, left)] {
        let (Ok(x), Ok(of)) = (call.map(x), call.constant(mask)) else { continue };
        let Some(rate) = random::rate(graph, name) else { continue };
        if of.dims == x.dims {
            let kind = LayerKind::Dropout { rate };
            return layers.map(&name_of(call), kind, &[x.layer], x.dims.clone()).map(Some);
        }
        let per_sample = of.dims.len() == x.dims.len()
            && of.dims.first() == Some(&call.batch)
            && of.dims.iter().skip(1).all(|&extent| extent == 1);
        if per_sample && x.dims.first() == Some(&call.batch) {
            let value = layers.other(call, x.dims.clone(), |other| {
                "StochasticDepth".clone_into(&mut other.operator);
                other.in_place = true;
                other.function = Some(Function::DropSamples { rate });
            });
            return value.map(Some);
        }
    }
    Ok(None)
}

/// The node that adds learned numbers, one per output, to a product that nothing else reads.
fn bias_after(graph: &Graph<'_>, product: &str) -> Option<(usize, Value)> {
    let [adding] = graph.readers(product) else { return None };
    let node = graph.node(*adding);
    if node.op_type != "Add" || graph.is_output(product) {
        return None;
    }
    let bias = node.input.iter().find(|name| name.as_str() != product)?;
    let value = graph.value(bias)?;
    (value.dims().len() == 1 && graph.is_learned(bias)).then(|| (*adding, value.clone()))
}

/// Whether this is the softmax of a network's only output, which its loss computes.
fn is_final_softmax(graph: &Graph<'_>, call: &Call<'_>) -> bool {
    let is_only = graph.outputs().count() == 1 && call.node.output.iter().any(|name| graph.is_output(name));
    let over_features = call.map(0).is_ok_and(|x| x.dims.len() == 2);
    matches!(call.operator(), "Softmax" | "LogSoftmax") && is_only && over_features
}

/// Ends the network in a loss over its outputs; several are joined first.
fn end(graph: &Graph<'_>, layers: &mut Layers) -> Result<(), String> {
    let mut outputs: Vec<LayerId> = Vec::new();
    for name in graph.outputs() {
        match graph.value(name) {
            Some(Value::Map(map)) if !outputs.contains(&map.layer) => outputs.push(map.layer),
            Some(_) => {}
            None => return Err(format!("no node writes its output {}", shown(name))),
        }
    }
    let last = match outputs[..] {
        [] => return Err("no output depends on its input".to_owned()),
        [only] => only,
        _ => {
            let mut flat = Vec::new();
            for output in outputs {
                flat.push(layers.add("outputs.flatten", LayerKind::Flatten, &[output])?);
            }
            layers.add("outputs", LayerKind::Concat, &flat)?
        }
    };
    layers.add("loss", LayerKind::SoftmaxLoss, &[last]).map(|_| ())
}
