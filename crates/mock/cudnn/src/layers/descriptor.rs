//! Descriptors of activations, poolings and local response normalizations.

use std::ffi::{c_int, c_uint};

use tightfit_mock_support::lock;

use crate::control::call;
use crate::descriptors::descriptors;
use crate::status::Status;
use crate::{Handle, elements};

/// An activation as described.
#[derive(Clone)]
pub struct Activation {
    /// Which function.
    pub function: ActivationFunction,
    /// Whether NaN stays NaN.
    pub propagates_nan: bool,
}

/// The activations that are known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationFunction {
    /// `CUDNN_ACTIVATION_RELU`
    Relu,
    /// `CUDNN_ACTIVATION_IDENTITY`, which only fused convolutions take.
    Identity,
}

/// Windows of a pooling.
#[derive(Clone)]
pub struct Pooling {
    /// Largest elements, rather than means without the padding.
    pub maximum: bool,
    /// Extents, padding and strides of each spatial dimension.
    pub axes: Vec<[i64; 3]>,
}

/// Constants of a local response normalization.
#[derive(Clone)]
pub struct Lrn {
    /// Channels in the sum.
    pub size: usize,
    /// Factor of the mean square.
    pub alpha: f32,
    /// The exponent.
    pub beta: f32,
    /// The added constant.
    pub k: f32,
}

descriptors! {
    "activation-descriptors", activations: Activation, 0x6a00_0000, activation,
        cudnnCreateActivationDescriptor, cudnnDestroyActivationDescriptor;
    "pooling-descriptors", poolings: Pooling, 0x6b00_0000, pooling,
        cudnnCreatePoolingDescriptor, cudnnDestroyPoolingDescriptor;
    "lrn-descriptors", lrns: Lrn, 0x6c00_0000, lrn, cudnnCreateLRNDescriptor, cudnnDestroyLRNDescriptor;
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetActivationDescriptor(activation: Handle, mode: c_int, nan: c_int, _ceiling: f64) -> c_int {
    call("cudnnSetActivationDescriptor", || {
        let function = match mode {
            1 => ActivationFunction::Relu,
            5 => ActivationFunction::Identity,
            _ => return Err(Status::NOT_SUPPORTED),
        };
        if !(0..=1).contains(&nan) {
            return Err(Status::NOT_SUPPORTED);
        }
        *lock(&DESCRIPTORS).activations.get_mut(activation)? = Some(Activation { function, propagates_nan: nan == 1 });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetPoolingNdDescriptor(
    pooling: Handle,
    mode: c_int,
    nan: c_int,
    count: c_int,
    windows: *const c_int,
    padding: *const c_int,
    strides: *const c_int,
) -> c_int {
    call("cudnnSetPoolingNdDescriptor", || {
        if !(2..=3).contains(&count) || !(0..=1).contains(&nan) {
            return Err(Status::BAD_PARAM);
        }
        let maximum = match mode {
            0 => true,
            2 => false,
            _ => return Err(Status::NOT_SUPPORTED),
        };
        // SAFETY: the caller gives null or `count` ints.
        let arrays = unsafe {
            [elements(windows, count.into())?, elements(padding, count.into())?, elements(strides, count.into())?]
        };
        let axes: Vec<[i64; 3]> =
            (0..count as usize).map(|i| [0, 1, 2].map(|which: usize| i64::from(arrays[which][i]))).collect();
        if axes.iter().any(|&[window, padding, stride]| window < 1 || padding < 0 || padding >= window || stride < 1) {
            return Err(Status::BAD_PARAM);
        }
        *lock(&DESCRIPTORS).poolings.get_mut(pooling)? = Some(Pooling { maximum, axes });
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetLRNDescriptor(lrn: Handle, size: c_uint, alpha: f64, beta: f64, k: f64) -> c_int {
    call("cudnnSetLRNDescriptor", || {
        if !(1..=16).contains(&size) || beta < 0.01 || k < 1e-5 {
            return Err(Status::BAD_PARAM);
        }
        let (alpha, beta, k) = (alpha as f32, beta as f32, k as f32);
        *lock(&DESCRIPTORS).lrns.get_mut(lrn)? = Some(Lrn { size: size as usize, alpha, beta, k });
        Ok(())
    })
}
