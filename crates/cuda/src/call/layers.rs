//! cuDNN's calls for layers. As in [`super::cudnn`], every object came from the same library and is alive. A handle is used
//! by one thread at a time with its context current. Device addresses belong to live buffers large enough for the described
//! work until the handle's stream has done it.

use std::ffi::{c_int, c_uint, c_void};

use super::cudnn::check;
use crate::CudaError;
use crate::sys::cudnn::{Cudnn, Handle, TensorDescriptor};
use crate::sys::layers::*;

/// Both tables of one library. The first has the messages of errors.
#[derive(Clone, Copy)]
pub struct Tables<'a> {
    /// Convolutions, descriptors, messages.
    pub cudnn: &'a Cudnn,
    /// Layers.
    pub layers: &'a CudnnLayers,
}

/// A tensor: how it lies, and where.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Shape, strides and type.
    pub tensor: TensorDescriptor,
    /// Its first element.
    pub at: *mut c_void,
}

const ONE: f32 = 1.0;

fn factor(value: &f32) -> *const c_void {
    std::ptr::from_ref(value).cast()
}

/// Declares the makers and destroyers of descriptors.
macro_rules! descriptors {
    ($($raw:ty: $create:ident $create_symbol:literal, $destroy:ident $destroy_symbol:literal;)*) => {$(
        /// A new descriptor.
        ///
        /// # Safety
        /// As the module's.
        pub unsafe fn $create(tables: Tables<'_>) -> Result<$raw, CudaError> {
            let mut descriptor = <$raw>::NULL;
            // SAFETY: `descriptor` is a place for the value; the rest is the caller's.
            check(tables.cudnn, $create_symbol, unsafe { (tables.layers.$create)(&mut descriptor) })?;
            Ok(descriptor)
        }

        /// Destroys a descriptor.
        ///
        /// # Safety
        /// As the module's; destroyed once.
        pub unsafe fn $destroy(tables: Tables<'_>, descriptor: $raw) -> Result<(), CudaError> {
            // SAFETY: forwarded to the caller.
            check(tables.cudnn, $destroy_symbol, unsafe { (tables.layers.$destroy)(descriptor) })
        }
    )*};
}

descriptors! {
    PoolingDescriptor: create_pooling "cudnnCreatePoolingDescriptor",
        destroy_pooling "cudnnDestroyPoolingDescriptor";
    LrnDescriptor: create_lrn "cudnnCreateLRNDescriptor", destroy_lrn "cudnnDestroyLRNDescriptor";
}

/// Declares layers that read x and write y, and beta scales what y held: an optional descriptor and mode come first.
macro_rules! forwards {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal ($($argument:ident: $type:ty),*);)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As the module's.
        pub unsafe fn $name(
            tables: Tables<'_>, handle: Handle, $($argument: $type,)* x: Part, beta: f32, y: Part,
        ) -> Result<(), CudaError> {
            // SAFETY: both factors are read before the call returns; the rest is the caller's.
            check(tables.cudnn, $symbol, unsafe {
                (tables.layers.$name)(
                    handle, $($argument,)* factor(&ONE), x.tensor, x.at, factor(&beta), y.tensor, y.at,
                )
            })
        }
    )*};
}

forwards! {
    /// Enqueues y = pooled x + beta · y.
    pooling_forward = "cudnnPoolingForward" (pooling: PoolingDescriptor);
    /// Enqueues y = normalized x + beta · y.
    lrn_forward = "cudnnLRNCrossChannelForward" (lrn: LrnDescriptor, mode: LrnMode);
    /// Enqueues y = softmax of x + beta · y.
    softmax_forward = "cudnnSoftmaxForward" (algorithm: SoftmaxAlgorithm, mode: SoftmaxMode);
    /// Enqueues y = x + beta · y, where dimensions of x of extent 1 are repeated.
    add_tensor = "cudnnAddTensor" ();
}

/// Declares layers whose gradient takes y, dy and x.
macro_rules! backwards {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal ($($argument:ident: $type:ty),*);)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As the module's.
        pub unsafe fn $name(
            tables: Tables<'_>, handle: Handle, $($argument: $type,)* [y, dy, x]: [Part; 3], beta: f32, dx: Part,
        ) -> Result<(), CudaError> {
            // SAFETY: both factors are read before the call returns; the rest is the caller's.
            check(tables.cudnn, $symbol, unsafe {
                (tables.layers.$name)(
                    handle, $($argument,)* factor(&ONE), y.tensor, y.at, dy.tensor, dy.at, x.tensor, x.at,
                    factor(&beta), dx.tensor, dx.at,
                )
            })
        }
    )*};
}

backwards! {
    /// Enqueues dx = the windows' shares of dy + beta · dx.
    pooling_backward = "cudnnPoolingBackward" (pooling: PoolingDescriptor);
    /// Enqueues dx = the gradient of the normalization + beta · dx.
    lrn_backward = "cudnnLRNCrossChannelBackward" (lrn: LrnDescriptor, mode: LrnMode);
}

/// Sets windows, padding and strides of a pooling, one of each for a spatial dimension.
///
/// # Safety
/// As the module's.
pub unsafe fn set_pooling(
    tables: Tables<'_>,
    pooling: PoolingDescriptor,
    mode: PoolingMode,
    [windows, padding, strides]: [&[c_int]; 3],
) -> Result<(), CudaError> {
    debug_assert!(windows.len() == padding.len() && padding.len() == strides.len());
    // SAFETY: the three arrays have the length given; the rest is the caller's.
    check(tables.cudnn, "cudnnSetPoolingNdDescriptor", unsafe {
        let (windows_at, padding_at, strides_at) = (windows.as_ptr(), padding.as_ptr(), strides.as_ptr());
        let length = windows.len() as c_int;
        let nan = NanPropagation::PROPAGATE;
        (tables.layers.set_pooling)(pooling, mode, nan, length, windows_at, padding_at, strides_at)
    })
}

/// Sets the constants of a local response normalization; cuDNN itself divides alpha by the size.
///
/// # Safety
/// As the module's.
pub unsafe fn set_lrn(
    tables: Tables<'_>,
    lrn: LrnDescriptor,
    size: c_uint,
    [alpha, beta, k]: [f64; 3],
) -> Result<(), CudaError> {
    // SAFETY: forwarded to the caller.
    check(tables.cudnn, "cudnnSetLRNDescriptor", unsafe { (tables.layers.set_lrn)(lrn, size, alpha, beta, k) })
}
