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
    /// Records what `enqueue` puts on the stream, in place of running it.
    ///
    /// Nothing may be allocated, freed or waited for meanwhile: the driver answers that with an error, and the capture is
    /// ended whatever happened.
    ///
    /// # Errors
    /// Those of `enqueue`; [`CudaError::Driver`] if the work cannot be captured.
    pub fn capture(stream: &Stream, enqueue: impl FnOnce() -> Result<(), CudaError>) -> Result<Graph, CudaError> {
        let context = stream.context();
        let driver = context.enter()?;
        // SAFETY: the stream is alive.
        unsafe { call::stream_begin_capture(driver, stream.raw(), CaptureMode::THREAD_LOCAL) }?;
        let enqueued = enqueue();
        // SAFETY: the capture was begun above, and a capture that broke must be ended as well.
        let captured = unsafe { call::stream_end_capture(driver, stream.raw()) };
        let graph = match (enqueued, captured) {
            (Ok(()), captured) => captured?,
            (Err(error), Ok(graph)) => {
                // SAFETY: a graph of work that is not wanted any more.
                context.record(unsafe { call::graph_destroy(driver, graph) });
                return Err(error);
            }
            (Err(error), Err(_)) => return Err(error),
        };
        // SAFETY: the graph was captured just now.
        let raw = unsafe { call::graph_instantiate(driver, graph, 0) };
        // SAFETY: what is launched is a copy, so the graph itself has served.
        context.record(unsafe { call::graph_destroy(driver, graph) });
        Ok(Graph { context: context.clone(), raw: raw? })
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

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made in `capture` and destroyed only here; a launch under way is finished by the driver.
        self.context.destroy(|driver| unsafe { call::graph_exec_destroy(driver, self.raw) });
    }
}
