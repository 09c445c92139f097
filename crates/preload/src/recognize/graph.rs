//! Operation graphs, and the way to them from other descriptors.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tightfit_conv::Notes;
use tightfit_cuda::sys::cudnn::{Attribute, Kind};

use super::attributes::computation;
use super::computation::Computation;
use crate::reason::Reason;
use crate::shadow::{Attributes, Object};

/// An operation graph.
#[derive(Debug)]
pub struct Graph {
    /// The handle it was made with.
    pub handle: usize,
    /// Its one convolution, or why it is left unchanged.
    pub computation: Result<Computation, Reason>,
    /// Notes of all engines for which the program has built plans: its mode allows them.
    admitted: AtomicU32,
}

impl Graph {
    fn new(handle: usize, computation: Result<Computation, Reason>) -> Graph {
        Graph { handle, computation, admitted: AtomicU32::new(0) }
    }

    /// A graph with only the reason why it is left unchanged.
    pub fn unknown(reason: Reason) -> Graph {
        Graph::new(0, Err(reason))
    }

    /// This graph, left unchanged for a reason of the descriptor that leads to it.
    pub fn refused(&self, reason: Reason) -> Graph {
        Graph::new(self.handle, Err(reason))
    }

    /// The graph of these attributes.
    pub fn read<N>(attributes: &Attributes<N>) -> Graph {
        let handle = attributes.integer(Attribute::OPERATIONGRAPH_HANDLE).unwrap_or(0) as usize;
        Graph::new(handle, single_convolution(attributes))
    }

    /// Adds the notes of an engine that the program chose, and returns all notes so far.
    pub fn admit(&self, notes: Notes) -> Notes {
        Notes(self.admitted.fetch_or(notes.0, Ordering::Relaxed) | notes.0)
    }
}

/// The one convolution of a graph.
fn single_convolution<N>(attributes: &Attributes<N>) -> Result<Computation, Reason> {
    const KNOWN: [Attribute; 4] = [
        Attribute::OPERATIONGRAPH_HANDLE,
        Attribute::OPERATIONGRAPH_OPS,
        Attribute::OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED,
        Attribute::OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED,
    ];
    let [_, operations, dynamic, overridden] = KNOWN;
    let is_set = |name| attributes.get(name).is_some() && attributes.integer(name) != Some(0);
    if is_set(dynamic) || is_set(overridden) {
        return Err(Reason::Dynamic);
    }
    if !attributes.are_among(&KNOWN) {
        return Err(Reason::Attribute);
    }
    match attributes.objects(operations).ok_or(Reason::Descriptor)? {
        [None] => Err(Reason::Descriptor),
        [Some(operation)] => match convolution(operation) {
            Some(attributes) => computation(operation.kind, attributes),
            None => Err(Reason::NoConvolution),
        },
        many if many.iter().flatten().any(|operation| convolution(operation).is_some()) => Err(Reason::Fused),
        _ => Err(Reason::NoConvolution),
    }
}

/// The attributes of a convolution's operation, or `None` for any other object.
fn convolution<N>(object: &Object<N>) -> Option<&Attributes<N>> {
    let convolutions = [
        Kind::OPERATION_CONVOLUTION_FORWARD,
        Kind::OPERATION_CONVOLUTION_BACKWARD_DATA,
        Kind::OPERATION_CONVOLUTION_BACKWARD_FILTER,
    ];
    object.attributes().filter(|_| convolutions.contains(&object.kind))
}

/// Where an object leads on the way to its graph.
pub enum Link<'a, N> {
    /// It is the graph, of these attributes.
    Arrived(&'a Attributes<N>),
    /// To this object; additional attributes may change the computation in an unknown way.
    To { object: &'a Arc<Object<N>>, is_understood: bool },
    /// To a graph that was not seen.
    Lost(Reason),
    /// To none: objects of this kind have no graph.
    Nowhere,
}

/// The next step from an object towards its graph.
pub fn link<N>(object: &Object<N>) -> Link<'_, N> {
    let Some(attributes) = object.attributes() else { return Link::Nowhere };
    let (link, known): (_, &[Attribute]) = match object.kind {
        Kind::OPERATIONGRAPH => return Link::Arrived(attributes),
        Kind::ENGINEHEUR => (
            Attribute::ENGINEHEUR_OPERATION_GRAPH,
            &[Attribute::ENGINEHEUR_MODE, Attribute::ENGINEHEUR_OPERATION_GRAPH, Attribute::ENGINEHEUR_SM_COUNT_TARGET],
        ),
        Kind::ENGINE => {
            (Attribute::ENGINE_OPERATION_GRAPH, &[Attribute::ENGINE_OPERATION_GRAPH, Attribute::ENGINE_GLOBAL_INDEX])
        }
        Kind::ENGINECFG => {
            (Attribute::ENGINECFG_ENGINE, &[Attribute::ENGINECFG_ENGINE, Attribute::ENGINECFG_KNOB_CHOICES])
        }
        Kind::EXECUTION_PLAN if attributes.get(Attribute::EXECUTION_PLAN_JSON_REPRESENTATION).is_some() => {
            return Link::Lost(Reason::Restored);
        }
        Kind::EXECUTION_PLAN => (
            Attribute::EXECUTION_PLAN_ENGINE_CONFIG,
            &[Attribute::EXECUTION_PLAN_HANDLE, Attribute::EXECUTION_PLAN_ENGINE_CONFIG],
        ),
        _ => return Link::Nowhere,
    };
    match attributes.object(link) {
        Some(next) => Link::To { object: next, is_understood: attributes.are_among(known) },
        None => Link::Lost(Reason::Descriptor),
    }
}

#[cfg(test)]
mod tests {
    use tightfit_conv::Types;
    use tightfit_cuda::sys::cudnn::{ConvolutionMode, DataType};

    use super::*;
    use crate::recognize::samples::{Description, convolution, graph, operation, tensor_of, window_of};

    fn reason(graph: Description<()>) -> Result<String, Reason> {
        let graph = Graph::read(graph.make(Kind::OPERATIONGRAPH).attributes().unwrap());
        let computation = graph.computation.as_ref().map_err(|reason| *reason)?;
        Ok(computation.problem(true)?.to_string())
    }

    fn of_operation(operation: Description<()>) -> Result<String, Reason> {
        reason(
            Description::new()
                .with(Attribute::OPERATIONGRAPH_HANDLE, &[64])
                .objects(Attribute::OPERATIONGRAPH_OPS, &[&operation.make(Kind::OPERATION_CONVOLUTION_FORWARD)]),
        )
    }

    #[test]
    fn one_convolution_is_recognized_with_its_ids() {
        let graph: Description<()> = graph();
        let graph = Graph::read(graph.make(Kind::OPERATIONGRAPH).attributes().unwrap());
        let computation = graph.computation.as_ref().unwrap();
        assert_eq!(computation.problem(true).unwrap().to_string(), "forward n6 c4 h5 w5 k8 r3 s3 pad1 tf32");
        assert_eq!((graph.handle, computation.ids, computation.base), (64, [1, 2, 3], 16));
        assert_eq!(computation.problem(false).unwrap().types(), Types::F32);
    }

    #[test]
    fn every_other_tensor_has_its_reason() {
        let x = || tensor_of(1, [6, 4, 5, 5]);
        for (tensor, expected) in [
            (x().with(Attribute::TENSOR_IS_VIRTUAL, &[1]), Reason::Virtual),
            (x().with(Attribute::TENSOR_IS_BY_VALUE, &[1]), Reason::Virtual),
            (x().with(Attribute::TENSOR_VECTOR_COUNT, &[32]), Reason::Special),
            (x().with(Attribute::TENSOR_REORDERING_MODE, &[1]), Reason::Special),
            (
                x().objects(Attribute::TENSOR_RAGGED_OFFSET_DESC, &[&Description::new().make(Kind::POINTWISE)]),
                Reason::Special,
            ),
            (x().with(Attribute(999), &[1]), Reason::Attribute),
            (x().with(Attribute::TENSOR_DATA_TYPE, &[i64::from(DataType(3).0)]), Reason::Types),
            (x().with(Attribute::TENSOR_DATA_TYPE, &[i64::from(DataType::HALF.0)]), Reason::Types),
            (x().with(Attribute::TENSOR_STRIDES, &[200, 25, 5, 1]), Reason::Layout),
            (x().with(Attribute::TENSOR_STRIDES, &[-100, 25, 5, 1]), Reason::Layout),
            (tensor_of(1, [7, 4, 5, 5]), Reason::Shape),
        ] {
            assert_eq!(of_operation(operation(tensor, window_of(ConvolutionMode::CROSS_CORRELATION))), Err(expected));
        }
        let harmless = x()
            .with(Attribute::TENSOR_IS_VIRTUAL, &[0])
            .with(Attribute::TENSOR_IS_BY_VALUE, &[0])
            .with(Attribute::TENSOR_VECTOR_COUNT, &[1])
            .with(Attribute::TENSOR_REORDERING_MODE, &[0]);
        assert!(of_operation(operation(harmless, window_of(ConvolutionMode::CROSS_CORRELATION))).is_ok());
    }

    #[test]
    fn every_other_graph_has_its_reason() {
        let (good, other) = (convolution(), Description::new().make(Kind::POINTWISE));
        let graph = || Description::new().with(Attribute::OPERATIONGRAPH_HANDLE, &[64]);
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
            assert_eq!(reason(graph), Err(expected));
        }
        assert!(
            reason(
                graph()
                    .objects(Attribute::OPERATIONGRAPH_OPS, &[&good])
                    .with(Attribute::OPERATIONGRAPH_IS_DYNAMIC_SHAPE_ENABLED, &[0])
            )
            .is_ok()
        );
        assert_eq!(
            of_operation(operation(tensor_of(1, [6, 4, 5, 5]), window_of(ConvolutionMode(0)))),
            Err(Reason::Mode)
        );
        let unknown = operation(tensor_of(1, [6, 4, 5, 5]), window_of(ConvolutionMode::CROSS_CORRELATION))
            .with(Attribute(799), &[1]);
        assert_eq!(of_operation(unknown), Err(Reason::Attribute));
    }
}
