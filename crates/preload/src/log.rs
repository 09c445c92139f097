//! Words to standard error: few, one line each, and neither a panic nor a signal where nobody reads it.

use std::fmt::Arguments;
use std::io::Write;
use std::sync::OnceLock;

use crate::pipe::shielded;

/// Writes a line.
pub fn line(text: Arguments<'_>) {
    // Nobody is left to be told if it fails.
    let _ = shielded(|| std::io::stderr().write_all(format!("tightfit: {text}\n").as_bytes()));
}

/// Whether `TIGHTFIT_LOG` asks for a line for each decision.
pub fn is_verbose() -> bool {
    static VERBOSE: OnceLock<bool> = OnceLock::new();
    *VERBOSE.get_or_init(|| std::env::var_os("TIGHTFIT_LOG").is_some_and(|value| !value.is_empty() && value != "0"))
}

/// Says something that the user must know.
macro_rules! say {
    ($($text:tt)*) => { $crate::log::line(format_args!($($text)*)) };
}

/// Says something that a user asked for with `TIGHTFIT_LOG`.
macro_rules! tell {
    ($($text:tt)*) => { if $crate::log::is_verbose() { $crate::log::line(format_args!($($text)*)) } };
}

pub(crate) use {say, tell};
