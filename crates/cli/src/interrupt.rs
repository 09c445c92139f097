//! Ctrl-C, SIGTERM and SIGHUP: work that keeps what it measured is asked to stop, everything else ends at once.
//!
//! ```text
//! before work begins    the first one ends the program
//! while it measures     the first one sets a flag, the second one ends the program
//! ```
//!
//! Files that are half written are removed at the end.

use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, OnceLock};

use tightfit_core::output;

use crate::failure::INTERRUPTED;
use crate::message;

/// Whether there is somebody to ask.
static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
/// Whether the signals are heard; what stands in the way otherwise.
static HEARD: LazyLock<Result<(), ctrlc::Error>> = LazyLock::new(|| ctrlc::set_handler(stop));

/// Hears the signals from here on.
pub fn listen() {
    // Without a handler they end the program all the same; `flag` says so to those who would have been asked.
    let _ = LazyLock::force(&HEARD);
}

/// The flag that the first signal sets from here on: the measurement at hand is finished and kept.
pub fn flag() -> Arc<AtomicBool> {
    if let Err(error) = &*HEARD {
        message::note(format_args!("Ctrl-C will end the program at once ({error})"));
    }
    Arc::clone(FLAG.get_or_init(|| Arc::new(AtomicBool::new(false))))
}

fn stop() {
    match FLAG.get() {
        Some(flag) if !flag.swap(true, Ordering::Relaxed) => {
            message::say("\nfinishing the measurement or step at hand; press Ctrl-C again to end at once");
        }
        _ => {
            output::abandon();
            exit(INTERRUPTED.into());
        }
    }
}
