//! Messages on standard error: few, one line each, and without a panic or signal if their reader is gone.

use std::fmt::Arguments;
use std::io::Write;
use std::sync::OnceLock;

use crate::sigpipe::without_sigpipe;

/// Whether `TIGHTFIT_LOG` requests a line per decision. Outside of the process's state, because creating the state may
/// log; guarded by its own cell and never changed.
static VERBOSE: OnceLock<bool> = OnceLock::new();

/// Writes a line.
pub fn line(text: Arguments<'_>) {
    // If writing fails, there is nowhere left to report it.
    let _ = without_sigpipe(|| std::io::stderr().write_all(format!("tightfit: {text}\n").as_bytes()));
}

/// Writes part of a line, for a terminal.
pub fn part(text: Arguments<'_>) {
    let _ = without_sigpipe(|| std::io::stderr().write_all(text.to_string().as_bytes()));
}

/// Whether `TIGHTFIT_LOG` requests a line per decision.
pub fn is_verbose() -> bool {
    *VERBOSE.get_or_init(|| std::env::var_os("TIGHTFIT_LOG").is_some_and(|value| !value.is_empty() && value != "0"))
}

/// Reports something that the user must know.
macro_rules! report_warning {
    ($($text:tt)*) => { $crate::log::line(format_args!($($text)*)) };
}

/// Reports something only if `TIGHTFIT_LOG` requests it.
macro_rules! trace {
    ($($text:tt)*) => { if $crate::log::is_verbose() { $crate::log::line(format_args!($($text)*)) } };
}

// A macro cannot be imported from its own file under the name of the built-in attribute.
pub(crate) use {report_warning as warn, trace};
