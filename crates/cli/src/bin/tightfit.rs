//! The `tightfit` program.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(tightfit::start(std::env::args_os()))
}
