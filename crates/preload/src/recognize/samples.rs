//! Descriptors to test with.

use std::sync::Arc;

use tightfit_cuda::sys::cudnn::{Attribute, ConvolutionMode, DataType, Kind};

use crate::shadow::{Attributes, Object, Value};

/// An object to be.
pub struct Description<N>(Attributes<N>);

impl<N: Default> Description<N> {
    /// Nothing set yet.
    pub fn new() -> Description<N> {
        Description(Attributes::default())
    }

    /// With integers.
    pub fn with(mut self, name: Attribute, values: &[i64]) -> Description<N> {
        self.0.set(name, Value::Integers(values.to_vec()));
        self
    }

    /// With links.
    pub fn objects(mut self, name: Attribute, objects: &[&Arc<Object<N>>]) -> Description<N> {
        self.0.set(name, Value::Objects(objects.iter().map(|object| Some((*object).clone())).collect()));
        self
    }

    /// Finalized.
    pub fn make(self, kind: Kind) -> Arc<Object<N>> {
        Arc::new(Object::new(kind, self.0))
    }
}

/// A packed tensor of floats.
pub fn tensor_of<N: Default>(id: i64, dims: [i64; 4]) -> Description<N> {
    let [_, c, h, w] = dims;
    let strides = [c * h * w, h * w, w, 1];
    Description::new()
        .with(Attribute::TENSOR_BYTE_ALIGNMENT, &[16])
        .with(Attribute::TENSOR_DATA_TYPE, &[i64::from(DataType::FLOAT.0)])
        .with(Attribute::TENSOR_DIMENSIONS, &dims)
        .with(Attribute::TENSOR_STRIDES, &strides)
        .with(Attribute::TENSOR_UNIQUE_ID, &[id])
}

/// A window of 3 by 3, padded by 1.
pub fn window_of<N: Default>(mode: ConvolutionMode) -> Description<N> {
    let window = Description::new()
        .with(Attribute::CONVOLUTION_COMP_TYPE, &[i64::from(DataType::FLOAT.0)])
        .with(Attribute::CONVOLUTION_CONV_MODE, &[i64::from(mode.0)])
        .with(Attribute::CONVOLUTION_SPATIAL_DIMS, &[2]);
    window
        .with(Attribute::CONVOLUTION_DILATIONS, &[1, 1])
        .with(Attribute::CONVOLUTION_FILTER_STRIDES, &[1, 1])
        .with(Attribute::CONVOLUTION_POST_PADDINGS, &[1, 1])
        .with(Attribute::CONVOLUTION_PRE_PADDINGS, &[1, 1])
}

/// A forward operation whose parts can be changed.
pub fn operation<N: Default>(x: Description<N>, window: Description<N>) -> Description<N> {
    let w = tensor_of(2, [8, 4, 3, 3]).make(Kind::TENSOR);
    let y = tensor_of(3, [6, 8, 5, 5]).make(Kind::TENSOR);
    let (x, window) = (x.make(Kind::TENSOR), window.make(Kind::CONVOLUTION));
    Description::new()
        .objects(Attribute::FORWARD_X, &[&x])
        .objects(Attribute::FORWARD_W, &[&w])
        .objects(Attribute::FORWARD_Y, &[&y])
        .objects(Attribute::FORWARD_CONV_DESC, &[&window])
}

/// A forward convolution.
pub fn convolution<N: Default>() -> Arc<Object<N>> {
    operation(tensor_of(1, [6, 4, 5, 5]), window_of(ConvolutionMode::CROSS_CORRELATION))
        .make(Kind::OPERATION_CONVOLUTION_FORWARD)
}

/// A graph of a forward convolution.
pub fn graph<N: Default>() -> Description<N> {
    let graph = Description::new().with(Attribute::OPERATIONGRAPH_HANDLE, &[64]);
    graph.objects(Attribute::OPERATIONGRAPH_OPS, &[&convolution()])
}
