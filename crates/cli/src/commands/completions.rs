//! `tightfit completions` and `tightfit man`: made from the command's own definition, so they cannot miss an option.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::{Command as Process, ExitStatus, Stdio};

use clap::Command;
use clap::builder::Resettable;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::failure::{Failure, print, write_file};
use crate::options::{CompletionsOptions, ManOptions, definition};

/// Prints the completions of a shell.
///
/// # Errors
/// The errors of printing.
pub fn completions(options: &CompletionsOptions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut definition(), "tightfit", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Shows the page of the command, or of a subcommand, in a terminal as `man` does; or writes all of them to a folder.
///
/// # Errors
/// [`Failure::Usage`] for an unknown subcommand; the errors of printing and writing.
pub fn man(options: &ManOptions) -> Result<(), Failure> {
    // `help` has no page, and is not listed as one.
    let mut all = definition().disable_help_subcommand(true);
    // Options of all commands are then on the page of each.
    all.build();
    if let Some(folder) = &options.out {
        std::fs::create_dir_all(folder)
            .map_err(|error| Failure::Wrong(format!("{}: cannot be made: {error}", folder.display())))?;
        return write_pages(&all, folder);
    }
    let mut command = &all;
    for name in &options.command {
        let Some(found) = command.find_subcommand(name) else {
            let names: Vec<&str> = command.get_subcommands().map(Command::get_name).collect();
            let advice = match names[..] {
                [] => format!("`{}` has none; leave it out", command.get_name()),
                _ => format!("choose {}", names.join(", ")),
            };
            return Err(Failure::Usage(format!("there is no subcommand `{name}`; {advice}")));
        };
        command = found;
    }
    let page = page(command)?;
    if std::io::stdout().is_terminal() && shown(&page).is_ok_and(|status| status.success()) {
        return Ok(());
    }
    print(&page)
}

/// Shows a page in the viewer of manual pages.
fn shown(page: &str) -> std::io::Result<ExitStatus> {
    let mut viewer = Process::new("man").args(["-l", "-"]).stdin(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    if let Some(input) = &mut viewer.stdin {
        input.write_all(page.as_bytes())?;
    }
    viewer.wait()
}

/// Writes the pages of a command and of all its subcommands to a folder.
fn write_pages(command: &Command, folder: &Path) -> Result<(), Failure> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    write_file(&folder.join(format!("{name}.1")), page(command)?)?;
    command.get_subcommands().try_for_each(|command| write_pages(command, folder))
}

/// A manual page.
fn page(command: &Command) -> Result<String, Failure> {
    let mut page = Vec::new();
    written(command, &mut page).map_err(|error| Failure::Wrong(format!("the page cannot be written: {error}")))?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

fn written(command: &Command, page: &mut dyn Write) -> std::io::Result<()> {
    let source = format!("tightfit {}", command.get_version().unwrap_or_default());
    let options = command.clone().after_help(Resettable::Reset);
    Man::new(options).source(source).render(page)?;
    match command.get_after_help() {
        Some(text) => as_lines(&text.to_string()).to_writer(page),
        None => Ok(()),
    }
}

/// The text after the options: a section for each heading, in which lines stay lines, so that examples can be copied and the
/// columns of tables stand below each other.
fn as_lines(text: &str) -> Roff {
    let mut page = Roff::new();
    for line in text.lines() {
        match line.strip_suffix(':').filter(|heading| !heading.starts_with(' ')) {
            Some(heading) => {
                page.control("fi", []).control("SH", [heading.to_uppercase().as_str()]).control("nf", []);
            }
            None => {
                page.text([roman(line.strip_prefix("  ").unwrap_or(line))]);
            }
        }
    }
    page.control("fi", []);
    page
}
