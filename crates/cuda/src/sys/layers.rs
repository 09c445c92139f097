//! cuDNN's calls for layers other than convolutions, as `cudnn_ops.h` and `cudnn_cnn.h` have them; a separate table,
//! so that a library which serves convolutions alone still serves those.

use std::ffi::{c_int, c_uint, c_void};

use super::cudnn::{CudnnStatus, Handle, TensorDescriptor};
use super::{functions, integers, objects};

objects! {
    /// Which pooling, its windows, padding and strides (`cudnnPoolingDescriptor_t`).
    PoolingDescriptor;
    /// The constants of a local response normalization (`cudnnLRNDescriptor_t`).
    LrnDescriptor;
}

integers! {
    /// Whether NaN counts as the largest (`cudnnNanPropagation_t`).
    NanPropagation: NOT_PROPAGATE = 0, PROPAGATE = 1;
    /// The value taken from a window (`cudnnPoolingMode_t`).
    PoolingMode: MAX = 0, AVERAGE_COUNT_INCLUDE_PADDING = 1, AVERAGE_COUNT_EXCLUDE_PADDING = 2;
    /// The dimension of a local response normalization (`cudnnLRNMode_t`).
    LrnMode: CROSS_CHANNEL_DIM1 = 0;
    /// How a softmax is computed (`cudnnSoftmaxAlgorithm_t`).
    SoftmaxAlgorithm: FAST = 0, ACCURATE = 1;
    /// The elements that sum to one (`cudnnSoftmaxMode_t`).
    SoftmaxMode: INSTANCE = 0, CHANNEL = 1;
}

functions! {
    /// cuDNN's functions for layers. Where factors are, they point to an f32.
    CudnnLayers, "libcudnn.so.9",
    create_pooling = "cudnnCreatePoolingDescriptor": fn(*mut PoolingDescriptor) -> CudnnStatus;
    set_pooling = "cudnnSetPoolingNdDescriptor": fn(
        PoolingDescriptor, PoolingMode, NanPropagation, c_int, *const c_int, *const c_int, *const c_int
    ) -> CudnnStatus;
    destroy_pooling = "cudnnDestroyPoolingDescriptor": fn(PoolingDescriptor) -> CudnnStatus;
    pooling_forward = "cudnnPoolingForward": fn(
        Handle, PoolingDescriptor, *const c_void, TensorDescriptor, *const c_void, *const c_void, TensorDescriptor,
        *mut c_void
    ) -> CudnnStatus;
    pooling_backward = "cudnnPoolingBackward": fn(
        Handle, PoolingDescriptor, *const c_void, TensorDescriptor, *const c_void, TensorDescriptor, *const c_void,
        TensorDescriptor, *const c_void, *const c_void, TensorDescriptor, *mut c_void
    ) -> CudnnStatus;
    create_lrn = "cudnnCreateLRNDescriptor": fn(*mut LrnDescriptor) -> CudnnStatus;
    set_lrn = "cudnnSetLRNDescriptor": fn(LrnDescriptor, c_uint, f64, f64, f64) -> CudnnStatus;
    destroy_lrn = "cudnnDestroyLRNDescriptor": fn(LrnDescriptor) -> CudnnStatus;
    lrn_forward = "cudnnLRNCrossChannelForward": fn(
        Handle, LrnDescriptor, LrnMode, *const c_void, TensorDescriptor, *const c_void, *const c_void,
        TensorDescriptor, *mut c_void
    ) -> CudnnStatus;
    lrn_backward = "cudnnLRNCrossChannelBackward": fn(
        Handle, LrnDescriptor, LrnMode, *const c_void, TensorDescriptor, *const c_void, TensorDescriptor,
        *const c_void, TensorDescriptor, *const c_void, *const c_void, TensorDescriptor, *mut c_void
    ) -> CudnnStatus;
    softmax_forward = "cudnnSoftmaxForward": fn(
        Handle, SoftmaxAlgorithm, SoftmaxMode, *const c_void, TensorDescriptor, *const c_void, *const c_void,
        TensorDescriptor, *mut c_void
    ) -> CudnnStatus;
    add_tensor = "cudnnAddTensor": fn(
        Handle, *const c_void, TensorDescriptor, *const c_void, *const c_void, TensorDescriptor, *mut c_void
    ) -> CudnnStatus;
}
