//! The legacy interface: three descriptors of a convolution, and calls that name an algorithm by number.

use std::ffi::c_int;
use std::sync::Arc;

use tightfit_conv::Operation;
use tightfit_conv::backend::Scale;

use super::{Handle, Slice};
use crate::CudaError;
use crate::call::cudnn as call;
use crate::sys::cudnn::{self as sys, DataType, LegacyAlgorithm, MathType, TensorFormat};

fn narrow(what: &'static str, values: &[usize]) -> Result<Vec<c_int>, CudaError> {
    let one = |&value: &usize| crate::error::narrow(what, value);
    values.iter().map(one).collect()
}

/// Declares an owner of one of cuDNN's descriptors.
macro_rules! owner {
    ($(#[$doc:meta])* $name:ident: $raw:ty, $create:ident, $destroy:ident) => {
        $(#[$doc])*
        pub(crate) struct $name {
            handle: Arc<Handle>,
            raw: $raw,
        }

        // SAFETY: every call that takes the descriptor holds the handle's lock.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl $name {
            fn create(handle: &Arc<Handle>) -> Result<$name, CudaError> {
                let calling = handle.enter()?;
                // SAFETY: the context is current; destroyed in `drop`.
                let raw = unsafe { call::$create(calling.cudnn) }?;
                Ok($name { handle: handle.clone(), raw })
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: made in `create` and destroyed only here.
                self.handle.destroy(|calling| unsafe { call::$destroy(calling.cudnn, self.raw) });
            }
        }
    };
}

owner! {
    /// Shape, strides and type of x or y.
    Tensor: sys::TensorDescriptor, create_tensor, destroy_tensor
}
owner! {
    /// Shape, layout and type of w.
    Filter: sys::FilterDescriptor, create_filter, destroy_filter
}
owner! {
    /// Padding, strides, dilation, groups and arithmetic.
    Convolution: sys::ConvolutionDescriptor, create_convolution, destroy_convolution
}

impl Tensor {
    /// A tensor of these extents (n, c, then spatial) and strides, in elements.
    ///
    /// # Errors
    /// [`CudaError::TooLarge`]; [`CudaError::Cudnn`].
    pub fn new(
        handle: &Arc<Handle>,
        data: DataType,
        extents: &[usize],
        strides: &[usize],
    ) -> Result<Tensor, CudaError> {
        let (extents, strides) = (narrow("extent", extents)?, narrow("stride", strides)?);
        let tensor = Tensor::create(handle)?;
        let calling = handle.enter()?;
        // SAFETY: the descriptor is alive.
        unsafe { call::set_tensor(calling.cudnn, tensor.raw, data, &extents, &strides) }?;
        drop(calling);
        Ok(tensor)
    }

    pub(crate) fn raw(&self) -> sys::TensorDescriptor {
        self.raw
    }
}

impl Filter {
    /// Filters of these extents (k, c of one group, then spatial).
    ///
    /// # Errors
    /// [`CudaError::TooLarge`]; [`CudaError::Cudnn`].
    pub fn new(
        handle: &Arc<Handle>,
        data: DataType,
        format: TensorFormat,
        extents: &[usize],
    ) -> Result<Filter, CudaError> {
        let extents = narrow("extent", extents)?;
        let filter = Filter::create(handle)?;
        let calling = handle.enter()?;
        // SAFETY: the descriptor is alive.
        unsafe { call::set_filter(calling.cudnn, filter.raw, data, format, &extents) }?;
        drop(calling);
        Ok(filter)
    }
}

impl Convolution {
    /// A convolution of this padding, strides and dilations, one of each for a spatial dimension.
    ///
    /// # Errors
    /// [`CudaError::TooLarge`]; [`CudaError::Cudnn`].
    pub fn new(
        handle: &Arc<Handle>,
        [padding, strides, dilations]: [&[usize]; 3],
        groups: usize,
        arithmetic: DataType,
        math: MathType,
    ) -> Result<Convolution, CudaError> {
        let geometry = [narrow("padding", padding)?, narrow("stride", strides)?, narrow("dilation", dilations)?];
        let groups = narrow("group count", &[groups])?[0];
        let convolution = Convolution::create(handle)?;
        let calling = handle.enter()?;
        // SAFETY: the descriptor is alive.
        unsafe {
            call::set_convolution(calling.cudnn, convolution.raw, geometry.each_ref().map(Vec::as_slice), arithmetic)?;
            call::set_group_count(calling.cudnn, convolution.raw, groups)?;
            call::set_math_type(calling.cudnn, convolution.raw, math)?;
        }
        drop(calling);
        Ok(convolution)
    }
}

/// One operation of a convolution, with everything that the legacy calls take but algorithm and memory.
pub(crate) struct Legacy {
    handle: Arc<Handle>,
    operation: Operation,
    x: Tensor,
    w: Filter,
    y: Tensor,
    convolution: Convolution,
}

impl Legacy {
    /// The operation that reads or writes x, w and y.
    pub fn new(operation: Operation, x: Tensor, w: Filter, y: Tensor, convolution: Convolution) -> Legacy {
        Legacy { handle: x.handle.clone(), operation, x, w, y, convolution }
    }

    /// Exact workspace bytes of an algorithm, asked without running it.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`], also if the algorithm is not supported.
    pub fn workspace(&self, algorithm: LegacyAlgorithm) -> Result<usize, CudaError> {
        let calling = self.handle.enter()?;
        let (cudnn, handle) = (calling.cudnn, calling.handle);
        let (x, w, y, convolution) = (self.x.raw, self.w.raw, self.y.raw, self.convolution.raw);
        // SAFETY: all descriptors are alive, and the calling right is held.
        unsafe {
            match self.operation {
                Operation::Forward => call::forward_workspace(cudnn, handle, x, w, convolution, y, algorithm),
                Operation::BackwardData => {
                    call::backward_data_workspace(cudnn, handle, w, y, convolution, x, algorithm)
                }
                Operation::BackwardFilter => {
                    call::backward_filter_workspace(cudnn, handle, x, y, convolution, w, algorithm)
                }
            }
        }
    }

    /// Enqueues the operation.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`].
    ///
    /// # Safety
    /// `data`, `other` and `output` are at least as long as the descriptors say, `workspace` as
    /// [`Legacy::workspace`] says; the first three in the order of [`tightfit_conv::backend::Tensors`].
    pub unsafe fn enqueue(
        &self,
        algorithm: LegacyAlgorithm,
        data: Slice<'_>,
        other: Slice<'_>,
        output: Slice<'_>,
        workspace: Slice<'_>,
        scale: Scale,
    ) -> Result<(), CudaError> {
        let calling = self.handle.enter()?;
        let (data, other, output) = (data.raw().as_void(), other.raw().as_void(), output.raw().as_void());
        let read = match self.operation {
            Operation::Forward | Operation::BackwardFilter => self.x.raw,
            Operation::BackwardData => self.y.raw,
        };
        let legacy = call::Legacy {
            convolution: self.convolution.raw,
            algorithm,
            data: (read, data),
            workspace: (workspace.raw().as_void(), workspace.len()),
            alpha: scale.alpha,
            beta: scale.beta,
        };
        let (cudnn, handle) = (calling.cudnn, calling.handle);
        // SAFETY: descriptors are alive and the calling right is held; the memory is long enough by this function's
        // contract, and its buffers wait for queued work before they are freed.
        unsafe {
            match self.operation {
                Operation::Forward => call::forward(cudnn, handle, &legacy, (self.w.raw, other), (self.y.raw, output)),
                Operation::BackwardData => {
                    call::backward_data(cudnn, handle, &legacy, (self.w.raw, other), (self.x.raw, output))
                }
                Operation::BackwardFilter => {
                    call::backward_filter(cudnn, handle, &legacy, (self.y.raw, other), (self.w.raw, output))
                }
            }
        }
    }
}
