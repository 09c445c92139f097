//! One command per file.

pub mod cache;
pub mod compare;
pub mod completions;
mod dataset;
pub mod doctor;
pub mod doctor_preload;
mod findings;
mod forward;
mod job;
mod networked;
pub mod networks;
pub mod optimize;
pub mod plan;
pub mod predict;
pub mod profile;
pub mod report;
mod rescue;
pub mod run;

mod run_budget;
mod run_report;
mod saving;
mod solver;
pub mod split;
mod start;
pub mod test;
pub mod train;
pub mod verify;

use std::ffi::OsString;
use std::io::IsTerminal;

use terminal_size::Width;
use tightfit_profile::answer::Optimized;
use tightfit_report::{Grid, Terminal, csv, json, table};

use crate::failure::{Failure, print};
use crate::options::Format;

/// The narrowest terminal that tables are made for.
const NARROWEST: u16 = 60;

/// The terminal behind standard output; a pipe has no width and no styles.
fn terminal() -> Terminal {
    let stdout = std::io::stdout();
    let width = terminal_size::terminal_size_of(&stdout).map(|(Width(width), _)| width.max(NARROWEST));
    let is_wanted = has_styles(|name| std::env::var_os(name));
    Terminal { width, styled: stdout.is_terminal() && is_wanted }
}

/// Whether a terminal has styles and its user wants them: <https://no-color.org>.
fn has_styles(variable: impl Fn(&str) -> Option<OsString>) -> bool {
    variable("NO_COLOR").is_none_or(|value| value.is_empty()) && variable("TERM").is_none_or(|value| value != "dumb")
}

fn print_optimized(optimized: &Optimized, format: Format) -> Result<(), Failure> {
    print(&match format {
        Format::Table => table(optimized, terminal()),
        Format::Json => json(optimized),
        Format::Csv => csv(optimized),
    })
}

/// Prints rows in a format; JSON has one object per row, keyed by column name.
fn print_grid(grid: &Grid, format: Format) -> Result<(), Failure> {
    print(&match format {
        Format::Table => grid.table(terminal()),
        Format::Csv => grid.csv(),
        Format::Json => grid.json(),
    })
}

#[cfg(test)]
mod tests {
    use super::has_styles;

    #[test]
    fn variables_turn_styles_off() {
        for (name, value, expected) in [
            ("NO_COLOR", "1", false),
            ("NO_COLOR", "", true),
            ("TERM", "dumb", false),
            ("TERM", "xterm-256color", true),
            ("HOME", "dumb", true),
        ] {
            assert_eq!(has_styles(|asked| (asked == name).then(|| value.into())), expected, "{name}={value}");
        }
    }
}
