//! Descriptors of the legacy interface, read back from the real library.

use std::ffi::{c_int, c_void};

use tightfit_conv::backend::Scale;
use tightfit_conv::{Layout, Operation};
use tightfit_cuda::sys::cudnn::{CudnnStatus, TensorFormat};

use crate::forward::forward;
use crate::reason::Reason;
use crate::recognize::{Computation, Tensor, Window};

/// A descriptor of any kind.
pub type Descriptor = *mut c_void;

/// The descriptors of a call, in the order of C's parameters: inputs, convolution, output.
#[derive(Clone, Copy)]
pub struct Descriptors {
    /// Which of the three.
    pub operation: Operation,
    /// x; for backward-data w.
    pub first: Descriptor,
    /// w; for the backward operations dy.
    pub second: Descriptor,
    /// Padding and so on.
    pub convolution: Descriptor,
    /// y, dx or dw.
    pub output: Descriptor,
}

/// Dimensions read; more than any convolution has.
const MAX_DIMENSIONS: usize = 8;

fn check(status: CudnnStatus) -> Result<(), Reason> {
    if status == CudnnStatus::SUCCESS { Ok(()) } else { Err(Reason::Descriptor) }
}

fn used(values: &[c_int; MAX_DIMENSIONS], count: c_int) -> Result<&[c_int], Reason> {
    usize::try_from(count).ok().and_then(|count| values.get(..count)).ok_or(Reason::Shape)
}

impl Descriptors {
    /// x, w and y, whichever of them are read and written.
    fn by_name(&self) -> [Descriptor; 3] {
        let Descriptors { first, second, output, .. } = *self;
        match self.operation {
            Operation::Forward => [first, second, output],
            Operation::BackwardData => [output, first, second],
            Operation::BackwardFilter => [first, output, second],
        }
    }

    /// The convolution that they describe.
    ///
    /// # Errors
    /// The reason why it is left as it is.
    ///
    /// # Safety
    /// All are alive, and of the kinds that the operation takes.
    pub unsafe fn recognize(&self, scale: Scale) -> Result<Computation, Reason> {
        let [x, w, y] = self.by_name();
        // SAFETY: forwarded to the caller.
        let (x, w, y, (window, groups)) = unsafe { (tensor(x)?, filters(w)?, tensor(y)?, window(self.convolution)?) };
        let computation = Computation::new(self.operation, [&x, &w, &y], &window, scale)?;
        // The filters imply the groups; cuDNN reports a count that disagrees as the caller's error.
        if computation.groups() == groups { Ok(computation) } else { Err(Reason::Shape) }
    }

    /// Which instructions the convolution may use (`cudnnMathType_t`).
    ///
    /// # Safety
    /// The convolution's descriptor is alive.
    pub unsafe fn math(&self) -> Result<c_int, Reason> {
        let (descriptor, mut value) = (self.convolution, 0);
        let math: *mut c_int = &mut value;
        check(forward!(cudnnGetConvolutionMathType(descriptor: Descriptor, math: *mut c_int) -> CudnnStatus))?;
        Ok(value)
    }
}

/// # Safety
/// The descriptor is alive.
unsafe fn tensor(descriptor: Descriptor) -> Result<Tensor, Reason> {
    let (mut data, mut count, mut dims, mut strides) = (0, 0, [0; MAX_DIMENSIONS], [0; MAX_DIMENSIONS]);
    let (requested, at_data, at_count) = (MAX_DIMENSIONS as c_int, &raw mut data, &raw mut count);
    let (at_dims, at_strides) = (dims.as_mut_ptr(), strides.as_mut_ptr());
    check(forward!(
        cudnnGetTensorNdDescriptor(
            descriptor: Descriptor, requested: c_int, at_data: *mut c_int, at_count: *mut c_int, at_dims: *mut c_int,
            at_strides: *mut c_int,
        ) -> CudnnStatus
    ))?;
    Tensor::new(data, used(&dims, count)?, used(&strides, count)?)
}

/// # Safety
/// The descriptor is alive.
unsafe fn filters(descriptor: Descriptor) -> Result<Tensor, Reason> {
    let (mut data, mut format, mut count, mut dims) = (0, 0, 0, [0; MAX_DIMENSIONS]);
    let (requested, at_data, at_format) = (MAX_DIMENSIONS as c_int, &raw mut data, &raw mut format);
    let (at_count, at_dims) = (&raw mut count, dims.as_mut_ptr());
    check(forward!(
        cudnnGetFilterNdDescriptor(
            descriptor: Descriptor, requested: c_int, at_data: *mut c_int, at_format: *mut c_int, at_count: *mut c_int,
            at_dims: *mut c_int,
        ) -> CudnnStatus
    ))?;
    let layout = match TensorFormat(format) {
        TensorFormat::NCHW => Layout::Nchw,
        TensorFormat::NHWC => Layout::Nhwc,
        _ => return Err(Reason::Special),
    };
    Tensor::filters(data, layout, used(&dims, count)?)
}

/// The window, and the groups.
///
/// # Safety
/// The descriptor is alive.
unsafe fn window(descriptor: Descriptor) -> Result<(Window, usize), Reason> {
    let (mut count, mut mode, mut arithmetic, mut groups) = (0, 0, 0, 0);
    let (mut pad, mut strides, mut dilations) = ([0; MAX_DIMENSIONS], [0; MAX_DIMENSIONS], [0; MAX_DIMENSIONS]);
    // CUDNN_DIM_MAX - 2, the most that may be requested.
    let (requested, at_count) = (6 as c_int, &raw mut count);
    let (at_pad, at_strides, at_dilations) = (pad.as_mut_ptr(), strides.as_mut_ptr(), dilations.as_mut_ptr());
    let (at_mode, at_arithmetic, at_groups) = (&raw mut mode, &raw mut arithmetic, &raw mut groups);
    check(forward!(
        cudnnGetConvolutionNdDescriptor(
            descriptor: Descriptor, requested: c_int, at_count: *mut c_int, at_pad: *mut c_int, at_strides: *mut c_int,
            at_dilations: *mut c_int, at_mode: *mut c_int, at_arithmetic: *mut c_int,
        ) -> CudnnStatus
    ))?;
    check(forward!(cudnnGetConvolutionGroupCount(descriptor: Descriptor, at_groups: *mut c_int) -> CudnnStatus))?;
    let window = Window::new([used(&pad, count)?, used(&strides, count)?, used(&dilations, count)?], mode, arithmetic)?;
    Ok((window, usize::try_from(groups).map_err(|_| Reason::Shape)?))
}
