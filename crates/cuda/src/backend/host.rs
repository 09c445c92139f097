//! The driver, cuDNN, devices, streams and graph captures of a running program.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tightfit_conv::problem::Storage;
use tightfit_units::Bytes;

use super::guest::Guest;
use super::pattern::{Buffers, Pattern};
use super::plans::{Builder, Plans, Sharing};
use super::{CudaBackend, Options};
use crate::load::{self, CudnnLibrary, OpenLibrary};
use crate::safe::{Context, DeviceBuffer, Event, Handle};
use crate::sys::cudnn::{self as sys, Cudnn};
use crate::sys::driver::{CaptureMode, CaptureStatus, Driver};
use crate::sys::{DevicePtr, driver};
use crate::{CudaError, call};

/// The driver and the cuDNN of a running program.
pub struct Host {
    driver: Arc<Driver>,
    path: PathBuf,
    cudnn: Arc<CudnnLibrary>,
    contexts: Mutex<HashMap<usize, Arc<Context>>>,
    /// Random data for trials, by device and type.
    pub(super) patterns: Mutex<HashMap<(usize, Storage), Arc<Pattern>>>,
    pub(super) buffers: Arc<Buffers>,
    /// By device.
    plans: Mutex<HashMap<usize, Arc<Plans>>>,
}

impl Host {
    /// Uses the driver that the loader finds (or `TIGHTFIT_CUDA` names) and a cuDNN opened earlier.
    ///
    /// # Errors
    /// As [`load::driver`].
    pub fn open(cudnn: Arc<CudnnLibrary>) -> Result<Host, CudaError> {
        let OpenLibrary { table, path } = load::driver(None)?;
        Ok(Host {
            driver: Arc::new(table),
            path,
            cudnn,
            contexts: Mutex::default(),
            patterns: Mutex::default(),
            buffers: Arc::default(),
            plans: Mutex::default(),
        })
    }

    /// cuDNN's functions.
    pub fn cudnn(&self) -> &Cudnn {
        &self.cudnn.table
    }

    /// The ordinal of the calling thread's current device; `None` unless it uses the device's primary context, as all
    /// users of the CUDA runtime do.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn device(&self) -> Result<Option<usize>, CudaError> {
        // SAFETY: a program that has a cuDNN handle has started the driver.
        if unsafe { call::driver::ctx_get_current(&self.driver) }? == driver::Context::NULL {
            return Ok(None);
        }
        // SAFETY: there is a current context.
        let device = unsafe { call::driver::ctx_get_device(&self.driver) }?;
        let Ok(ordinal) = usize::try_from(device.0) else { return Ok(None) };
        Ok(self.context(ordinal)?.is_current()?.then_some(ordinal))
    }

    /// Whether the stream of a handle is capturing a graph, or cannot be queried because another is.
    ///
    /// # Safety
    /// `handle` is alive, and not in use on another thread.
    pub unsafe fn is_capturing(&self, handle: sys::Handle) -> bool {
        // SAFETY: forwarded to the caller.
        let stream = unsafe { call::cudnn::get_stream(&self.cudnn.table, handle) };
        // SAFETY: the program keeps a handle's stream alive while it calls with the handle.
        let status = stream.and_then(|stream| unsafe { call::driver::stream_is_capturing(&self.driver, stream) });
        status.map_or(true, |status| status != CaptureStatus::NONE)
    }

    /// Until the result is dropped, this thread's allocations and waits do not break graph captures on other threads.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn beside_captures(&self) -> Result<BesideCaptures<'_>, CudaError> {
        // SAFETY: a program that has a cuDNN handle has started the driver.
        let before = unsafe { call::driver::thread_exchange_capture_mode(&self.driver, CaptureMode::RELAXED) }?;
        Ok(BesideCaptures { driver: &self.driver, before })
    }

    /// A stream's unique ID, and the ID of its current capture. The address does not identify a stream:
    /// it may be reused, and is the same for the default streams of all threads.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Safety
    /// `stream` is alive.
    pub unsafe fn lane(&self, stream: driver::Stream) -> Result<Lane, CudaError> {
        // SAFETY: forwarded to the caller.
        let (stream, capture) = unsafe {
            (call::driver::stream_get_id(&self.driver, stream)?, call::driver::stream_capture_id(&self.driver, stream)?)
        };
        Ok(Lane { stream, capture })
    }

    /// The stream that a handle's work goes to.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`].
    ///
    /// # Safety
    /// `handle` is alive, and not in use on another thread.
    pub unsafe fn stream(&self, handle: sys::Handle) -> Result<driver::Stream, CudaError> {
        // SAFETY: forwarded to the caller.
        unsafe { call::cudnn::get_stream(&self.cudnn.table, handle) }
    }

    /// An event on a device, for ordering streams.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn event(&self, device: usize) -> Result<Event, CudaError> {
        Event::untimed(&self.context(device)?)
    }

    /// Device memory that is never freed.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn arena(&self, device: usize, bytes: Bytes) -> Result<DevicePtr, CudaError> {
        let (buffer, address) = self.memory(device, usize::try_from(bytes.0).unwrap_or(usize::MAX))?;
        // Captured graphs may use it until the process ends.
        std::mem::forget(buffer);
        Ok(address)
    }

    /// Device memory with its address. Dropping the buffer waits for the device and frees it.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`].
    pub fn memory(&self, device: usize, bytes: usize) -> Result<(DeviceBuffer, DevicePtr), CudaError> {
        let buffer = DeviceBuffer::new(&self.context(device)?, bytes)?;
        let address = buffer.slice(0..bytes)?.raw();
        Ok((buffer, address))
    }

    /// A separate backend on a device, for measuring: it waits for its own stream alone, so that captures elsewhere go on.
    /// Dropping it waits for the device, since cuDNN does so when it destroys a handle.
    ///
    /// # Errors
    /// [`CudaError::Driver`] and [`CudaError::Cudnn`] if it does not start.
    pub fn backend(&self, device: usize) -> Result<CudaBackend, CudaError> {
        let context = self.context(device)?;
        let backend = CudaBackend::on(Arc::new(Handle::start(&self.cudnn, &context)?), &Options::default())?;
        Ok(CudaBackend { scratch: backend.scratch.in_order(), ..backend })
    }

    /// Wraps a handle of the program.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Safety
    /// `handle` was made by this cuDNN on the device and outlives every call on the result and what it makes; meanwhile
    /// the program does not use it on another thread.
    pub unsafe fn guest(&self, device: usize, handle: sys::Handle) -> Result<Guest, CudaError> {
        let context = self.context(device)?;
        // SAFETY: forwarded to the caller.
        let handle = unsafe { Handle::borrow(&self.cudnn, &context, handle) };
        let backend = CudaBackend::on(Arc::new(handle), &Options::default())?;
        Ok(Guest::new(CudaBackend { sharing: Sharing::Takes(self.plans(device)), ..backend }))
    }

    /// The plans of a device that handles take.
    fn plans(&self, device: usize) -> Arc<Plans> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        plans.entry(device).or_default().clone()
    }

    /// Forgets the plans of a device that no handle has taken.
    pub fn forget_plans(&self, device: usize) {
        // Dropping them would wait for the current build.
        std::mem::forget(self.plans(device).take());
    }

    /// Something that builds plans for the handles of a device. Dropping it waits for the device, since cuDNN does so when it
    /// destroys a handle; nothing that it has built may be used afterwards.
    ///
    /// # Errors
    /// [`CudaError::Driver`] and [`CudaError::Cudnn`] if it does not start.
    pub fn builder(&self, device: usize) -> Result<Builder, CudaError> {
        let backend = self.backend(device)?;
        Ok(Builder::new(CudaBackend { sharing: Sharing::Builds(self.plans(device)), ..backend }))
    }

    pub(super) fn context(&self, device: usize) -> Result<Arc<Context>, CudaError> {
        let mut contexts = self.contexts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = contexts.get(&device) {
            return Ok(context.clone());
        }
        let context = Arc::new(Context::retain(&self.driver, &self.path, device)?);
        contexts.insert(device, context.clone());
        Ok(context)
    }
}

/// The current identity of a stream: work on one lane runs in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lane {
    /// The stream's number.
    pub stream: u64,
    /// The capture's, if its work is recorded; a graph may be launched on any other stream.
    pub capture: Option<u64>,
}

/// See [`Host::beside_captures`].
pub struct BesideCaptures<'a> {
    driver: &'a Driver,
    before: CaptureMode,
}

impl Drop for BesideCaptures<'_> {
    fn drop(&mut self) {
        // A failure here appears at the program's next call, like other failures of the driver. SAFETY: as in
        // `beside_captures`.
        let _ = unsafe { call::driver::thread_exchange_capture_mode(self.driver, self.before) };
    }
}
