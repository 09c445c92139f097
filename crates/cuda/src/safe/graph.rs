//! Work recorded once and launched with one call.

use std::sync::Arc;

use super::{Context, Stream};
use crate::CudaError;
use crate::call::driver as call;
use crate::sys::driver::{self as sys, CaptureMode};

/// A graph of captured work, ready to launch.
pub struct Graph {
    context: Arc<Context>,
    raw: sys::GraphExec,
}

// SAFETY: a graph may be launched from any thread.
unsafe impl Send for Graph {}

impl Graph {
    /// Records the work that `enqueue` puts on the stream, instead of running it.
    ///
    /// Allocating, freeing or waiting during the capture is an error of the driver. The capture always ends.
    ///
    /// # Errors
    /// The errors of `enqueue`; [`CudaError::Driver`] if the work cannot be captured.
    pub fn capture(stream: &Stream, enqueue: impl FnOnce() -> Result<(), CudaError>) -> Result<Graph, CudaError> {
        let capture = Capture::begin(stream)?;
        enqueue()?;
        capture.end()
    }

    /// Enqueues the captured work.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Safety
    /// All device memory and plans that the captured work uses are alive until the stream has done it.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<(), CudaError> {
        let driver = self.context.enter()?;
        // SAFETY: forwarded to the caller; graph and stream are alive.
        unsafe { call::graph_launch(driver, self.raw, stream.raw()) }
    }
}

/// A capture in progress, which ends when dropped.
pub(crate) struct Capture {
    context: Arc<Context>,
    stream: sys::Stream,
    ended: bool,
}

// SAFETY: the stream may be used from any thread; a capture of the mode below is ended in the thread that began it, or
// the driver reports it.
unsafe impl Send for Capture {}

impl Capture {
    /// Starts recording the work put on the stream, which must outlive the capture.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    pub fn begin(stream: &Stream) -> Result<Capture, CudaError> {
        let driver = stream.context().enter()?;
        // SAFETY: the stream is alive.
        unsafe { call::stream_begin_capture(driver, stream.raw(), CaptureMode::THREAD_LOCAL) }?;
        Ok(Capture { context: stream.context().clone(), stream: stream.raw(), ended: false })
    }

    /// The recorded work, ready to launch.
    ///
    /// # Errors
    /// [`CudaError::Driver`] if the work cannot be captured.
    pub fn end(mut self) -> Result<Graph, CudaError> {
        let driver = self.context.enter()?;
        self.ended = true;
        // SAFETY: the capture was begun in `begin`, and is ended here once.
        let graph = unsafe { call::stream_end_capture(driver, self.stream) }?;
        // SAFETY: the graph was captured just now.
        let raw = unsafe { call::graph_instantiate(driver, graph, 0) };
        // SAFETY: a copy is launched, so the graph itself is no longer needed.
        self.context.record(unsafe { call::graph_destroy(driver, graph) });
        Ok(Graph { context: self.context.clone(), raw: raw? })
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        // A broken capture must be ended too, which fails; the caller already knows why.
        let Ok(driver) = self.context.enter() else { return };
        // SAFETY: the capture was begun in `begin`, and is ended here once.
        if let Ok(graph) = unsafe { call::stream_end_capture(driver, self.stream) } {
            // SAFETY: a graph of work that is not wanted any more.
            self.context.record(unsafe { call::graph_destroy(driver, graph) });
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made in `capture` and destroyed only here; a launch under way is finished by the driver.
        self.context.destroy(|driver| unsafe { call::graph_exec_destroy(driver, self.raw) });
    }
}
