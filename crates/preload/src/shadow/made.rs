//! What finalized descriptors are, as far as convolutions go.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tightfit_core::Notes;
use tightfit_cuda::sys::cudnn::Kind;

use super::Attributes;
use crate::plan::Plan;
use crate::reason::Reason;
use crate::recognize::{Recognized, Tensor, Window, convolution, tensor, window};

/// A finalized descriptor, or why it is of no use to us. Cheap to copy.
#[derive(Clone, Debug)]
pub enum Made {
    /// A tensor.
    Tensor(Arc<Result<Tensor, Reason>>),
    /// Padding, strides, dilation and arithmetic.
    Window(Arc<Result<Window, Reason>>),
    /// An operation.
    Operation(Arc<Result<Recognized, Reason>>),
    /// A graph.
    Graph(Arc<Graph>),
    /// A heuristic's answers, an engine or an engine's configuration: for this graph.
    Of(Arc<Graph>),
    /// A plan that nobody has looked at, for this graph.
    NewPlan(Arc<Graph>),
    /// A plan.
    Plan(Arc<Plan>),
    /// Addresses.
    Pack(Arc<Pack>),
    /// Anything else.
    Other,
}

/// An operation graph.
#[derive(Debug)]
pub struct Graph {
    /// The handle it was made with.
    pub handle: usize,
    /// Its one convolution, or why it is left as it is.
    pub convolution: Result<Recognized, Reason>,
    /// Notes of all engines of which the program has built plans for it: what its mode admits.
    admitted: AtomicU32,
}

impl Graph {
    fn new(handle: usize, convolution: Result<Recognized, Reason>) -> Arc<Graph> {
        Arc::new(Graph { handle, convolution, admitted: AtomicU32::new(0) })
    }

    /// Adds the notes of an engine that the program chose, and gives all so far.
    pub fn admit(&self, notes: Notes) -> Notes {
        Notes(self.admitted.fetch_or(notes.0, Ordering::Relaxed) | notes.0)
    }
}

/// Addresses by the tensors' ids, and the workspace.
#[derive(Debug)]
pub struct Pack {
    ids: Vec<i64>,
    addresses: Vec<i64>,
    /// The workspace's address; 0 for none.
    pub workspace: u64,
    /// Whether something else was set, such as other shapes.
    pub is_special: bool,
}

impl Pack {
    /// The address of a tensor.
    pub fn address(&self, id: i64) -> Option<u64> {
        let place = self.ids.iter().position(|known| *known == id)?;
        self.addresses.get(place).map(|&address| address as u64)
    }
}

impl Made {
    /// What a descriptor's attributes make.
    pub fn new(kind: Kind, attributes: &Attributes) -> Made {
        match kind {
            Kind::TENSOR => Made::Tensor(Arc::new(tensor(attributes))),
            Kind::CONVOLUTION => Made::Window(Arc::new(window(attributes))),
            Kind::OPERATION_CONVOLUTION_FORWARD
            | Kind::OPERATION_CONVOLUTION_BACKWARD_DATA
            | Kind::OPERATION_CONVOLUTION_BACKWARD_FILTER => Made::Operation(Arc::new(convolution(kind, attributes))),
            Kind::OPERATIONGRAPH => Made::Graph(graph(attributes)),
            Kind::ENGINEHEUR => Made::Of(linked(attributes, 201, &[200, 201, 203])),
            Kind::ENGINE => Made::Of(linked(attributes, 1300, &[1300, 1301])),
            Kind::ENGINECFG => Made::Of(linked(attributes, 300, &[300, 302])),
            Kind::EXECUTION_PLAN => match attributes.get(405) {
                Some(_) => Made::NewPlan(Graph::new(0, Err(Reason::Restored))),
                None => Made::NewPlan(linked(attributes, 401, &[400, 401])),
            },
            Kind::VARIANT_PACK => Made::Pack(Arc::new(pack(attributes))),
            _ => Made::Other,
        }
    }

    /// The graph that it is or is for.
    pub fn graph(&self) -> Option<Arc<Graph>> {
        match self {
            Made::Graph(graph) | Made::Of(graph) | Made::NewPlan(graph) => Some(graph.clone()),
            Made::Plan(plan) => plan.graph.clone(),
            _ => None,
        }
    }
}

fn graph(attributes: &Attributes) -> Arc<Graph> {
    let handle = attributes.integer(800).unwrap_or(0) as usize;
    // OPERATIONGRAPH_HANDLE, _OPS, _IS_DYNAMIC_SHAPE_ENABLED, _IS_OVERRIDE_SHAPE_ENABLED
    let is_dynamic =
        [803, 805].iter().any(|&name| attributes.get(name).is_some() && attributes.integer(name) != Some(0));
    let convolution = if is_dynamic {
        Err(Reason::Dynamic)
    } else if attributes.names().any(|name| ![800, 801, 803, 805].contains(&name)) {
        Err(Reason::Attribute)
    } else {
        match attributes.get(801) {
            Some(super::Value::Objects(operations)) => match operations.as_slice() {
                [Some(Made::Operation(operation))] => (**operation).clone(),
                [None] => Err(Reason::Descriptor),
                [_] => Err(Reason::NoConvolution),
                many if many.iter().any(|one| matches!(one, Some(Made::Operation(_)))) => Err(Reason::Fused),
                _ => Err(Reason::NoConvolution),
            },
            _ => Err(Reason::Descriptor),
        }
    };
    Graph::new(handle, convolution)
}

/// The graph that a descriptor leads to; one that is left as it is where attributes say something unknown.
fn linked(attributes: &Attributes, link: i32, known: &[i32]) -> Arc<Graph> {
    let Some(graph) = attributes.object(link).and_then(Made::graph) else {
        return Graph::new(0, Err(Reason::Descriptor));
    };
    if graph.convolution.is_ok() && attributes.names().any(|name| !known.contains(&name)) {
        return Graph::new(graph.handle, Err(Reason::Attribute));
    }
    graph
}

fn pack(attributes: &Attributes) -> Pack {
    let integers = |name| attributes.integers(name).unwrap_or_default().to_vec();
    Pack {
        ids: integers(1000),
        addresses: integers(1001),
        workspace: attributes.integer(1003).unwrap_or(0) as u64,
        is_special: attributes.names().any(|name| ![1000, 1001, 1003].contains(&name)),
    }
}
