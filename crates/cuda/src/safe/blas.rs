//! cuBLAS on the stream of a cuDNN handle.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::{DeviceBuffer, Handle, Region};
use crate::CudaError;
use crate::call::cublas::{self as call, Matrix};
use crate::load;
use crate::sys::cublas::{self as sys, ComputeType, Cublas};

/// Workspace for cuBLAS: the size its documentation recommends for Hopper, more than for earlier generations.
const WORKSPACE_BYTES: usize = 32 << 20;

/// A cuBLAS handle with a fixed workspace, so that it allocates no memory later and its results are reproducible.
pub struct Blas {
    handle: Arc<Handle>,
    cublas: Cublas,
    path: PathBuf,
    raw: Mutex<sys::Handle>,
    _workspace: DeviceBuffer,
}

// SAFETY: the raw handle is behind a lock, and the context is made current for every call.
unsafe impl Send for Blas {}
// SAFETY: as above.
unsafe impl Sync for Blas {}

impl Blas {
    /// Opens cuBLAS (see [`load`]) on the stream of `handle`.
    ///
    /// # Errors
    /// As [`load::cublas`]; [`CudaError::Cublas`] if it does not start; [`CudaError::OutOfMemory`] for its workspace.
    pub fn open(library: Option<&Path>, handle: &Arc<Handle>) -> Result<Blas, CudaError> {
        let load::OpenLibrary { table: cublas, path } = load::cublas(library, handle.library())?;
        let workspace = DeviceBuffer::new(handle.context(), WORKSPACE_BYTES)?;
        handle.context().enter()?;
        // SAFETY: the context is current; destroyed in `drop`.
        let raw = unsafe { call::create(&cublas) }?;
        let place = (workspace.raw(), WORKSPACE_BYTES);
        let blas = Blas { handle: handle.clone(), cublas, path, raw: Mutex::new(raw), _workspace: workspace };
        // SAFETY: all are alive, and outlive the handle, which is destroyed first.
        unsafe { call::set_stream(&blas.cublas, raw, blas.handle.stream().raw(), place) }?;
        Ok(blas)
    }

    /// Its version, as `13.1.0`.
    ///
    /// # Errors
    /// [`CudaError::Cublas`].
    pub fn version(&self) -> Result<String, CudaError> {
        self.handle.context().enter()?;
        let raw = self.raw.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the handle is alive and locked.
        let version = unsafe { call::get_version(&self.cublas, *raw) }?;
        Ok(format!("{}.{}.{}", version / 10_000, version % 10_000 / 100, version % 100))
    }

    /// Its file.
    pub fn library(&self) -> &Path {
        &self.path
    }

    /// Enqueues c = a · b + beta · c.
    /// # Safety
    /// The matrices are as large as sizes and strides say, and their memory is alive until the stream has done the work.
    pub(crate) unsafe fn multiply(
        &self,
        sizes: [i32; 3],
        matrices: [Matrix; 3],
        beta: f32,
        compute: ComputeType,
    ) -> Result<(), CudaError> {
        self.handle.context().enter()?;
        let raw = self.raw.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the handle is alive and locked; the rest is the caller's.
        unsafe { call::gemm(&self.cublas, *raw, sizes, matrices, beta, compute) }
    }
}

/// A column-major matrix at the beginning of a region.
pub(crate) fn matrix(region: &Region, data: sys::DataType, leading: i32, transposed: bool) -> Matrix {
    Matrix { at: region.raw(), data, leading, transposed }
}

impl Drop for Blas {
    fn drop(&mut self) {
        self.handle.context().destroy(|_| {
            let raw = self.raw.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: made in `open` and destroyed only here; queued products keep to the workspace, which waits for them.
            unsafe { call::destroy(&self.cublas, *raw) }
        });
    }
}
