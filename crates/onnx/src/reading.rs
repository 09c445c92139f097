//! Reads a graph into layers: first the nodes that depend on no sample, then the other nodes in order.

use std::path::Path;

use tightfit_units::Error;

use super::call::{self, Call};
use super::control::{self, Branch};
use super::decode::file_error;
use super::given::{Given, is_standard};
use super::graph::{Graph, Input};
use super::layers::{Layers, Reason, name_of};
use super::proto::{GraphProto, NodeProto};
use super::shared::Uses;
use super::shown::shown;
use super::value::{self, Order, Origin, Value};
use super::weights::Weights;
use super::{fuse, operators, products, random, table};
use tightfit_network::{Function, LayerId, LayerKind, Network};

/// The result of reading a graph.
pub(super) enum Found {
    /// The network.
    Network(Box<Whole>),
    /// Branches that replace their nodes before the graph is read again.
    Branches(Vec<Branch>),
}

/// A network, with the other results of reading its graph.
pub(super) struct Whole {
    pub network: Network,
    pub weights: Weights,
    pub uses: Uses,
    /// Why layers cannot run.
    pub reasons: Vec<Reason>,
    pub is_for_inference: bool,
}

/// Reads a graph; `stand_in` represents a mini-batch without a fixed size.
pub(super) fn read(path: &Path, proto: &GraphProto, version: Option<i64>, stand_in: usize) -> Result<Found, Error> {
    let bad = |what: String| file_error(path, format!("cannot be read as a network: {what}"));
    let mut graph = Graph::of(proto).map_err(bad)?;
    check(&mut graph, version).map_err(|fault| fault.of(path))?;
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
    if let (Some(of), Some(map)) = (element_type(proto, input.name), samples.map())
        && !value::is_floating(of)
    {
        let what = format!("its elements are of type {of}, and samples are floating-point numbers");
        layers.cannot_run(map.layer, format!("input {}: {what}", shown(input.name)));
    }
    graph.set(input.name, samples);
    let mut seen = Seen::default();
    let branch = read_nodes(&mut graph, &input, &mut layers, &mut seen, &mut done).map_err(|fault| fault.of(path))?;
    if let Some(branch) = branch {
        return Ok(Found::Branches(vec![branch]));
    }
    end(&graph, &mut layers, input.dims[0]).map_err(bad)?;
    let (network, mut sources, reasons) = layers.finish()?;
    for source in &mut sources {
        let writer = graph.writer(&source.value);
        source.is_initializer = writer.is_none();
        source.is_computed = writer.is_some_and(|node| node.op_type != "Constant");
    }
    let uses = Uses::of(&graph, &sources);
    let weights = Weights::of(&graph, sources);
    let is_for_inference = seen.is_for_inference();
    Ok(Found::Network(Whole { network, weights, uses, reasons, is_for_inference }.into()))
}

/// The type of an input's elements, if stated.
fn element_type(proto: &GraphProto, input: &str) -> Option<i32> {
    let info = proto.input.iter().find(|info| info.name == input)?;
    Some(info.r#type.as_ref()?.tensor_type.as_ref()?.elem_type).filter(|of| *of != 0)
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

/// The signs that a model was exported for inference.
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
        // PyTorch's exporters give these names to filters and biases that they have merged with batch normalizations.
        let is_merged = |name: &String| name.starts_with("onnx::Conv_") || name.ends_with(".weight_bias");
        self.merged |= operator == "Conv" && inputs.iter().skip(1).any(is_merged);
    }
}

/// Refuses nodes with attributes, inputs or outputs that are not known in the file's version of ONNX's operators.
fn check(graph: &mut Graph<'_>, version: Option<i64>) -> Result<(), Fault> {
    for at in (0..graph.len()).filter(|&at| graph.is_reached(at)).collect::<Vec<usize>>() {
        let node = graph.node(at);
        let fault = |what| Fault::at(node, what);
        if is_standard(node) {
            graph.version = table::check_version(version).map_err(fault)?;
            graph.given(at).check().map_err(fault)?;
        }
    }
    Ok(())
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
        let stated = graph.stated_without_batch(&node.output);
        let call = Call { node, given: graph.given(at), inputs, batch: 1, stated };
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
    let is_if = node.op_type == "If" && is_standard(node);
    (is_if && condition.len() == 1).then_some(Branch { node: at, holds: condition[0] != 0 })
}

/// The reason why a node with graphs cannot be read.
fn holds_graphs(node: &NodeProto) -> String {
    match node.op_type.as_str() {
        "If" => {
            "its condition is not known before the model runs; export the model so that every run takes the same branch"
        }
        _ => "it contains a graph, which is not supported; export the model without it, and loops unrolled",
    }
    .to_owned()
}

/// Sets the values of a node's outputs, except outputs that no node may read.
fn set<'a>(graph: &mut Graph<'a>, node: &'a NodeProto, values: Vec<Value>) {
    let given = Given::of(node, graph.version);
    for (at, (name, value)) in node.output.iter().zip(values).enumerate() {
        if given.is_refused(at) {
            continue;
        }
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
        let call = Call { node, given: graph.given(at), inputs, batch: input.dims[0], stated };
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

/// Reads a node together with the nodes that form one operation with it. Returns the values of the last node's outputs.
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

/// The node that adds one learned number per output to a product, if it is the product's only reader.
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
    // A softmax over the samples, or over parts of them, is a different function from the loss.
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
        layers.cannot_run(loss, format!("output of {dims:?}: its first extent is not the number of samples, {batch}"));
    }
    Ok(())
}
