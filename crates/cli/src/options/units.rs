//! Warns about sizes without a unit: `--workspace 64` means 64 bytes, which is hardly ever intended.

use std::fmt::Display;
use std::str::FromStr;

use clap::ArgMatches;
use clap::parser::ValueSource;
use tightfit_units::Bytes;

use crate::failure::Failure;
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
        let share = share(&name.to_string(), text)
            .map(|share| format!("; for a share of what plain training needs, write {share}%"))
            .unwrap_or_default();
        message::warn(format_args!("{name}: {advice}{share}"));
    }
}

/// The share, in percent, that a small number for a budget may mean.
fn share(name: &str, text: &str) -> Option<f64> {
    let number: f64 = text.trim().parse().ok().filter(|number| *number <= 100.0)?;
    matches!(name, "--budget" | "TIGHTFIT_BUDGET").then_some(if number <= 1.0 { 100.0 * number } else { number })
}

/// The size that a variable has, if it is set and not empty.
///
/// # Errors
/// [`Failure::Usage`], with the variable's name, for one that cannot be read.
pub fn of_environment<T: FromStr<Err: Display>>(name: &str) -> Result<Option<T>, Failure> {
    let Some(size) = std::env::var_os(name).filter(|size| !size.is_empty()) else { return Ok(None) };
    let size = size
        .into_string()
        .map_err(|size| Failure::Usage(format!("{name} is {size:?}, which is not UTF-8; give a size such as 64MiB")))?;
    check(name, &size);
    size.parse().map(Some).map_err(|error: T::Err| Failure::Usage(format!("{name}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_budget_may_be_a_share() {
        for (text, percent) in
            [("60", Some(60.0)), ("0.5", Some(50.0)), ("1", Some(100.0)), ("101", None), ("60%", None)]
        {
            assert_eq!(share("--budget", text), percent, "{text}");
            assert_eq!(share("--workspace", text), None);
        }
    }
}
