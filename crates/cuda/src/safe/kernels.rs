//! The crate's own kernels: PTX that the driver compiles for its device.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use super::{Handle, Region};
use crate::CudaError;
use crate::call::driver as call;
use crate::sys::driver as sys;

/// The kernels' PTX; see the file `kernels.cu` in the same folder.
const PTX: &str = concat!(include_str!("../kernels/kernels.ptx"), "\0");
/// The PTX of batch normalization.
const PTX_NORM: &str = concat!(include_str!("../kernels/kernels_norm.ptx"), "\0");
/// The PTX of kernels for maps whose channels come last, in 16-bit types.
const PTX_LAST: &str = concat!(include_str!("../kernels/kernels_last.ptx"), "\0");
/// Threads of a block, for which the kernels are written.
pub(crate) const THREADS: usize = 256;
/// Maximum number of blocks of a kernel whose threads process several elements each: enough to fill any device.
const BLOCKS: usize = 8192;

/// The kernels, loaded.
pub struct Kernels {
    handle: Arc<Handle>,
    module: sys::Module,
}

// SAFETY: a module may be used from any thread.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Loads the kernels for work on the stream of `handle`.
    ///
    /// # Errors
    /// [`CudaError::Driver`] if the driver cannot compile them, such as one older than CUDA 12.4.
    pub fn load(handle: &Arc<Handle>) -> Result<Kernels, CudaError> {
        Kernels::compile(handle, PTX)
    }

    /// Loads the kernels of batch normalization.
    pub(crate) fn load_norm(handle: &Arc<Handle>) -> Result<Kernels, CudaError> {
        Kernels::compile(handle, PTX_NORM)
    }

    /// Loads the kernels for maps whose channels come last, in 16-bit types.
    pub(crate) fn load_last(handle: &Arc<Handle>) -> Result<Kernels, CudaError> {
        Kernels::compile(handle, PTX_LAST)
    }

    fn compile(handle: &Arc<Handle>, text: &'static str) -> Result<Kernels, CudaError> {
        let driver = handle.context().enter()?;
        // SAFETY: the context is current and the text ends with a zero.
        let module = unsafe { call::module_load_data(driver, text.as_ptr().cast()) }?;
        Ok(Kernels { handle: handle.clone(), module })
    }

    /// One kernel.
    ///
    /// # Errors
    /// [`CudaError::Driver`] if no kernel has this name.
    pub(crate) fn get(self: &Arc<Kernels>, name: &str) -> Result<Kernel, CudaError> {
        let driver = self.handle.context().enter()?;
        // No name here has a zero inside.
        let name = CString::new(name).unwrap_or_default();
        // SAFETY: the module is alive; the name ends with a zero.
        let function = unsafe { call::module_get_function(driver, self.module, name.as_ptr()) }?;
        Ok(Kernel { kernels: self.clone(), function })
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        self.handle.context().destroy(|driver| {
            // SAFETY: the context is current.
            let waited = unsafe { call::ctx_synchronize(driver) };
            // SAFETY: loaded in `load`, unloaded only here, and no kernel is left in a queue.
            waited.and(unsafe { call::module_unload(driver, self.module) })
        });
    }
}

/// A parameter of a kernel: eight bytes, of which a kernel takes the declared number (both sides are little-endian).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Argument(u64);

impl From<&Region> for Argument {
    fn from(region: &Region) -> Argument {
        Argument(region.raw().0)
    }
}

impl From<u64> for Argument {
    fn from(value: u64) -> Argument {
        Argument(value)
    }
}

impl From<u32> for Argument {
    fn from(value: u32) -> Argument {
        Argument(value.into())
    }
}

impl From<f32> for Argument {
    fn from(value: f32) -> Argument {
        Argument(value.to_bits().into())
    }
}

/// A kernel to launch.
pub(crate) struct Kernel {
    kernels: Arc<Kernels>,
    function: sys::Function,
}

// SAFETY: a function may be launched from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Enqueues the kernel on `grid` blocks.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Safety
    /// The arguments match the declaration of the kernel, in its order, and the memory behind addresses is as long as the
    /// kernel says and alive until the stream has done the work.
    pub unsafe fn launch(&self, grid: [u32; 2], arguments: &[Argument]) -> Result<(), CudaError> {
        let handle = &self.kernels.handle;
        let driver = handle.context().enter()?;
        let mut values: Vec<u64> = arguments.iter().map(|argument| argument.0).collect();
        let mut places: Vec<*mut c_void> = values.iter_mut().map(|value| std::ptr::from_mut(value).cast()).collect();
        let stream = handle.stream().raw();
        // SAFETY: the function is alive with its module; the arguments and their memory are the caller's.
        unsafe { call::launch_kernel(driver, self.function, grid, THREADS as u32, stream, &mut places) }
    }
}

/// Blocks for one element per thread, or several.
pub(crate) fn blocks(len: usize) -> [u32; 2] {
    // At most BLOCKS, so it fits.
    [len.div_ceil(THREADS).clamp(1, BLOCKS) as u32, 1]
}

/// Blocks for `rows` rows of `columns` blocks, or several rows per block.
pub(crate) fn row_blocks(columns: usize, rows: usize) -> [u32; 2] {
    // More than that are beyond any device's memory.
    let columns = columns.clamp(1, i32::MAX as usize);
    [columns as u32, rows.clamp(1, (BLOCKS / columns).max(1)) as u32]
}
