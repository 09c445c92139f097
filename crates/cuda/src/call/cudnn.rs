//! cuDNN's calls. Every object passed in came from the same table and is alive. A handle is used by one thread at a time
//! with its device's context current. Device addresses belong to live buffers large enough for the descriptors until the
//! handle's stream has done the work.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::CudaError;
use crate::sys::cudnn::*;
use crate::sys::driver::Stream;

/// Turns a status into a result, with the library's own message.
pub(super) fn check(cudnn: &Cudnn, call: &'static str, status: CudnnStatus) -> Result<(), CudaError> {
    if status == CudnnStatus::SUCCESS {
        return Ok(());
    }
    let mut text = [0 as c_char; 512];
    // SAFETY: `text` has room for one byte more than the length given, so it always ends with 0.
    let text = unsafe {
        (cudnn.get_last_error_string)(text.as_mut_ptr(), text.len() - 1);
        CStr::from_ptr(text.as_ptr())
    };
    let detail = text.to_string_lossy().split_whitespace().collect::<Vec<_>>().join(" ");
    Err(CudaError::Cudnn { call, status, detail })
}

/// Declares thin calls: name, C name, arguments as passed.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal ($($argument:ident: $type:ty),*);)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As the module's.
        pub unsafe fn $name(cudnn: &Cudnn, $($argument: $type),*) -> Result<(), CudaError> {
            // SAFETY: forwarded to the caller.
            check(cudnn, $symbol, unsafe { (cudnn.$name)($($argument),*) })
        }
    )*};
}

/// Declares calls that make something and write it to their last parameter.
macro_rules! answers {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal ($($argument:ident: $type:ty),*) -> $answer:ty = $empty:expr;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As the module's.
        pub unsafe fn $name(cudnn: &Cudnn, $($argument: $type),*) -> Result<$answer, CudaError> {
            let mut answer: $answer = $empty;
            // SAFETY: `answer` is a place for the value; the rest is forwarded to the caller.
            check(cudnn, $symbol, unsafe { (cudnn.$name)($($argument,)* &mut answer) })?;
            Ok(answer)
        }
    )*};
}

calls! {
    /// Destroys a handle.
    destroy = "cudnnDestroy" (handle: Handle);
    /// The stream on which a handle's work is enqueued.
    set_stream = "cudnnSetStream" (handle: Handle, stream: Stream);
    /// Destroys a tensor descriptor.
    destroy_tensor = "cudnnDestroyTensorDescriptor" (tensor: TensorDescriptor);
    /// Destroys a filter descriptor.
    destroy_filter = "cudnnDestroyFilterDescriptor" (filter: FilterDescriptor);
    /// Sets the groups of a convolution.
    set_group_count = "cudnnSetConvolutionGroupCount" (convolution: ConvolutionDescriptor, groups: c_int);
    /// Sets which instructions a convolution may use.
    set_math_type = "cudnnSetConvolutionMathType" (convolution: ConvolutionDescriptor, math: MathType);
    /// Destroys a convolution descriptor.
    destroy_convolution = "cudnnDestroyConvolutionDescriptor" (convolution: ConvolutionDescriptor);
    /// Destroys a backend object.
    backend_destroy = "cudnnBackendDestroyDescriptor" (descriptor: BackendDescriptor);
    /// Ends the setting of a backend object's attributes; the library checks them here.
    backend_finalize = "cudnnBackendFinalize" (descriptor: BackendDescriptor);
    /// Enqueues a plan.
    backend_execute = "cudnnBackendExecute" (handle: Handle, plan: BackendDescriptor, pack: BackendDescriptor);
}

answers! {
    /// A new handle on the current context.
    create = "cudnnCreate" () -> Handle = Handle::NULL;
    /// A new tensor descriptor.
    create_tensor = "cudnnCreateTensorDescriptor" () -> TensorDescriptor = TensorDescriptor::NULL;
    /// A new filter descriptor.
    create_filter = "cudnnCreateFilterDescriptor" () -> FilterDescriptor = FilterDescriptor::NULL;
    /// A new convolution descriptor.
    create_convolution = "cudnnCreateConvolutionDescriptor" () -> ConvolutionDescriptor = ConvolutionDescriptor::NULL;
    /// A new backend object.
    backend_create = "cudnnBackendCreateDescriptor" (kind: Kind) -> BackendDescriptor = BackendDescriptor::NULL;
    /// Workspace bytes of a forward algorithm: x, w, convolution, y.
    forward_workspace = "cudnnGetConvolutionForwardWorkspaceSize" (
        handle: Handle, x: TensorDescriptor, w: FilterDescriptor, convolution: ConvolutionDescriptor,
        y: TensorDescriptor, algorithm: LegacyAlgorithm
    ) -> usize = 0;
    /// Workspace bytes of a backward-data algorithm: w, dy, convolution, dx.
    backward_data_workspace = "cudnnGetConvolutionBackwardDataWorkspaceSize" (
        handle: Handle, w: FilterDescriptor, dy: TensorDescriptor, convolution: ConvolutionDescriptor,
        dx: TensorDescriptor, algorithm: LegacyAlgorithm
    ) -> usize = 0;
    /// Workspace bytes of a backward-filter algorithm: x, dy, convolution, dw.
    backward_filter_workspace = "cudnnGetConvolutionBackwardFilterWorkspaceSize" (
        handle: Handle, x: TensorDescriptor, dy: TensorDescriptor, convolution: ConvolutionDescriptor,
        dw: FilterDescriptor, algorithm: LegacyAlgorithm
    ) -> usize = 0;
}

/// The library's version, as 10000 · major + 100 · minor + patch from 9.0 on.
///
/// # Safety
/// None beyond the table's.
pub unsafe fn get_version(cudnn: &Cudnn) -> usize {
    // SAFETY: takes nothing and needs no set-up.
    unsafe { (cudnn.get_version)() }
}

/// Sets a tensor's type, extents and strides, in elements.
///
/// # Safety
/// As the module's.
pub unsafe fn set_tensor(
    cudnn: &Cudnn,
    tensor: TensorDescriptor,
    data: DataType,
    extents: &[c_int],
    strides: &[c_int],
) -> Result<(), CudaError> {
    debug_assert_eq!(extents.len(), strides.len());
    // SAFETY: both arrays have the length given, which no caller lets exceed cuDNN's 8; the rest is the caller's.
    check(cudnn, "cudnnSetTensorNdDescriptor", unsafe {
        (cudnn.set_tensor)(tensor, data, extents.len() as c_int, extents.as_ptr(), strides.as_ptr())
    })
}

/// Sets a filter's type, layout and extents.
///
/// # Safety
/// As the module's.
pub unsafe fn set_filter(
    cudnn: &Cudnn,
    filter: FilterDescriptor,
    data: DataType,
    format: TensorFormat,
    extents: &[c_int],
) -> Result<(), CudaError> {
    // SAFETY: the array has the length given; the rest is the caller's.
    check(cudnn, "cudnnSetFilterNdDescriptor", unsafe {
        (cudnn.set_filter)(filter, data, format, extents.len() as c_int, extents.as_ptr())
    })
}

/// Sets a convolution's padding (the same before and after), strides, dilations and arithmetic.
///
/// # Safety
/// As the module's.
pub unsafe fn set_convolution(
    cudnn: &Cudnn,
    convolution: ConvolutionDescriptor,
    [padding, strides, dilations]: [&[c_int]; 3],
    arithmetic: DataType,
) -> Result<(), CudaError> {
    debug_assert!(padding.len() == strides.len() && strides.len() == dilations.len());
    let mode = ConvolutionMode::CROSS_CORRELATION;
    // SAFETY: the three arrays have the length given; the rest is the caller's.
    check(cudnn, "cudnnSetConvolutionNdDescriptor", unsafe {
        let (padding_at, strides_at, dilations_at) = (padding.as_ptr(), strides.as_ptr(), dilations.as_ptr());
        let length = padding.len() as c_int;
        (cudnn.set_convolution)(convolution, length, padding_at, strides_at, dilations_at, mode, arithmetic)
    })
}

/// The stream on which a handle's work is enqueued.
///
/// # Safety
/// As the module's.
pub unsafe fn get_stream(cudnn: &Cudnn, handle: Handle) -> Result<Stream, CudaError> {
    let mut stream = Stream::NULL;
    // SAFETY: `stream` is a place for the value; the rest is forwarded to the caller.
    check(cudnn, "cudnnGetStream", unsafe { (cudnn.get_stream)(handle, &mut stream) })?;
    Ok(stream)
}

/// Common fields of the three legacy convolutions: addresses, workspace and factors.
#[derive(Clone, Copy, Debug)]
pub struct Legacy {
    /// The convolution.
    pub convolution: ConvolutionDescriptor,
    /// Its algorithm.
    pub algorithm: LegacyAlgorithm,
    /// x; for backward-data dy.
    pub data: (TensorDescriptor, *const c_void),
    /// Workspace and its bytes.
    pub workspace: (*mut c_void, usize),
    /// Factor of the result.
    pub alpha: f32,
    /// Factor of the output's earlier content.
    pub beta: f32,
}

/// Enqueues y = alpha · x * w + beta · y.
///
/// # Safety
/// As the module's.
pub unsafe fn forward(
    cudnn: &Cudnn,
    handle: Handle,
    call: &Legacy,
    w: (FilterDescriptor, *const c_void),
    y: (TensorDescriptor, *mut c_void),
) -> Result<(), CudaError> {
    let Legacy { convolution, algorithm, data: x, workspace, alpha, beta } = call;
    let (alpha, beta): (*const f32, *const f32) = (alpha, beta);
    // SAFETY: both factors are read before the call returns; the rest is the caller's.
    check(cudnn, "cudnnConvolutionForward", unsafe {
        (cudnn.forward)(
            handle,
            alpha.cast(),
            x.0,
            x.1,
            w.0,
            w.1,
            *convolution,
            *algorithm,
            workspace.0,
            workspace.1,
            beta.cast(),
            y.0,
            y.1,
        )
    })
}

/// Enqueues dx = alpha · (gradient of x from dy and w) + beta · dx.
///
/// # Safety
/// As the module's.
pub unsafe fn backward_data(
    cudnn: &Cudnn,
    handle: Handle,
    call: &Legacy,
    w: (FilterDescriptor, *const c_void),
    dx: (TensorDescriptor, *mut c_void),
) -> Result<(), CudaError> {
    let Legacy { convolution, algorithm, data: dy, workspace, alpha, beta } = call;
    let (alpha, beta): (*const f32, *const f32) = (alpha, beta);
    // SAFETY: both factors are read before the call returns; the rest is the caller's.
    check(cudnn, "cudnnConvolutionBackwardData", unsafe {
        (cudnn.backward_data)(
            handle,
            alpha.cast(),
            w.0,
            w.1,
            dy.0,
            dy.1,
            *convolution,
            *algorithm,
            workspace.0,
            workspace.1,
            beta.cast(),
            dx.0,
            dx.1,
        )
    })
}

/// Enqueues dw = alpha · (gradient of w from x and dy) + beta · dw.
///
/// # Safety
/// As the module's.
pub unsafe fn backward_filter(
    cudnn: &Cudnn,
    handle: Handle,
    call: &Legacy,
    dy: (TensorDescriptor, *const c_void),
    dw: (FilterDescriptor, *mut c_void),
) -> Result<(), CudaError> {
    let Legacy { convolution, algorithm, data: x, workspace, alpha, beta } = call;
    let (alpha, beta): (*const f32, *const f32) = (alpha, beta);
    // SAFETY: both factors are read before the call returns; the rest is the caller's.
    check(cudnn, "cudnnConvolutionBackwardFilter", unsafe {
        (cudnn.backward_filter)(
            handle,
            alpha.cast(),
            x.0,
            x.1,
            dy.0,
            dy.1,
            *convolution,
            *algorithm,
            workspace.0,
            workspace.1,
            beta.cast(),
            dw.0,
            dw.1,
        )
    })
}

/// Sets an attribute of a backend object to `values`.
///
/// # Safety
/// As the module's; `T` is what C has for `element`.
pub unsafe fn backend_set<T>(
    cudnn: &Cudnn,
    descriptor: BackendDescriptor,
    attribute: Attribute,
    element: ElementType,
    values: &[T],
) -> Result<(), CudaError> {
    // SAFETY: `values` holds the number of elements given; the rest is the caller's.
    check(cudnn, "cudnnBackendSetAttribute", unsafe {
        (cudnn.backend_set)(descriptor, attribute, element, values.len() as i64, values.as_ptr().cast())
    })
}

/// Fills `places` from an attribute. Returns the number of elements of the attribute, which may be more or fewer.
///
/// # Safety
/// As the module's; `T` is what C has for `element`, and any value written is valid for it. Where the elements are
/// backend objects, `places` holds objects of the right kind, which the library fills.
pub unsafe fn backend_get<T>(
    cudnn: &Cudnn,
    descriptor: BackendDescriptor,
    attribute: Attribute,
    element: ElementType,
    places: &mut [T],
) -> Result<i64, CudaError> {
    let mut count = 0;
    let at: *mut c_void = if places.is_empty() { std::ptr::null_mut() } else { places.as_mut_ptr().cast() };
    // SAFETY: `places` has room for the number of elements given; the rest is the caller's.
    check(cudnn, "cudnnBackendGetAttribute", unsafe {
        (cudnn.backend_get)(descriptor, attribute, element, places.len() as i64, &mut count, at)
    })?;
    Ok(count)
}
