//! What finalized descriptors stand for, as far as convolutions are concerned.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use tightfit_core::Notes;
use tightfit_cuda::sys::cudnn::{Attribute, Kind};

use super::Attributes;
use crate::plan::{Decision, Plan};
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
    /// A heuristic's answers or an engine: for this graph.
    Of(Arc<Graph>),
    /// An engine's configuration.
    Configuration(Arc<Asked>),
    /// A plan not considered yet, for this graph and, if known, this configuration.
    NewPlan(Arc<Graph>, Option<Arc<Asked>>),
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
    /// Its one convolution, or why it is left unchanged.
    pub convolution: Result<Recognized, Reason>,
    /// Notes of all engines for which the program has built plans: what its mode allows.
    admitted: AtomicU32,
}

impl Graph {
    fn new(handle: usize, convolution: Result<Recognized, Reason>) -> Arc<Graph> {
        Arc::new(Graph { handle, convolution, admitted: AtomicU32::new(0) })
    }

    /// Adds the notes of an engine that the program chose, and returns all notes so far.
    pub fn admit(&self, notes: Notes) -> Notes {
        Notes(self.admitted.fetch_or(notes.0, Ordering::Relaxed) | notes.0)
    }
}

/// An engine's configuration and the workspace reported for it, which binds any plan made from it.
#[derive(Debug)]
pub struct Asked {
    /// The graph that it is for.
    pub graph: Arc<Graph>,
    /// The decision made when its workspace was queried.
    pub decision: OnceLock<Decision>,
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
    /// Builds the object that a descriptor's attributes describe.
    pub fn new(kind: Kind, attributes: &Attributes) -> Made {
        match kind {
            Kind::TENSOR => Made::Tensor(Arc::new(tensor(attributes))),
            Kind::CONVOLUTION => Made::Window(Arc::new(window(attributes))),
            Kind::OPERATION_CONVOLUTION_FORWARD
            | Kind::OPERATION_CONVOLUTION_BACKWARD_DATA
            | Kind::OPERATION_CONVOLUTION_BACKWARD_FILTER => Made::Operation(Arc::new(convolution(kind, attributes))),
            Kind::OPERATIONGRAPH => Made::Graph(graph(attributes)),
            Kind::ENGINEHEUR => Made::Of(linked(
                attributes,
                Attribute::ENGINEHEUR_OPERATION_GRAPH,
                &[
                    Attribute::ENGINEHEUR_MODE,
                    Attribute::ENGINEHEUR_OPERATION_GRAPH,
                    Attribute::ENGINEHEUR_SM_COUNT_TARGET,
                ],
            )),
            Kind::ENGINE => Made::Of(linked(
                attributes,
                Attribute::ENGINE_OPERATION_GRAPH,
                &[Attribute::ENGINE_OPERATION_GRAPH, Attribute::ENGINE_GLOBAL_INDEX],
            )),
            Kind::ENGINECFG => Made::configuration(linked(
                attributes,
                Attribute::ENGINECFG_ENGINE,
                &[Attribute::ENGINECFG_ENGINE, Attribute::ENGINECFG_KNOB_CHOICES],
            )),
            Kind::EXECUTION_PLAN => match attributes.get(Attribute::EXECUTION_PLAN_JSON_REPRESENTATION) {
                Some(_) => Made::NewPlan(Graph::new(0, Err(Reason::Restored)), None),
                None => {
                    let asked = match attributes.object(Attribute::EXECUTION_PLAN_ENGINE_CONFIG) {
                        Some(Made::Configuration(asked)) => Some(asked.clone()),
                        _ => None,
                    };
                    Made::NewPlan(
                        linked(
                            attributes,
                            Attribute::EXECUTION_PLAN_ENGINE_CONFIG,
                            &[Attribute::EXECUTION_PLAN_HANDLE, Attribute::EXECUTION_PLAN_ENGINE_CONFIG],
                        ),
                        asked,
                    )
                }
            },
            Kind::VARIANT_PACK => Made::Pack(Arc::new(pack(attributes))),
            _ => Made::Other,
        }
    }

    /// An engine's configuration for a graph, not queried yet.
    pub fn configuration(graph: Arc<Graph>) -> Made {
        Made::Configuration(Arc::new(Asked { graph, decision: OnceLock::new() }))
    }

    /// The graph that it is or is for.
    pub fn graph(&self) -> Option<Arc<Graph>> {
        match self {
            Made::Graph(graph) | Made::Of(graph) | Made::NewPlan(graph, _) => Some(graph.clone()),
            Made::Configuration(asked) => Some(asked.graph.clone()),
            Made::Plan(plan) => plan.graph.clone(),
            _ => None,
        }
    }
}

fn graph(attributes: &Attributes) -> Arc<Graph> {
    let handle = attributes.integer(Attribute::OPERATIONGRAPH_HANDLE).unwrap_or(0) as usize;
    let is_dynamic =
        [Attribute::OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED, Attribute::OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED]
            .iter()
            .any(|&name| attributes.get(name).is_some() && attributes.integer(name) != Some(0));
    let convolution = if is_dynamic {
        Err(Reason::Dynamic)
    } else if attributes.names().any(|name| {
        ![
            Attribute::OPERATIONGRAPH_HANDLE,
            Attribute::OPERATIONGRAPH_OPS,
            Attribute::OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED,
            Attribute::OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED,
        ]
        .contains(&name)
    }) {
        Err(Reason::Attribute)
    } else {
        match attributes.get(Attribute::OPERATIONGRAPH_OPS) {
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

/// The graph that a descriptor leads to; one that is left unchanged if an attribute is unknown.
fn linked(attributes: &Attributes, link: Attribute, known: &[Attribute]) -> Arc<Graph> {
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
        ids: integers(Attribute::VARIANT_PACK_UNIQUE_IDS),
        addresses: integers(Attribute::VARIANT_PACK_DATA_POINTERS),
        workspace: attributes.integer(Attribute::VARIANT_PACK_WORKSPACE).unwrap_or(0) as u64,
        is_special: attributes.names().any(|name| {
            ![
                Attribute::VARIANT_PACK_UNIQUE_IDS,
                Attribute::VARIANT_PACK_DATA_POINTERS,
                Attribute::VARIANT_PACK_WORKSPACE,
            ]
            .contains(&name)
        }),
    }
}

#[cfg(test)]
mod tests {
    use tightfit_core::Types;

    use super::*;
    use crate::shadow::Value;

    /// Attributes by number.
    struct Described(Attributes);

    impl Described {
        fn new() -> Described {
            Described(Attributes::default())
        }

        fn with(mut self, name: Attribute, values: &[i64]) -> Described {
            self.0.set(name, Value::Integers(values.to_vec()));
            self
        }

        fn objects(mut self, name: Attribute, objects: &[&Made]) -> Described {
            self.0.set(name, Value::Objects(objects.iter().map(|made| Some((*made).clone())).collect()));
            self
        }

        fn make(&self, kind: Kind) -> Made {
            Made::new(kind, &self.0)
        }
    }

    fn tensor_of(id: i64, dims: [i64; 4]) -> Described {
        let [_, c, h, w] = dims;
        let strides = [c * h * w, h * w, w, 1];
        Described::new()
            .with(Attribute::TENSOR_BYTE_ALIGNMENT, &[16])
            .with(Attribute::TENSOR_DATA_TYPE, &[0])
            .with(Attribute::TENSOR_DIMENSIONS, &dims)
            .with(Attribute::TENSOR_STRIDES, &strides)
            .with(Attribute::TENSOR_UNIQUE_ID, &[id])
    }

    fn window_of(mode: i64) -> Described {
        let window = Described::new()
            .with(Attribute::CONVOLUTION_COMP_TYPE, &[0])
            .with(Attribute::CONVOLUTION_CONV_MODE, &[mode])
            .with(Attribute::CONVOLUTION_SPATIAL_DIMS, &[2]);
        window
            .with(Attribute::CONVOLUTION_DILATIONS, &[1, 1])
            .with(Attribute::CONVOLUTION_FILTER_STRIDES, &[1, 1])
            .with(Attribute::CONVOLUTION_POST_PADDINGS, &[1, 1])
            .with(Attribute::CONVOLUTION_PRE_PADDINGS, &[1, 1])
    }

    /// A forward operation whose parts can be changed.
    fn operation(x: Described, window: Described) -> Described {
        let w = tensor_of(2, [8, 4, 3, 3]).make(Kind::TENSOR);
        let y = tensor_of(3, [6, 8, 5, 5]).make(Kind::TENSOR);
        let (x, window) = (x.make(Kind::TENSOR), window.make(Kind::CONVOLUTION));
        Described::new()
            .objects(Attribute::FORWARD_X, &[&x])
            .objects(Attribute::FORWARD_W, &[&w])
            .objects(Attribute::FORWARD_Y, &[&y])
            .objects(Attribute::FORWARD_CONV_DESC, &[&window])
    }

    fn good() -> Made {
        operation(tensor_of(1, [6, 4, 5, 5]), window_of(1)).make(Kind::OPERATION_CONVOLUTION_FORWARD)
    }

    fn reason(graph: &Described) -> Result<String, Reason> {
        let Made::Graph(graph) = graph.make(Kind::OPERATIONGRAPH) else { panic!("no graph") };
        let convolution = graph.convolution.as_ref().map_err(|reason| *reason)?;
        Ok(convolution.problem(true)?.to_string())
    }

    fn of_operation(operation: &Described) -> Result<String, Reason> {
        reason(
            &Described::new()
                .with(Attribute::OPERATIONGRAPH_HANDLE, &[64])
                .objects(Attribute::OPERATIONGRAPH_OPS, &[&operation.make(Kind::OPERATION_CONVOLUTION_FORWARD)]),
        )
    }

    #[test]
    fn one_convolution_is_recognized_with_its_ids() {
        let graph = Described::new()
            .with(Attribute::OPERATIONGRAPH_HANDLE, &[64])
            .objects(Attribute::OPERATIONGRAPH_OPS, &[&good()]);
        assert_eq!(reason(&graph).unwrap(), "forward n6 c4 h5 w5 k8 r3 s3 pad1 tf32");
        let Made::Graph(graph) = graph.make(Kind::OPERATIONGRAPH) else { panic!("no graph") };
        let convolution = graph.convolution.as_ref().unwrap();
        assert_eq!((graph.handle, convolution.ids, convolution.base), (64, [1, 2, 3], 16));
        assert_eq!(convolution.problem(false).unwrap().types(), Types::F32);
    }

    #[test]
    fn every_other_tensor_has_its_reason() {
        let x = || tensor_of(1, [6, 4, 5, 5]);
        for (tensor, expected) in [
            (x().with(Attribute::TENSOR_IS_VIRTUAL, &[1]), Reason::Virtual),
            (x().with(Attribute::TENSOR_IS_BY_VALUE, &[1]), Reason::Virtual),
            (x().with(Attribute::TENSOR_VECTOR_COUNT, &[32]), Reason::Special),
            (x().with(Attribute::TENSOR_REORDERING_MODE, &[1]), Reason::Special),
            (x().objects(Attribute::TENSOR_RAGGED_OFFSET_DESC, &[&Made::Other]), Reason::Special),
            (x().with(Attribute(999), &[1]), Reason::Attribute),
            (x().with(Attribute::TENSOR_DATA_TYPE, &[3]), Reason::Types),
            (x().with(Attribute::TENSOR_DATA_TYPE, &[2]), Reason::Types),
            (x().with(Attribute::TENSOR_STRIDES, &[200, 25, 5, 1]), Reason::Layout),
            (x().with(Attribute::TENSOR_STRIDES, &[-100, 25, 5, 1]), Reason::Layout),
            (tensor_of(1, [7, 4, 5, 5]), Reason::Shape),
        ] {
            assert_eq!(of_operation(&operation(tensor, window_of(1))), Err(expected));
        }
        let harmless = x()
            .with(Attribute::TENSOR_IS_VIRTUAL, &[0])
            .with(Attribute::TENSOR_IS_BY_VALUE, &[0])
            .with(Attribute::TENSOR_VECTOR_COUNT, &[1])
            .with(Attribute::TENSOR_REORDERING_MODE, &[0]);
        assert!(of_operation(&operation(harmless, window_of(1))).is_ok());
    }

    #[test]
    fn every_other_graph_has_its_reason() {
        let (good, other) = (good(), Made::Other);
        let graph = || Described::new().with(Attribute::OPERATIONGRAPH_HANDLE, &[64]);
        for (graph, expected) in [
            (graph().objects(Attribute::OPERATIONGRAPH_OPS, &[&good, &other]), Reason::Fused),
            (graph().objects(Attribute::OPERATIONGRAPH_OPS, &[&other]), Reason::NoConvolution),
            (graph(), Reason::Descriptor),
            (
                graph()
                    .objects(Attribute::OPERATIONGRAPH_OPS, &[&good])
                    .with(Attribute::OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED, &[1]),
                Reason::Dynamic,
            ),
            (
                graph()
                    .objects(Attribute::OPERATIONGRAPH_OPS, &[&good])
                    .with(Attribute::OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED, &[1]),
                Reason::Dynamic,
            ),
            (graph().objects(Attribute::OPERATIONGRAPH_OPS, &[&good]).with(Attribute(899), &[1]), Reason::Attribute),
        ] {
            assert_eq!(reason(&graph), Err(expected));
        }
        assert!(
            reason(
                &graph()
                    .objects(Attribute::OPERATIONGRAPH_OPS, &[&good])
                    .with(Attribute::OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED, &[0])
            )
            .is_ok()
        );
        assert_eq!(of_operation(&operation(tensor_of(1, [6, 4, 5, 5]), window_of(0))), Err(Reason::Mode));
        let unknown = operation(tensor_of(1, [6, 4, 5, 5]), window_of(1)).with(Attribute(799), &[1]);
        assert_eq!(of_operation(&unknown), Err(Reason::Attribute));
    }

    #[test]
    fn engines_configurations_and_plans_lead_to_their_graph_or_to_a_reason() {
        let graph = Described::new()
            .with(Attribute::OPERATIONGRAPH_HANDLE, &[64])
            .objects(Attribute::OPERATIONGRAPH_OPS, &[&good()])
            .make(Kind::OPERATIONGRAPH);
        let convolution_of = |made: &Made| made.graph().unwrap().convolution.clone().map(|_| ());
        let engine = || {
            Described::new()
                .objects(Attribute::ENGINE_OPERATION_GRAPH, &[&graph])
                .with(Attribute::ENGINE_GLOBAL_INDEX, &[2])
        };
        let config = Described::new()
            .objects(Attribute::ENGINECFG_ENGINE, &[&engine().make(Kind::ENGINE)])
            .make(Kind::ENGINECFG);
        let plan = || {
            Described::new()
                .objects(Attribute::EXECUTION_PLAN_ENGINE_CONFIG, &[&config])
                .with(Attribute::EXECUTION_PLAN_HANDLE, &[64])
        };
        assert_eq!(convolution_of(&plan().make(Kind::EXECUTION_PLAN)), Ok(()));
        // Limited to some multiprocessors: a micro-batch's engine would not be.
        assert_eq!(
            convolution_of(&engine().with(Attribute::ENGINE_SM_COUNT_TARGET, &[8]).make(Kind::ENGINE)),
            Err(Reason::Attribute)
        );
        assert_eq!(
            convolution_of(&plan().with(Attribute::EXECUTION_PLAN_DEVICEPROP, &[1]).make(Kind::EXECUTION_PLAN)),
            Err(Reason::Attribute)
        );
        let restored = Described::new()
            .with(Attribute::EXECUTION_PLAN_HANDLE, &[64])
            .with(Attribute::EXECUTION_PLAN_JSON_REPRESENTATION, &[1])
            .make(Kind::EXECUTION_PLAN);
        assert_eq!(convolution_of(&restored), Err(Reason::Restored));
    }
}
