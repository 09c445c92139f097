//! cuBLAS's calls. A handle came from the same table, is alive and used by one thread at a time with its context current.
//! Device addresses belong to live buffers long enough for the matrices until the handle's stream has done the work.

use std::ffi::c_int;

use crate::CudaError;
use crate::sys::DevicePtr;
use crate::sys::cublas::*;
use crate::sys::driver::Stream;

fn check(call: &'static str, status: CublasStatus) -> Result<(), CudaError> {
    if status == CublasStatus::SUCCESS { Ok(()) } else { Err(CudaError::Cublas { call, status }) }
}

/// A new handle on the current context.
///
/// # Safety
/// As the module's; destroyed by [`destroy`].
pub unsafe fn create(cublas: &Cublas) -> Result<Handle, CudaError> {
    let mut handle = Handle::NULL;
    // SAFETY: `handle` is a place for the value; the rest is the caller's.
    check("cublasCreate", unsafe { (cublas.create)(&mut handle) })?;
    Ok(handle)
}

/// Destroys a handle.
///
/// # Safety
/// As the module's; destroyed once.
pub unsafe fn destroy(cublas: &Cublas, handle: Handle) -> Result<(), CudaError> {
    // SAFETY: forwarded to the caller.
    check("cublasDestroy", unsafe { (cublas.destroy)(handle) })
}

/// The library's version, as 10000 · major + 100 · minor + patch.
///
/// # Safety
/// As the module's.
pub unsafe fn get_version(cublas: &Cublas, handle: Handle) -> Result<c_int, CudaError> {
    let mut version = 0;
    // SAFETY: `version` is a place for the value; the rest is the caller's.
    check("cublasGetVersion", unsafe { (cublas.get_version)(handle, &mut version) })?;
    Ok(version)
}

/// Sets the stream of a handle's work and its workspace.
///
/// # Safety
/// As the module's; stream and workspace outlive the handle.
pub unsafe fn set_stream(
    cublas: &Cublas,
    handle: Handle,
    stream: Stream,
    (workspace, bytes): (DevicePtr, usize),
) -> Result<(), CudaError> {
    // SAFETY: forwarded to the caller. The stream comes first: setting it takes an earlier workspace away.
    check("cublasSetStream", unsafe { (cublas.set_stream)(handle, stream) })?;
    // SAFETY: forwarded to the caller.
    check("cublasSetWorkspace", unsafe { (cublas.set_workspace)(handle, workspace.as_void(), bytes) })
}

/// One matrix of a product, in columns.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    /// Its first element.
    pub at: DevicePtr,
    /// Type of its elements.
    pub data: DataType,
    /// Elements from one column to the next.
    pub leading: c_int,
    /// Whether it is taken transposed; of no meaning for the result.
    pub transposed: bool,
}

/// Enqueues c = a · b + beta · c, of m rows, n columns and sums of k products.
///
/// # Safety
/// As the module's.
pub unsafe fn gemm(
    cublas: &Cublas,
    handle: Handle,
    [m, n, k]: [c_int; 3],
    [a, b, c]: [Matrix; 3],
    beta: f32,
    compute: ComputeType,
) -> Result<(), CudaError> {
    let operation = |matrix: Matrix| if matrix.transposed { Operation::T } else { Operation::N };
    let (alpha, beta): (*const f32, *const f32) = (&1.0, &beta);
    // SAFETY: both factors are read before the call returns; the rest is the caller's.
    check("cublasGemmEx", unsafe {
        (cublas.gemm)(
            handle,
            operation(a),
            operation(b),
            m,
            n,
            k,
            alpha.cast(),
            a.at.as_void(),
            a.data,
            a.leading,
            b.at.as_void(),
            b.data,
            b.leading,
            beta.cast(),
            c.at.as_void(),
            c.data,
            c.leading,
            compute,
            Algorithm::DEFAULT,
        )
    })
}
