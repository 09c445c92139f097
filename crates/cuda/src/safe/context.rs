//! A device's primary context: the one that PyTorch and every other user of the runtime in the process share.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tightfit_units::Bytes;

use crate::call::driver as call;
use crate::sys::driver::{self as sys, Driver};
use crate::{CudaError, load};

/// The primary context of one device, held until the last object on it is gone.
pub struct Context {
    driver: Arc<Driver>,
    path: PathBuf,
    device: sys::Device,
    raw: sys::Context,
    /// Where stream-ordered memory comes from, once any was taken.
    pool: OnceLock<sys::MemPool>,
    recorded: Mutex<Option<CudaError>>,
}

// SAFETY: the driver's functions may be called from any thread, a context may be current on several at once, and what
// is mutable here is behind a lock.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the driver (see [`load`]) and takes the primary context of device `ordinal`.
    ///
    /// # Errors
    /// As [`load::driver`]; [`CudaError::NoDevice`]; [`CudaError::Driver`] if the driver does not start.
    pub fn open(library: Option<&Path>, ordinal: usize) -> Result<Context, CudaError> {
        let load::OpenLibrary { table, path } = load::driver(library)?;
        Context::retain(&Arc::new(table), &path, ordinal)
    }

    /// Takes the primary context of device `ordinal` with a driver opened before.
    ///
    /// # Errors
    /// [`CudaError::NoDevice`]; [`CudaError::Driver`] if the driver does not start.
    pub(crate) fn retain(driver: &Arc<Driver>, path: &Path, ordinal: usize) -> Result<Context, CudaError> {
        let count = device_count(driver)?;
        let place = i32::try_from(ordinal).ok().filter(|_| ordinal < count);
        let place = place.ok_or(CudaError::NoDevice { ordinal, count })?;
        // SAFETY: `device_count` has started the driver, and `ordinal` is one of its devices.
        let device = unsafe { call::device_get(driver, place) }?;
        // SAFETY: released in `drop`.
        let raw = unsafe { call::primary_ctx_retain(driver, device) }?;
        let (pool, recorded) = (OnceLock::new(), Mutex::new(None));
        Ok(Context { driver: driver.clone(), path: path.to_owned(), device, raw, pool, recorded })
    }

    /// The driver's functions, with this context current on the calling thread.
    ///
    /// # Errors An error recorded by a destructor since the last call, reported once; [`CudaError::Driver`] if the
    /// context is lost.
    pub(crate) fn enter(&self) -> Result<&Driver, CudaError> {
        if let Some(error) = self.recorded.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(error);
        }
        self.current()
    }

    /// Calls a destructor with this context current, and records errors. Destroys the object even if making the context
    /// current fails: it probably is current, and there will be no second chance.
    pub(crate) fn destroy(&self, destructor: impl FnOnce(&Driver) -> Result<(), CudaError>) {
        self.record(self.current().map(|_| ()));
        self.record(destructor(&self.driver));
    }

    fn current(&self) -> Result<&Driver, CudaError> {
        // SAFETY: the context is retained as long as `self` lives.
        unsafe { call::ctx_set_current(&self.driver, self.raw) }?;
        Ok(&self.driver)
    }

    /// Records a failure in a destructor for the next call; keeps the first of several, as the likely cause.
    pub(crate) fn record(&self, result: Result<(), CudaError>) {
        if let Err(error) = result {
            self.recorded.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }

    /// Waits for all work on the device. Fails if the context was lost.
    ///
    /// # Errors
    /// [`CudaError::Driver`] with any error of the work.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let driver = self.enter()?;
        // SAFETY: the context is current.
        unsafe { call::ctx_synchronize(driver) }
    }

    /// Free and total bytes of the device. Other processes may change the free bytes at any time.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn memory(&self) -> Result<(Bytes, Bytes), CudaError> {
        let driver = self.enter()?;
        // SAFETY: the context is current.
        let (free, total) = unsafe { call::mem_get_info(driver) }?;
        Ok((Bytes(free as u64), Bytes(total as u64)))
    }

    /// Where stream-ordered memory comes from. A separate pool, because programs may set the device's own to keep
    /// memory that is given back to it; this pool keeps it until a call waits for the device, or [`Context::trim`] is
    /// called.
    ///
    /// # Errors
    /// [`CudaError::Driver`], for example of a device without such memory.
    pub(super) fn pool(&self) -> Result<sys::MemPool, CudaError> {
        if let Some(pool) = self.pool.get() {
            return Ok(*pool);
        }
        let of = sys::MemPoolProps {
            allocation: sys::ALLOCATION_PINNED,
            handles: 0,
            location: sys::LOCATION_DEVICE,
            device: self.device.0,
            security: std::ptr::null(),
            most: 0,
            usage: 0,
            reserved: [0; 54],
        };
        let driver = self.current()?;
        // SAFETY: the context is current, and `of` describes memory of its device.
        let new = unsafe { call::mem_pool_create(driver, &of) }?;
        let kept = *self.pool.get_or_init(|| new);
        if kept != new {
            // SAFETY: another thread was first, so nothing was taken from this one.
            unsafe { call::mem_pool_destroy(driver, new) }?;
        }
        Ok(kept)
    }

    /// Returns all stream-ordered memory that no work uses any more to the device. Never waits.
    pub(crate) fn trim(&self) -> Result<(), CudaError> {
        let Some(pool) = self.pool.get() else { return Ok(()) };
        let driver = self.enter()?;
        // SAFETY: the pool is destroyed with the context only.
        unsafe { call::mem_pool_trim_to(driver, *pool, 0) }
    }

    /// The device's name, such as `NVIDIA H200`.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn name(&self) -> Result<String, CudaError> {
        // SAFETY: the device is the driver's.
        unsafe { call::device_get_name(&self.driver, self.device) }
    }

    /// The newest CUDA version that the driver supports, such as `13.0`.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn cuda_version(&self) -> Result<String, CudaError> {
        // SAFETY: needs nothing but the table.
        let version = unsafe { call::driver_get_version(&self.driver) }?;
        Ok(format!("{}.{}", version / 1000, version % 1000 / 10))
    }

    /// Whether it is the calling thread's current context.
    pub(crate) fn is_current(&self) -> Result<bool, CudaError> {
        // SAFETY: the driver was started by whoever made the context.
        Ok(unsafe { call::ctx_get_current(&self.driver) }? == self.raw)
    }

    /// The driver's file.
    pub fn library(&self) -> &Path {
        &self.path
    }
}

/// Starts the driver and returns its number of devices.
///
/// # Errors
/// [`CudaError::Driver`], for example if there is a driver but no device.
pub(crate) fn device_count(driver: &Driver) -> Result<usize, CudaError> {
    // SAFETY: may be called again.
    unsafe { call::init(driver, 0) }?;
    // SAFETY: the driver was started just now.
    Ok(usize::try_from(unsafe { call::device_get_count(driver) }?).unwrap_or(0))
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(pool) = self.pool.get() {
            // SAFETY: every memory taken from it held the context alive. Nobody is left to report an error to.
            let _ = unsafe { call::mem_pool_destroy(&self.driver, *pool) };
        }
        // SAFETY: retained once in `open`, and every object of the context holds it alive, so none is left. There is
        // also no one left to report an error to.
        let _ = unsafe { call::primary_ctx_release(&self.driver, self.device) };
    }
}
