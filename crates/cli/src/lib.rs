//! The `tightfit` command: reads the options, runs one command, and turns failures into a message and an exit code
//! (0 done, 1 failed, 2 wrong usage, 3 does not fit, 130 interrupted).
//!
//! Two programs start it: `tightfit` itself, and the Python package, whose `tightfit` and `python -m tightfit` call
//! [`start`] from the extension module. Nothing else is public; programs use the crates below this one.
//!
//! ```text
//! options/     the command line: one file for a group of options, help, suggestions for wrong words
//! commands/    one file for each command
//! preload/     for `run`: the library to preload, cuDNN, and the Python that a command starts
//! model, session, planning, solve, largest     a network, its backends and cache, its plan, its optimized kernels
//! estimate, rates                              time and memory of measurements on the CPU, before they start
//! message, progress, failure, interrupt        lines for people, exit codes, Ctrl-C
//! ```
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod commands;
mod estimate;
mod failure;
mod interrupt;
mod largest;
mod message;
mod model;
mod options;
mod planning;
mod preload;
mod progress;
mod rates;
mod session;
mod solve;

use std::ffi::OsString;

use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::prelude::*;

use crate::message::Messages;
use crate::options::{Command, Options};

/// Runs the command with these arguments, the first of which is the program's own name; returns its exit code.
///
/// Exits the process itself if the arguments are wrong or ask for help; `run` replaces the process.
pub fn start(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let options = Options::read(arguments);
    let level = [Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE][usize::from(options.common.verbose.min(3))];
    let filter = std::env::var("TIGHTFIT_LOG").ok().and_then(|value| value.parse().ok());
    let filter = filter.unwrap_or_else(|| Targets::new().with_default(level));
    tracing_subscriber::registry().with(layer().with_writer(|| Messages).without_time()).with(filter).init();
    let common = &options.common;
    // `run` is replaced by its command, which handles its own signals.
    if !matches!(options.command, Command::Run(_)) {
        interrupt::listen();
    }
    let result = match &options.command {
        Command::Networks(arguments) => commands::networks::run(arguments, common),
        Command::Doctor(arguments) => commands::doctor::run(arguments, common),
        Command::Profile(arguments) => commands::profile::run(arguments, common),
        Command::Optimize(arguments) => commands::optimize::run(arguments, common),
        Command::Verify(arguments) => commands::verify::run(arguments, common),
        Command::Plan(arguments) => commands::plan::run(arguments, common),
        Command::Train(arguments) => commands::train::run(arguments, common),
        Command::Predict(arguments) => commands::predict::run(arguments, common),
        Command::Test(arguments) => commands::test::run(arguments, common),
        Command::Split(arguments) => commands::split::run(arguments, common),
        Command::Compare(arguments) => commands::compare::run(arguments, common),
        Command::Run(arguments) => commands::run::run(arguments, common),
        Command::Report(arguments) => commands::report::run(arguments, common),
        Command::Cache(arguments) => commands::cache::run(arguments, common),
        Command::Completions(arguments) => commands::completions::completions(arguments),
        Command::Man(arguments) => commands::completions::man(arguments),
    };
    match result {
        Ok(()) => 0,
        Err(failure) => failure.report(session::kept_in(common).as_deref()),
    }
}
