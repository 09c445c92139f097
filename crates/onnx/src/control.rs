//! Nodes with graphs: an `If` is replaced by the branch that it takes, if the condition does not depend on the samples.

use std::collections::{HashMap, HashSet};

use super::proto::{GraphProto, NodeProto};

/// The most nodes to read again for all branches of a file.
const MOST_READ_AGAIN: usize = 1 << 20;

/// An `If` that a branch replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// The number of the node, in the graph as changed by the branches before it.
    pub node: usize,
    /// Whether its condition is true.
    pub holds: bool,
}

/// The graphs that a node holds.
pub fn graphs(node: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    node.attribute.iter().flat_map(|attribute| attribute.g.iter().chain(&attribute.graphs))
}

/// The names that the graphs of a node read from outside.
pub fn captured(node: &NodeProto) -> HashSet<&str> {
    let mut names = HashSet::new();
    for graph in graphs(node) {
        let mut inside: HashSet<&str> = graph.input.iter().map(|input| input.name.as_str()).collect();
        inside.extend(graph.initializer.iter().map(|tensor| tensor.name.as_str()));
        inside.extend(graph.node.iter().flat_map(|node| &node.output).map(String::as_str));
        let mut read: HashSet<&str> = graph.output.iter().map(|output| output.name.as_str()).collect();
        for node in &graph.node {
            read.extend(node.input.iter().map(String::as_str));
            read.extend(captured(node));
        }
        names.extend(read.into_iter().filter(|name| !name.is_empty() && !inside.contains(name)));
    }
    names
}

/// Refuses more branches than can be read in seconds, because each is read again with the graph.
pub fn check(branches: usize, graph: &GraphProto) -> Result<(), String> {
    if branches.saturating_mul(graph.node.len()) > MOST_READ_AGAIN {
        return Err(format!("{branches} nodes `If` and {} others are too many", graph.node.len()));
    }
    Ok(())
}

/// Replaces nodes by their branches, one after another; an error names the invalid branch.
pub fn inline(graph: &mut GraphProto, branches: &[Branch]) -> Result<(), String> {
    branches.iter().try_for_each(|branch| inline_one(graph, *branch))
}

fn inline_one(graph: &mut GraphProto, branch: Branch) -> Result<(), String> {
    let wanted = if branch.holds { "then_branch" } else { "else_branch" };
    let outside: HashSet<String> = names(graph).map(str::to_owned).collect();
    let wrong = |what: &str| format!("node {}: the `If` {what}", branch.node);
    let node = graph.node.get_mut(branch.node).ok_or_else(|| wrong("is not there"))?;
    let body = node.attribute.iter_mut().find(|attribute| attribute.name == wanted).and_then(|found| found.g.take());
    let mut body = body.ok_or_else(|| wrong(&format!("has no {wanted}")))?;
    if !body.input.is_empty() || body.output.len() < node.output.len() {
        return Err(wrong(&format!("has a {wanted} with other inputs or outputs")));
    }
    // Names are unique within a branch alone.
    let first = node.output.first().cloned().unwrap_or_default();
    let taken: HashMap<String, String> = names(&body)
        .filter(|name| outside.contains(*name))
        .map(|name| (name.to_owned(), format!("{first}.{name}")))
        .collect();
    rename(&mut body, &taken);
    let results = node.output.iter().zip(&body.output).filter(|(name, _)| !name.is_empty());
    let results: Vec<NodeProto> = results
        .map(|(name, result)| NodeProto {
            input: vec![result.name.clone()],
            output: vec![name.clone()],
            name: node.name.clone(),
            op_type: "Identity".to_owned(),
            ..NodeProto::default()
        })
        .collect();
    graph.node.splice(branch.node..=branch.node, body.node.into_iter().chain(results));
    graph.initializer.extend(body.initializer);
    graph.value_info.extend(body.value_info);
    Ok(())
}

fn names(graph: &GraphProto) -> impl Iterator<Item = &str> {
    let written = graph.node.iter().flat_map(|node| &node.output).filter(|name| !name.is_empty());
    let given = graph.input.iter().map(|input| &input.name).chain(graph.initializer.iter().map(|tensor| &tensor.name));
    written.chain(given).map(String::as_str)
}

fn rename(graph: &mut GraphProto, names: &HashMap<String, String>) {
    let put = |name: &mut String| {
        if let Some(new) = names.get(name) {
            name.clone_from(new);
        }
    };
    graph.initializer.iter_mut().for_each(|tensor| put(&mut tensor.name));
    graph.value_info.iter_mut().chain(&mut graph.output).for_each(|info| put(&mut info.name));
    for node in &mut graph.node {
        node.input.iter_mut().chain(&mut node.output).for_each(put);
        for attribute in &mut node.attribute {
            attribute.g.iter_mut().chain(&mut attribute.graphs).for_each(|graph| rename(graph, names));
        }
    }
}
