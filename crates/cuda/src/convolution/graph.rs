//! A problem as an operation graph of the backend interface: one convolution of three tensors.

use std::sync::Arc;

use tightfit_conv::backend::Scale;
use tightfit_conv::problem::Storage;
use tightfit_conv::{Operation, Problem};

use super::geometry::{Strided, data_type};
use super::{Geometry, alignments};
use crate::CudaError;
use crate::safe::{Descriptor, Handle, TensorSpec};
use crate::sys::cudnn::{Attribute, ConvolutionMode, DataType, Kind};

/// Ids of the tensors within a graph.
const X: i64 = 1;
const W: i64 = 2;
const Y: i64 = 3;

/// How the output is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Output {
    /// In the problem's own type.
    Own,
    /// Always in f32, for micro-batches that add up.
    F32,
}

/// An operation graph, finalized, with its requirements on memory.
pub(crate) struct Graph {
    /// The graph.
    pub descriptor: Arc<Descriptor>,
    /// Inputs in the order of [`tightfit_conv::backend::Tensors`], then the output.
    pub tensors: Vec<TensorSpec>,
}

/// A tensor of a graph.
pub(super) fn tensor(
    handle: &Arc<Handle>,
    id: i64,
    data: DataType,
    strided: &Strided,
    alignment: usize,
) -> Result<Arc<Descriptor>, CudaError> {
    let wide = |values: &[usize]| values.iter().map(|&value| value as i64).collect::<Vec<i64>>();
    Descriptor::new(handle, Kind::TENSOR)?
        .with(Attribute::TENSOR_DATA_TYPE, &[data])?
        .with(Attribute::TENSOR_DIMENSIONS, &wide(&strided.extents))?
        .with(Attribute::TENSOR_STRIDES, &wide(&strided.strides))?
        .with(Attribute::TENSOR_UNIQUE_ID, &[id])?
        .with(Attribute::TENSOR_BYTE_ALIGNMENT, &[alignment as i64])?
        .finalize()
}

/// A graph of one operation.
pub(super) fn single(handle: &Arc<Handle>, operation: &Arc<Descriptor>) -> Result<Arc<Descriptor>, CudaError> {
    Descriptor::new(handle, Kind::OPERATIONGRAPH)?
        .with_handle(Attribute::OPERATIONGRAPH_HANDLE)?
        .with_objects(Attribute::OPERATIONGRAPH_OPS, &[operation])?
        .finalize()
}

impl Graph {
    /// The graph of a problem in its own types, on buffers whose addresses are multiples of `base`. The factors are
    /// part of the graph.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`], also if cuDNN does not support the shape.
    pub fn new(
        handle: &Arc<Handle>,
        problem: &Problem,
        output: Output,
        scale: Scale,
        base: usize,
    ) -> Result<Graph, CudaError> {
        let geometry = Geometry::of(problem);
        let (operation, storage) = (problem.operation(), problem.types().storage());
        let written = match output {
            Output::Own => storage,
            Output::F32 => Storage::F32,
        };
        let stored = |is_output: bool| if is_output { written } else { storage };
        let make = |id, strided: &Strided, storage: Storage, alignment| -> Result<_, CudaError> {
            let expected = TensorSpec { id, bytes: strided.span() * storage.size(), alignment };
            Ok((tensor(handle, id, data_type(storage), strided, alignment)?, expected))
        };
        // Samples lie at micro-batch offsets, slices at offsets of their ranges; filters always begin a buffer.
        let (in_x, in_y) = (stored(operation == Operation::BackwardData), stored(operation == Operation::Forward));
        let [at_x, at_y] = alignments(problem, in_x, in_y).map(|alignment| alignment.min(base));
        let (x, x_expected) = make(X, &geometry.x, in_x, at_x)?;
        let (w, w_expected) = make(W, &geometry.w, stored(operation == Operation::BackwardFilter), base)?;
        let (y, y_expected) = make(Y, &geometry.y, in_y, at_y)?;
        let window = window(handle, &geometry)?;
        let (kind, objects, factors, tensors) = match operation {
            Operation::Forward => (
                Kind::OPERATION_CONVOLUTION_FORWARD,
                [
                    (Attribute::FORWARD_X, &x),
                    (Attribute::FORWARD_W, &w),
                    (Attribute::FORWARD_Y, &y),
                    (Attribute::FORWARD_CONV_DESC, &window),
                ],
                [Attribute::FORWARD_ALPHA, Attribute::FORWARD_BETA],
                vec![x_expected, w_expected, y_expected],
            ),
            Operation::BackwardData => (
                Kind::OPERATION_CONVOLUTION_BACKWARD_DATA,
                [
                    (Attribute::BWD_DATA_DX, &x),
                    (Attribute::BWD_DATA_W, &w),
                    (Attribute::BWD_DATA_DY, &y),
                    (Attribute::BWD_DATA_CONV_DESC, &window),
                ],
                [Attribute::BWD_DATA_ALPHA, Attribute::BWD_DATA_BETA],
                vec![y_expected, w_expected, x_expected],
            ),
            Operation::BackwardFilter => (
                Kind::OPERATION_CONVOLUTION_BACKWARD_FILTER,
                [
                    (Attribute::BWD_FILTER_X, &x),
                    (Attribute::BWD_FILTER_DW, &w),
                    (Attribute::BWD_FILTER_DY, &y),
                    (Attribute::BWD_FILTER_CONV_DESC, &window),
                ],
                [Attribute::BWD_FILTER_ALPHA, Attribute::BWD_FILTER_BETA],
                vec![x_expected, y_expected, w_expected],
            ),
        };
        let mut descriptor = Descriptor::new(handle, kind)?;
        for (attribute, object) in objects {
            descriptor = descriptor.with_objects(attribute, &[object])?;
        }
        for (attribute, factor) in factors.into_iter().zip([scale.alpha, scale.beta]) {
            descriptor = descriptor.with(attribute, &[factor])?;
        }
        Ok(Graph { descriptor: single(handle, &descriptor.finalize()?)?, tensors })
    }
}

/// The convolution's window and arithmetic; padding before and after may differ here.
fn window(handle: &Arc<Handle>, geometry: &Geometry) -> Result<Arc<Descriptor>, CudaError> {
    let wide = |values: &[usize]| values.iter().map(|&value| value as i64).collect::<Vec<i64>>();
    Descriptor::new(handle, Kind::CONVOLUTION)?
        .with(Attribute::CONVOLUTION_SPATIAL_DIMS, &[geometry.before.len() as i64])?
        .with(Attribute::CONVOLUTION_COMP_TYPE, &[geometry.arithmetic])?
        .with(Attribute::CONVOLUTION_CONV_MODE, &[ConvolutionMode::CROSS_CORRELATION])?
        .with(Attribute::CONVOLUTION_PRE_PADDINGS, &wide(&geometry.before))?
        .with(Attribute::CONVOLUTION_POST_PADDINGS, &wide(&geometry.after))?
        .with(Attribute::CONVOLUTION_FILTER_STRIDES, &wide(&geometry.strides))?
        .with(Attribute::CONVOLUTION_DILATIONS, &wide(&geometry.dilations))?
        .finalize()
}
