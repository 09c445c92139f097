//! Descriptors read back, as they were set.

use std::ffi::c_int;

use super::descriptor::{Convolution, convolution, filter, tensor};
use crate::control::call;
use crate::number::raw;
use crate::status::Status;
use crate::{Handle, Out, room};

/// Writes at most `room` values to a C array.
///
/// # Safety
/// `array` is null or has room for `room` ints.
unsafe fn write(values: &[i64], array: *mut c_int, room: c_int) -> Result<(), Status> {
    if array.is_null() {
        return Err(Status::NULL_POINTER);
    }
    for (place, value) in values.iter().take(usize::try_from(room).unwrap_or(0)).enumerate() {
        // SAFETY: `place` is under `room`.
        unsafe { array.add(place).write(*value as c_int) };
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetTensorNdDescriptor(
    descriptor: Handle,
    requested: c_int,
    data_type: Out<c_int>,
    count: Out<c_int>,
    dims: *mut c_int,
    strides: *mut c_int,
) -> c_int {
    call("cudnnGetTensorNdDescriptor", || {
        let tensor = tensor(descriptor)?;
        room(data_type)?.write(raw(tensor.data_type));
        room(count)?.write(tensor.dims.len() as c_int);
        // SAFETY: the caller gives room for `requested` ints in both.
        unsafe {
            write(&tensor.dims, dims, requested)?;
            write(&tensor.strides, strides, requested)
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetFilterNdDescriptor(
    descriptor: Handle,
    requested: c_int,
    data_type: Out<c_int>,
    format: Out<c_int>,
    count: Out<c_int>,
    dims: *mut c_int,
) -> c_int {
    call("cudnnGetFilterNdDescriptor", || {
        let filter = filter(descriptor)?;
        room(data_type)?.write(raw(filter.data_type));
        room(format)?.write(c_int::from(filter.is_channels_last()));
        room(count)?.write(filter.dims.len() as c_int);
        // SAFETY: the caller gives room for `requested` ints.
        unsafe { write(&filter.dims, dims, requested) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetConvolutionNdDescriptor(
    descriptor: Handle,
    requested: c_int,
    count: Out<c_int>,
    pad: *mut c_int,
    strides: *mut c_int,
    dilations: *mut c_int,
    mode: Out<c_int>,
    compute_type: Out<c_int>,
) -> c_int {
    call("cudnnGetConvolutionNdDescriptor", || {
        let Convolution { geometry, .. } = convolution(descriptor)?;
        room(count)?.write(geometry.pre.len() as c_int);
        room(mode)?.write(c_int::from(!geometry.mirrored));
        room(compute_type)?.write(raw(geometry.accumulate));
        // SAFETY: the caller gives room for `requested` ints in all three.
        unsafe {
            write(&geometry.pre, pad, requested)?;
            write(&geometry.strides, strides, requested)?;
            write(&geometry.dilations, dilations, requested)
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetConvolutionGroupCount(descriptor: Handle, groups: Out<c_int>) -> c_int {
    call("cudnnGetConvolutionGroupCount", || {
        room(groups)?.write(convolution(descriptor)?.groups as c_int);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetConvolutionMathType(descriptor: Handle, math: Out<c_int>) -> c_int {
    call("cudnnGetConvolutionMathType", || {
        room(math)?.write(convolution(descriptor)?.math);
        Ok(())
    })
}
