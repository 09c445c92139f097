//! Ctrl-C, SIGTERM and SIGHUP: work that saves measurements is asked to stop; everything else ends immediately.
//!
//! ```text
//! before work begins    the first signal ends the program
//! while it measures     the first signal sets a flag, the second ends the program
//! ```
//!
//! Partially written files are removed at exit.

use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, OnceLock};

use tightfit_units::output;

use crate::failure::INTERRUPTED;
use crate::message;

/// Set once there is work that can be asked to stop.
static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();
/// Whether the signal handler is installed, or why it is not.
static HANDLER: LazyLock<Result<(), ctrlc::Error>> = LazyLock::new(|| ctrlc::set_handler(stop));

/// Installs the signal handler.
pub fn listen() {
    // Without a handler, signals still end the program; `flag` warns about it.
    let _ = LazyLock::force(&HANDLER);
}

/// The flag that the first signal sets from here on; the current measurement is then finished and saved, or left if the
/// device allows it.
pub fn flag() -> Arc<AtomicBool> {
    if let Err(error) = &*HANDLER {
        message::note(format_args!("Ctrl-C will end the program immediately ({error})"));
    }
    Arc::clone(FLAG.get_or_init(|| Arc::new(AtomicBool::new(false))))
}

/// The flag of [`flag`], once there is work that can be asked to stop.
pub fn current() -> Option<Arc<AtomicBool>> {
    FLAG.get().map(Arc::clone)
}

fn stop() {
    match FLAG.get() {
        Some(flag) if !flag.swap(true, Ordering::Relaxed) => {
            message::say("\nfinishing the current measurement or step; press Ctrl-C again to quit now");
        }
        _ => {
            message::say("\ninterrupted");
            output::abandon();
            exit(INTERRUPTED.into());
        }
    }
}
