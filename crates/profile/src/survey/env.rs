//! The environment of a survey: a store, a stop flag, and a progress listener.

use std::sync::atomic::AtomicBool;

use tightfit_conv::Problem;

use crate::Store;

/// Receives the progress of a survey; called from several threads.
pub trait Progress: Sync {
    /// A problem begins: its index, and the number of problems.
    fn begin(&self, problem: &Problem, place: usize, of: usize);
    /// A problem is done; `share` is the completed fraction of the work, by floating-point operations.
    fn done(&self, share: f64);
    /// Everything is measured; only arithmetic remains.
    fn choosing(&self) {}
}

/// Ignores all progress.
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _: &Problem, _: usize, _: usize) {}
    fn done(&self, _: f64) {}
}

/// The environment of a survey. The default has no store, never stops, and ignores progress.
#[derive(Clone, Copy)]
pub struct Env<'a> {
    /// The store of measurements to look up and save in.
    pub cache: Option<&'a dyn Store>,
    /// Set it to stop; completed measurements stay in the cache.
    pub stop: &'a AtomicBool,
    /// Receives progress.
    pub progress: &'a dyn Progress,
}

impl Default for Env<'_> {
    fn default() -> Self {
        static NEVER: AtomicBool = AtomicBool::new(false);
        Env { cache: None, stop: &NEVER, progress: &Silent }
    }
}
