//! A mark in a stream that records when it was passed.

use std::ffi::c_uint;
use std::sync::Arc;

use tightfit_units::Nanos;

use super::{Context, Stream};
use crate::CudaError;
use crate::call::driver as call;
use crate::sys::driver::{self as sys, EVENT_DEFAULT, EVENT_DISABLE_TIMING};

/// An event that records its time, to about half a microsecond.
pub struct Event {
    context: Arc<Context>,
    raw: sys::Event,
}

// SAFETY: an event may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// A new event, which has not happened.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn new(context: &Arc<Context>) -> Result<Event, CudaError> {
        Event::with(context, EVENT_DEFAULT)
    }

    /// A new event without a time, for ordering streams.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn untimed(context: &Arc<Context>) -> Result<Event, CudaError> {
        Event::with(context, EVENT_DISABLE_TIMING)
    }

    fn with(context: &Arc<Context>, flags: c_uint) -> Result<Event, CudaError> {
        let driver = context.enter()?;
        // SAFETY: the context is current.
        let raw = unsafe { call::event_create(driver, flags) }?;
        Ok(Event { context: context.clone(), raw })
    }

    /// Enqueues the event: it happens when all earlier work of the stream is done.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        let driver = self.context.enter()?;
        // SAFETY: both are alive.
        unsafe { call::event_record(driver, self.raw, stream.raw()) }
    }

    /// Enqueues the event on a stream of the host program.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Safety
    /// The stream is alive, on the event's device.
    pub unsafe fn record_on(&self, stream: sys::Stream) -> Result<(), CudaError> {
        let driver = self.context.enter()?;
        // SAFETY: the event is alive; the stream by the caller's word.
        unsafe { call::event_record(driver, self.raw, stream) }
    }

    /// Makes later work on a stream of the host program wait until the event has happened.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Safety
    /// The stream is alive, on the event's device.
    pub unsafe fn hold(&self, stream: sys::Stream) -> Result<(), CudaError> {
        let driver = self.context.enter()?;
        // SAFETY: as above; the driver keeps what it needs of the event.
        unsafe { call::stream_wait_event(driver, stream, self.raw, 0) }
    }

    /// Whether it has happened.
    ///
    /// # Errors
    /// [`CudaError::Driver`] with any error of the work before it.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        let driver = self.context.enter()?;
        // SAFETY: the event is alive as long as `self`.
        unsafe { call::event_query(driver, self.raw) }
    }

    /// Waits until it has happened.
    ///
    /// # Errors
    /// [`CudaError::Driver`] with any error of the work before it.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let driver = self.context.enter()?;
        // SAFETY: the event is alive as long as `self`.
        unsafe { call::event_synchronize(driver, self.raw) }
    }

    /// Time from an earlier event to this one, once both have happened.
    ///
    /// # Errors
    /// [`CudaError::Driver`] if one has not.
    pub fn since(&self, earlier: &Event) -> Result<Nanos, CudaError> {
        let driver = self.context.enter()?;
        // SAFETY: both are alive, and both take the time.
        let milliseconds = unsafe { call::event_elapsed_time(driver, earlier.raw, self.raw) }?;
        Ok(Nanos::from_micros(f64::from(milliseconds) * 1e3))
    }
}

impl Stream {
    /// Makes later work wait until `event` has happened; the host does not wait.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn wait(&self, event: &Event) -> Result<(), CudaError> {
        let driver = self.context().enter()?;
        // SAFETY: stream and event are alive; the driver keeps what it needs of the event.
        unsafe { call::stream_wait_event(driver, self.raw(), event.raw, 0) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made in `new` and destroyed only here; the driver finishes pending work on it.
        self.context.destroy(|driver| unsafe { call::event_destroy(driver, self.raw) });
    }
}
