//! `tightfit completions` and `tightfit man`: made from the command's own definition, so they cannot miss an option.

use clap_mangen::Man;

use crate::failure::{Failure, print, write_file};
use crate::options::{CompletionsOptions, ManOptions, definition};

/// Prints the completions of a shell.
///
/// # Errors
/// Those of printing.
pub fn completions(options: &CompletionsOptions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut definition(), "tightfit", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Prints the page of the command, or of a subcommand; or writes all of them to a folder.
///
/// # Errors
/// [`Failure::Usage`] for an unknown subcommand; those of printing and writing.
pub fn man(options: &ManOptions) -> Result<(), Failure> {
    let mut all = definition();
    // Options of all commands are then on the page of each.
    all.build();
    if let Some(folder) = &options.out {
        for command in std::iter::once(&all).chain(all.get_subcommands().filter(|command| command.get_name() != "help"))
        {
            let name = command.get_display_name().unwrap_or(command.get_name());
            write_file(&folder.join(format!("{name}.1")), page(command.clone())?)?;
        }
        return Ok(());
    }
    let command = match &options.command {
        None => all,
        Some(name) => match all.find_subcommand(name) {
            Some(command) => command.clone(),
            None => {
                let names: Vec<&str> = all.get_subcommands().map(clap::Command::get_name).collect();
                return Err(Failure::Usage(format!("there is no subcommand `{name}`; choose {}", names.join(", "))));
            }
        },
    };
    print(&String::from_utf8_lossy(&page(command)?))
}

/// A manual page.
fn page(command: clap::Command) -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    Man::new(command)
        .render(&mut page)
        .map_err(|error| Failure::Wrong(format!("the page cannot be written: {error}")))?;
    Ok(page)
}
