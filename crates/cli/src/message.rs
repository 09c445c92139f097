//! Messages to the user, on standard error. Printing a message never fails: if its reader is gone, the disk is full or
//! the terminal was closed, the command continues and exits with the code it would have had anyway.

use std::fmt::Display;
use std::io::{Result, Write};

/// Prints one message, which may have several lines.
pub fn say(message: impl Display) {
    // One write, so that processes sharing a terminal do not interleave their lines.
    let _ = std::io::stderr().write_all(format!("{message}\n").as_bytes());
}

/// Prints the error that ended the command.
pub fn error(message: impl Display) {
    say(format_args!("error: {message}"));
}

/// Prints a warning; the command continues.
pub fn warn(message: impl Display) {
    say(format_args!("warning: {message}"));
}

/// Prints something the user should know about the result.
pub fn note(message: impl Display) {
    say(format_args!("note: {message}"));
}

/// Standard error for writers that would otherwise panic or complain if it cannot be written.
pub struct Messages;

impl Write for Messages {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let _ = std::io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}
