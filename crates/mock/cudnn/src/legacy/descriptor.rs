//! Tensor, filter and convolution descriptors. A filter is a tensor whose strides follow from its format.

use std::ffi::c_int;

use tightfit_mock_support::lock;

use crate::control::call;
use crate::descriptors::descriptors;
use crate::number::type_of;
use crate::problem::Geometry;
use crate::status::Status;
use crate::tensor::Tensor;
use crate::{Handle, elements};

/// A convolution as described.
#[derive(Clone)]
pub struct Convolution {
    /// Padding, strides, dilation.
    pub geometry: Geometry,
    /// Groups; 1 unless said otherwise.
    pub groups: i64,
    /// `cudnnMathType_t`
    pub math: c_int,
}

descriptors! {
    "tensor-descriptors", tensors: Tensor, 0x6100_0000, tensor,
        cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor;
    "filter-descriptors", filters: Tensor, 0x6200_0000, filter,
        cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor;
    "convolution-descriptors", convolutions: Convolution, 0x6300_0000, convolution,
        cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor;
}

/// The values of a C array of ints.
fn ints(array: *const c_int, len: c_int) -> Result<Vec<i64>, Status> {
    if !(1..=8).contains(&len) {
        return Err(Status::BAD_PARAM);
    }
    // SAFETY: the caller of each function below gives null or `len` ints.
    Ok(unsafe { elements(array, i64::from(len)) }?.iter().map(|&v| i64::from(v)).collect())
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetTensorNdDescriptor(
    tensor: Handle,
    data_type: c_int,
    count: c_int,
    dims: *const c_int,
    strides: *const c_int,
) -> c_int {
    call("cudnnSetTensorNdDescriptor", || {
        let new = Tensor::new(type_of(data_type)?, &ints(dims, count)?, &ints(strides, count)?)?;
        if count < 3 {
            return Err(Status::BAD_PARAM);
        }
        *lock(&DESCRIPTORS).tensors.get_mut(tensor)? = Some(new);
        Ok(())
    })
}

/// Strides of a packed filter: k c spatial, or k spatial c for channels last.
fn packed(dims: &[i64], channels_last: bool) -> Vec<i64> {
    let rank = dims.len();
    let order: Vec<usize> =
        if channels_last { [0].into_iter().chain(2..rank).chain([1]).collect() } else { (0..rank).collect() };
    let (mut strides, mut step) = (vec![1; rank], 1);
    for &dim in order.iter().rev() {
        strides[dim] = step;
        step *= dims[dim];
    }
    strides
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetFilterNdDescriptor(
    filter: Handle,
    data_type: c_int,
    format: c_int,
    count: c_int,
    dims: *const c_int,
) -> c_int {
    call("cudnnSetFilterNdDescriptor", || {
        let dims = ints(dims, count)?;
        if count < 3 || dims.iter().any(|&d| d < 1) {
            return Err(Status::BAD_PARAM);
        }
        let channels_last = match format {
            0 => false,
            1 => true,
            _ => return Err(Status::NOT_SUPPORTED),
        };
        let new = Tensor::new(type_of(data_type)?, &dims, &packed(&dims, channels_last))?;
        *lock(&DESCRIPTORS).filters.get_mut(filter)? = Some(new);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetConvolutionNdDescriptor(
    convolution: Handle,
    count: c_int,
    pad: *const c_int,
    strides: *const c_int,
    dilations: *const c_int,
    mode: c_int,
    compute_type: c_int,
) -> c_int {
    call("cudnnSetConvolutionNdDescriptor", || {
        let (pre, strides, dilations) = (ints(pad, count)?, ints(strides, count)?, ints(dilations, count)?);
        let bad = pre.iter().any(|&p| p < 0) || strides.iter().chain(&dilations).any(|&s| s < 1);
        if bad || !(0..=1).contains(&mode) {
            return Err(Status::BAD_PARAM);
        }
        let accumulate = type_of(compute_type)?;
        let geometry = Geometry { post: pre.clone(), pre, strides, dilations, mirrored: mode == 0, accumulate };
        *lock(&DESCRIPTORS).convolutions.get_mut(convolution)? = Some(Convolution { geometry, groups: 1, math: 0 });
        Ok(())
    })
}

fn change(convolution: Handle, change: impl FnOnce(&mut Convolution)) -> Result<(), Status> {
    change(lock(&DESCRIPTORS).convolutions.get_mut(convolution)?.as_mut().ok_or(Status::BAD_PARAM)?);
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetConvolutionGroupCount(convolution: Handle, groups: c_int) -> c_int {
    call("cudnnSetConvolutionGroupCount", || {
        if groups < 1 {
            return Err(Status::BAD_PARAM);
        }
        change(convolution, |c| c.groups = i64::from(groups))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetConvolutionMathType(convolution: Handle, math: c_int) -> c_int {
    call("cudnnSetConvolutionMathType", || {
        if !(0..=3).contains(&math) {
            return Err(Status::BAD_PARAM);
        }
        change(convolution, |c| c.math = math)
    })
}
