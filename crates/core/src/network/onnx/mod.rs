//! Networks from ONNX files, as PyTorch and others export them.
//!
//! ```text
//! file --stream--> messages --graph--> nodes in order --operators--> layers
//!                                        |  fold: what does not depend on the samples, as shapes computed from shapes
//!                                        |  fuse: activations that are spelled out in several nodes
//! ```
//!
//! Convolutions, pooling, batch normalization and the other layers that run everywhere become these layers. Everything
//! else becomes [`LayerKind::Other`], which is planned by its sizes and what its backward pass reads, and runs if its
//! function is known. The mini-batch of the
//! file, fixed or free, does not matter: layers have shapes per sample. Weights stay in the file until
//! [`Model::weights`].

mod call;
mod evaluate;
mod fold;
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
mod shapes;
mod stream;
mod table;
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
use self::given::{Given, is_standard};
use self::graph::{Graph, Input, shown};
use self::layers::{Layers, Reason, name_of};
use self::proto::{GraphProto, ModelProto, OperatorSetIdProto};
use self::stream::Stream;
use self::value::Value;
pub use self::weights::{Numbers, Slot, Source};
use super::{Function, LayerId, LayerKind, Network};
use crate::{Bytes, Error};

/// The versions of ONNX's own operators ("opset") that are known, attribute by attribute. Files of others are refused.
pub const KNOWN_VERSIONS: RangeInclusive<i64> = 7..=28;

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
    sources: Vec<Source>,
    reasons: Vec<Reason>,
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
        let is_own = |import: &&OperatorSetIdProto| ["", "ai.onnx"].contains(&import.domain.as_str());
        let versions: Vec<i64> = model.opset_import.iter().filter(is_own).map(|import| import.version).collect();
        let version = versions.first().copied();
        let proto = model.graph.ok_or_else(|| file_error(path, "is not an ONNX model: it has no graph".to_owned()))?;
        let bad = |what: String| file_error(path, format!("cannot be read as a network: {what}"));
        if versions.iter().any(|other| Some(*other) != version) {
            return Err(bad(format!("it names several versions of ONNX's operators: {versions:?}")));
        }
        let mut graph = Graph::of(&proto).map_err(bad)?;
        let input = graph.input().map_err(bad)?;
        let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let mut layers = Layers::new(&name, input.dims[0]);
        let shape = value::sample(&input.dims, input.dims[0]).map_err(bad)?;
        let kind = LayerKind::Input { shape, batch: None };
        let samples = layers.map("input", kind, &[], input.dims.clone()).map_err(bad)?;
        if let (Some(of), Some(map)) = (element_type(&proto, input.name), samples.map())
            && !operators::is_floating(of)
        {
            let what = format!("its elements are of type {of}, and samples are floating-point numbers");
            layers.cannot_run(map.layer, format!("input {}: {what}", shown(input.name)));
        }
        graph.set(input.name, samples);
        let mut seen = Seen::default();
        check(&mut graph, version).map_err(|fault| fault.of(path))?;
        read_nodes(&mut graph, &input, &mut layers, &mut seen).map_err(|fault| fault.of(path))?;
        end(&graph, &mut layers, input.dims[0]).map_err(bad)?;
        let (network, sources, reasons) = layers.finish()?;
        Ok(Model {
            path: path.to_owned(),
            network,
            version,
            is_for_inference: seen.is_for_inference(),
            sources,
            reasons,
        })
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

    /// Why a layer cannot run, if its operator can but not as the file has it.
    pub fn reason(&self, layer: LayerId) -> Option<&str> {
        self.reasons.iter().find(|(of, _)| *of == layer).map(|(_, why)| why.as_str())
    }

    /// The name that the file has for each slot of a layer, where it holds the numbers in the order of the slot.
    pub fn names(&self) -> impl Iterator<Item = (LayerId, Slot, &str)> {
        let same = self.sources.iter().filter(|source| source.order == value::Order::Same);
        same.map(|source| (source.layer, source.slot, source.initializer.as_str()))
    }

    /// Reads the weights that the file, or files beside it, hold for the layers that run here.
    ///
    /// - Cost: the memory and time of reading all of them.
    ///
    /// # Errors
    /// [`Error::File`] if they cannot be read, with the layer and the name of the weights.
    pub fn weights(&self) -> Result<Vec<Numbers>, Error> {
        weights::read(&self.path, &self.network, &self.sources)
    }
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

/// The type of an input's elements, where the file states it.
fn element_type(proto: &GraphProto, input: &str) -> Option<i32> {
    let info = proto.input.iter().find(|info| info.name == input)?;
    Some(info.r#type.as_ref()?.tensor_type.as_ref()?.elem_type).filter(|of| *of != 0)
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

/// Refuses nodes with attributes, inputs or outputs that are not known in the file's version of ONNX's operators.
fn check(graph: &mut Graph<'_>, version: Option<i64>) -> Result<(), Fault> {
    for at in (0..graph.len()).filter(|&at| graph.is_reached(at)).collect::<Vec<usize>>() {
        let node = graph.node(at);
        let fault = |what| Fault { node: shown(&node.name), operator: shown(&node.op_type), what };
        if is_standard(node) {
            graph.version = table::check_version(version).map_err(fault)?;
            graph.given(at).check().map_err(fault)?;
        }
    }
    Ok(())
}

/// Reads the nodes that contribute to an output, in order.
fn read_nodes<'a>(graph: &mut Graph<'a>, input: &Input<'a>, layers: &mut Layers, seen: &mut Seen) -> Result<(), Fault> {
    let mut done = vec![false; graph.len()];
    for at in 0..graph.len() {
        if done[at] || !graph.is_reached(at) {
            continue;
        }
        let node = graph.node(at);
        let fault = |what| Fault { node: shown(&node.name), operator: shown(&node.op_type), what };
        let stated = node.output.first().and_then(|name| graph.stated(name, input));
        let inputs = graph.inputs(node).map_err(fault)?;
        let call = Call { node, given: graph.given(at), inputs, batch: input.dims[0], stated };
        let (nodes, values) = together(graph, at, call, layers).map_err(fault)?;
        for &at in &nodes {
            done[at] = true;
            seen.node(graph.operator(at), &graph.node(at).input);
        }
        seen.normalizations += usize::from(nodes.len() > 2 && fuse::is_normalization(graph, &nodes));
        let last = nodes.last().map_or(node, |&last| graph.node(last));
        let given = Given::of(last, graph.version);
        for (at, (name, value)) in last.output.iter().zip(values).enumerate() {
            if !given.is_refused(at) {
                graph.set(name, value);
            }
        }
    }
    Ok(())
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
        let whole = Call { inputs, stated: None, ..call };
        let value = layers.other(&whole, map.dims.clone(), |other| {
            fused.operator.clone_into(&mut other.operator);
            other.parameters = parameters;
            other.reads_inputs = true;
            other.function = function;
        })?;
        layers.learn_function(&value, slots);
        return Ok((fused.nodes, vec![value]));
    }
    if call.is_standard()
        && call.operator() == "Mul"
        && let Some(value) = masked(graph, &call, layers)?
    {
        return Ok((vec![at], vec![value]));
    }
    if call.is_standard()
        && call.operator() == "MatMul"
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
    if node.op_type != "Add" || !is_standard(node) || graph.is_output(product) {
        return None;
    }
    let bias = node.input.iter().find(|name| name.as_str() != product)?;
    let value = graph.value(bias)?;
    (value.dims().len() == 1 && graph.is_learned(bias)).then(|| (*adding, value.clone()))
}

/// Whether this is the softmax of a network's only output, which its loss computes.
fn is_final_softmax(graph: &Graph<'_>, call: &Call<'_>) -> bool {
    let is_only = graph.outputs().count() == 1 && call.node.output.iter().any(|name| graph.is_output(name));
    // Over the samples, or over parts of them, it is another function than that of the loss.
    let over_features = || {
        let along = call.int("axis").and_then(|axis| call::axis(axis, 2).ok());
        call.map(0).is_ok_and(|x| x.dims.len() == 2 && call.is_of_samples(&x.dims)) && along == Some(1)
    };
    call.is_standard() && matches!(call.operator(), "Softmax" | "LogSoftmax") && is_only && over_features()
}

/// Ends the network in a loss over its outputs; several are joined first.
fn end(graph: &Graph<'_>, layers: &mut Layers, batch: usize) -> Result<(), String> {
    let mut outputs: Vec<LayerId> = Vec::new();
    let maps = graph.outputs().filter_map(|name| graph.value(name)?.map());
    let mixed = maps.filter(|map| map.dims.len() > 1 && map.dims[0] != batch).map(|map| map.dims.clone()).next();
    for name in graph.outputs() {
        match graph.value(name) {
            Some(Value::Map(map)) if !outputs.contains(&map.layer) => outputs.push(map.layer),
            Some(_) => {}
            None => {
                let writer = graph.writer(name).map(|node| shown(&node.op_type));
                return Err(match writer {
                    Some(operator) => format!("its output {} is one of {operator} that is not supported", shown(name)),
                    None => format!("no node writes its output {}", shown(name)),
                });
            }
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
    let loss = layers.add("loss", LayerKind::SoftmaxLoss, &[last])?;
    if let Some(dims) = mixed {
        layers.cannot_run(loss, format!("output of {dims:?}: its first extent is not that of the samples, {batch}"));
    }
    Ok(())
}
