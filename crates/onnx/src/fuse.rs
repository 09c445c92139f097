//! Recognizes activations and normalizations that exporters spell out in several nodes.
//!
//! ```text
//! x --+-- Sigmoid --+                     x --+-- ReduceMean -- Sub --+-- Pow -- ReduceMean -- Add -- Sqrt --+-- Mul -- Add
//!     `------------ Mul  =  Silu              `-------------------'   `-------------------------------------- Div
//! ```
//!
//! A framework computes these in one kernel that saves `x`. Node by node, each intermediate would be a feature map.

use std::collections::HashSet;

use super::evaluate;
use super::given::is_standard;
use super::graph::Graph;
use super::slots::Slot;
use super::value::Value;
use tightfit_network::Function;

/// Nodes to look at after the first.
const LONGEST: usize = 24;

/// Nodes that together compute one value from another.
pub struct Fused {
    /// The nodes, in order.
    pub nodes: Vec<usize>,
    /// The operator that they compute together.
    pub operator: &'static str,
}

impl Fused {
    /// The function that the nodes compute from `x` of `rank` axes, if it is one that can run, and where its parameters
    /// are.
    pub fn function<'a>(
        &self,
        graph: &'a Graph<'_>,
        x: &str,
        rank: usize,
    ) -> (Option<Function>, Vec<(Slot, Option<&'a Value>)>) {
        if self.operator != "LayerNormalization" {
            return (evaluate::activation(graph, &self.nodes, x), Vec::new());
        }
        let learned = |at: usize| graph.node(at).input.iter().find(|name| graph.is_learned(name));
        let affine =
            self.nodes.len().checked_sub(2).and_then(|first| Some((&self.nodes[..first], self.nodes.get(first..)?)));
        let Some((plain, &[scale, shift])) = affine else { return (None, Vec::new()) };
        let (Some(factor), Some(offset)) = (learned(scale), learned(shift)) else { return (None, Vec::new()) };
        let is_affine = graph.operator(scale) == "Mul" && graph.operator(shift) == "Add";
        let function = is_affine.then(|| evaluate::layer_norm(graph, plain, x, rank)).flatten();
        (function, vec![(Slot::Scale, graph.value(factor)), (Slot::Shift, graph.value(offset))])
    }
}

/// Finds the operation that begins at node `start` and works on the value `x`, if the nodes that read `x` are part of
/// one.
pub fn find(graph: &Graph<'_>, start: usize, x: &str) -> Option<Fused> {
    let readers = graph.readers(x);
    let has_parts = readers.len() > 1 && readers.iter().all(|&reader| is_part(graph.operator(reader)));
    if !has_parts || graph.is_output(x) {
        return None;
    }
    let mut nodes: Vec<usize> = Vec::new();
    let mut inside: HashSet<&str> = HashSet::from([x]);
    for at in (start..graph.len()).take(LONGEST * 4) {
        let node = graph.node(at);
        if !graph.is_reached(at) || !is_part(&node.op_type) || !is_standard(node) {
            continue;
        }
        let names = || node.input.iter().map(String::as_str).filter(|name| !name.is_empty());
        let known = |name: &str| inside.contains(name) || graph.constant(name).is_some();
        if !names().any(|name| inside.contains(name)) || !names().all(known) {
            continue;
        }
        nodes.push(at);
        if nodes.len() > LONGEST {
            return None;
        }
        inside.extend(node.output.iter().map(String::as_str));
        if let Some(operator) = operator(graph, &nodes)
            && is_closed(graph, &nodes, x)
        {
            return Some(Fused { nodes: with_affine(graph, nodes, operator), operator });
        }
    }
    None
}

/// Whether these nodes normalize together.
pub fn is_normalization(graph: &Graph<'_>, nodes: &[usize]) -> bool {
    let has = |operator: &str| nodes.iter().any(|&node| graph.operator(node) == operator);
    has("ReduceMean") && has("Sqrt")
}

/// Operators that these operations consist of.
fn is_part(operator: &str) -> bool {
    let parts = [
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Pow",
        "Sqrt",
        "Reciprocal",
        "Erf",
        "Tanh",
        "Sigmoid",
        "HardSigmoid",
        "Clip",
        "Exp",
        "Log",
        "Softplus",
        "ReduceMean",
        "Min",
        "Max",
        "Neg",
    ];
    parts.contains(&operator)
}

/// The operator that these nodes compute together, identified by a node that only it has.
fn operator(graph: &Graph<'_>, nodes: &[usize]) -> Option<&'static str> {
    let has = |operator: &str| nodes.iter().any(|&node| graph.operator(node) == operator);
    if has("ReduceMean") {
        return (is_normalization(graph, nodes) && (has("Div") || has("Mul"))).then_some("LayerNormalization");
    }
    let ends_in_product = nodes.last().is_some_and(|&last| matches!(graph.operator(last), "Mul" | "Div"));
    if !ends_in_product {
        return None;
    }
    match () {
        () if has("Erf") => Some("Gelu"),
        () if has("Softplus") || has("Exp") && has("Log") => has("Tanh").then_some("Mish"),
        () if has("Tanh") && !has("Sigmoid") => Some("Gelu"),
        () if has("Tanh") => None,
        () if has("HardSigmoid") || has("Clip") => Some("HardSwish"),
        () if has("Sigmoid") => Some("Silu"),
        () => None,
    }
}

/// Whether only these nodes read `x`, and all but the last are read by them alone.
fn is_closed(graph: &Graph<'_>, nodes: &[usize], x: &str) -> bool {
    let own = |name: &str| graph.readers(name).iter().all(|reader| nodes.contains(reader)) && !graph.is_output(name);
    let Some((last, others)) = nodes.split_last() else { return false };
    let ends = graph.node(*last).output.len() == 1;
    ends && own(x) && others.iter().all(|&node| graph.node(node).output.iter().all(|name| own(name)))
}

/// These nodes and the following nodes that scale (and for a normalization shift) the result by constants.
fn with_affine(graph: &Graph<'_>, mut nodes: Vec<usize>, operator: &str) -> Vec<usize> {
    let normalizes = operator == "LayerNormalization";
    while let Some(output) = nodes.last().and_then(|&last| graph.node(last).output.first())
        && let [reader] = graph.readers(output)
        && !graph.is_output(output)
    {
        let node = graph.node(*reader);
        let fits = is_standard(node) && (node.op_type == "Mul" || node.op_type == "Add" && normalizes);
        let others = node.input.iter().filter(|name| *name != output);
        if !fits
            || node.input.len() != 2
            || !others.clone().all(|name| graph.constant(name).is_some())
            || others.count() != 1
        {
            break;
        }
        // An activation has no learned factor: that would be a separate layer.
        let learned = node.input.iter().any(|name| graph.is_learned(name));
        if learned != normalizes {
            break;
        }
        nodes.push(*reader);
    }
    nodes
}
