//! Messages to the person at the terminal, on standard error. Saying something never fails: where nobody reads it, on a
//! full disk or after the terminal was closed, the command goes on and ends with the exit code that it would have had.

use std::fmt::Display;
use std::io::{Result, Write};

/// Writes one message, which may have several lines.
pub fn say(message: impl Display) {
    // In one write, so that processes that share a terminal do not mix their lines.
    let _ = std::io::stderr().write_all(format!("{message}\n").as_bytes());
}

/// Says what ended the command.
pub fn error(message: impl Display) {
    say(format_args!("error: {message}"));
}

/// Says what went wrong while the command goes on.
pub fn warn(message: impl Display) {
    say(format_args!("warning: {message}"));
}

/// Says what the person should know of the result.
pub fn note(message: impl Display) {
    say(format_args!("note: {message}"));
}

/// Standard error for those who would panic or complain where it cannot be written.
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
