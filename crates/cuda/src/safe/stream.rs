//! A queue of work on the device.

use std::sync::Arc;

use super::Context;
use crate::CudaError;
use crate::call::driver as call;
use crate::sys::driver::{self as sys, STREAM_NON_BLOCKING};

/// A stream that does not wait for the default stream.
pub struct Stream {
    context: Arc<Context>,
    raw: sys::Stream,
}

// SAFETY: a stream may be used from any thread.
unsafe impl Send for Stream {}
// SAFETY: as above; calls on one stream from two threads are ordered by the driver.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream of a context.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn new(context: &Arc<Context>) -> Result<Stream, CudaError> {
        let driver = context.enter()?;
        // SAFETY: the context is current.
        let raw = unsafe { call::stream_create(driver, STREAM_NON_BLOCKING) }?;
        Ok(Stream { context: context.clone(), raw })
    }

    /// The context's default stream.
    pub(crate) fn default_of(context: &Arc<Context>) -> Stream {
        Stream { context: context.clone(), raw: sys::Stream::NULL }
    }

    /// Waits until all work enqueued so far is done.
    ///
    /// # Errors
    /// [`CudaError::Driver`] with any error of the work.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let driver = self.context.enter()?;
        // SAFETY: the stream is alive as long as `self`.
        unsafe { call::stream_synchronize(driver, self.raw) }
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn raw(&self) -> sys::Stream {
        self.raw
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.raw == sys::Stream::NULL {
            return;
        }
        // SAFETY: made in `new` and destroyed only here; work still queued is finished by the driver.
        self.context.destroy(|driver| unsafe { call::stream_destroy(driver, self.raw) });
    }
}
