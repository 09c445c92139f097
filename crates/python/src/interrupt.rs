//! Long calls: the interpreter continues during them, and Ctrl-C ends them.
//!
//! ```text
//! calling thread  detach |--wait--|signals?|--wait--|signals? yes: set stop|--wait--| attach, raise
//! worker thread           |--------------- work, looks at stop ----------------------|
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pyo3::{PyResult, Python};
use tightfit_units::Error;

use crate::failure::raise;

/// How long Ctrl-C may go unnoticed.
const PATIENCE: Duration = Duration::from_millis(50);

/// Does `work` without the interpreter lock on a separate thread, while this one looks for signals.
///
/// Ctrl-C sets the flag. The exception of Python's handler is raised when the work has ended: at once if the work looks at
/// the flag, else when it is done.
///
/// # Errors
/// The exceptions of the work's errors; `KeyboardInterrupt`.
///
/// # Panics
/// If the work does; Python sees a `PanicException`.
pub fn interruptible<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&AtomicBool) -> Result<T, Error> + Send,
) -> PyResult<T> {
    let stop = AtomicBool::new(false);
    py.detach(|| {
        std::thread::scope(|threads| {
            let (done, waiting) = channel::<()>();
            let worker = threads.spawn(|| {
                // Dropped at the end, also by a panic: the receiver then hears that the work is over.
                let _done = done;
                work(&stop)
            });
            let mut signaled = Ok(());
            while waiting.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                if signaled.is_ok() {
                    signaled = Python::attach(|py| py.check_signals());
                    stop.store(signaled.is_err(), Ordering::Relaxed);
                }
            }
            let result = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            signaled.and(result.map_err(raise))
        })
    })
}
