//! Warns about sizes without a unit: `--workspace 64` means 64 bytes, and hardly anybody does.

use std::fmt::Display;

use clap::ArgMatches;
use clap::parser::ValueSource;
use tightfit_core::Bytes;

use crate::message;

/// The options that take a size, of all commands.
const SIZES: [&str; 6] = ["workspace", "total_workspace", "one_workspace", "budget", "host_budget", "memory"];

/// Warns about each size that was given to a command.
pub fn check_all(command: &clap::Command, given: &ArgMatches) {
    for size in SIZES {
        let Ok(Some(texts)) = given.try_get_raw(size) else { continue };
        let variable = || command.get_arguments().find(|option| option.get_id() == size)?.get_env();
        let name = match given.value_source(size) {
            Some(ValueSource::CommandLine) => format!("--{}", size.replace('_', "-")),
            Some(ValueSource::EnvVariable) => variable().unwrap_or_default().to_string_lossy().into_owned(),
            _ => continue,
        };
        texts.for_each(|text| check(&name, &text.to_string_lossy()));
    }
}

/// Warns about a size that an option or a variable of this name has.
pub fn check(name: impl Display, text: &str) {
    if let Some(advice) = Bytes::missing_unit(text) {
        message::warn(format_args!("{name}: {advice}"));
    }
}
