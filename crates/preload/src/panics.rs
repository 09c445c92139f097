//! Keeps our panics from the program.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::log::trace;

/// Runs our part of a call and catches panics, or `None` if it panicked.
pub fn catch_panics<T>(part: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(part)).map_err(|_| trace!("a decision panicked; passing the call through")).ok()
}

/// Panics if a test asks for it; never in a release build.
pub fn panic_if_asked() {
    if cfg!(debug_assertions) && std::env::var_os("TIGHTFIT_TEST_PANIC").is_some() {
        std::panic::panic_any("asked for by TIGHTFIT_TEST_PANIC");
    }
}
