//! What a survey works with besides devices: a store, a flag that stops it, and someone to tell how it gets on.

use std::sync::atomic::AtomicBool;

use crate::Problem;
use crate::profile::Store;

/// Told how a survey gets on; called from several threads.
pub trait Progress: Sync {
    /// A problem was begun: its place among all, and how many there are.
    fn begin(&self, problem: &Problem, place: usize, of: usize);
    /// A problem is done; `share` of all the work (by floating-point operations) is behind.
    fn done(&self, share: f64);
    /// Everything is measured; what follows is arithmetic.
    fn choosing(&self) {}
}

/// Says nothing.
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _: &Problem, _: usize, _: usize) {}
    fn done(&self, _: f64) {}
}

/// The surroundings of a journey. By default nothing is kept, nothing stops it, and nobody is told.
#[derive(Clone, Copy)]
pub struct Env<'a> {
    /// Where measurements are kept, and looked for first.
    pub cache: Option<&'a dyn Store>,
    /// Set to stop: what was measured stays in the cache.
    pub stop: &'a AtomicBool,
    /// Told how it gets on.
    pub progress: &'a dyn Progress,
}

impl Default for Env<'_> {
    fn default() -> Self {
        static NEVER: AtomicBool = AtomicBool::new(false);
        Env { cache: None, stop: &NEVER, progress: &Silent }
    }
}
