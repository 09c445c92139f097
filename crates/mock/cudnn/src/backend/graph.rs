//! The operations of a graph, and graphs of them.

use crate::method::ENGINES;
use crate::pointwise::Pointwise;
use crate::problem::Problem;
use crate::tensor::Tensor;

/// An operation of a graph.
#[derive(Clone)]
pub enum Node {
    /// A convolution.
    Convolution(Problem),
    /// A pointwise operation.
    Pointwise(Pointwise),
}

/// A graph of one operation, or of a convolution and a pointwise operation on its result.
#[derive(Clone)]
pub struct Graph {
    /// The operation; a fused convolution writes where the pointwise operation does.
    pub node: Node,
    /// The operation on the result, in place.
    pub after: Option<Pointwise>,
}

impl Node {
    /// The tensors that addresses are given for, with their names.
    pub fn tensors(&self) -> Vec<&Tensor> {
        match self {
            Node::Convolution(problem) => vec![&problem.x, &problem.w, &problem.y],
            Node::Pointwise(p) => [&p.x].into_iter().chain(&p.b).chain([&p.y]).collect(),
        }
    }
}

impl Graph {
    /// Number of engines.
    pub fn engines(&self) -> i64 {
        if self.problem().is_some() { ENGINES.len() as i64 } else { 1 }
    }

    /// The convolution, if it is one.
    pub fn problem(&self) -> Option<&Problem> {
        match &self.node {
            Node::Convolution(problem) => Some(problem),
            Node::Pointwise(_) => None,
        }
    }

    /// The pointwise operation, if there is one.
    pub fn pointwise(&self) -> Option<&Pointwise> {
        match &self.node {
            Node::Convolution(_) => self.after.as_ref(),
            Node::Pointwise(operation) => Some(operation),
        }
    }
}
