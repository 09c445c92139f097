//! `tightfit completions` and `tightfit man`: made from the command's own definition, so they cannot miss an option.

use clap::CommandFactory;
use clap_mangen::Man;

use crate::failure::{Failure, print};
use crate::options::{CompletionsOptions, ManOptions, Options};

/// Prints the completions of a shell.
///
/// # Errors
/// Those of printing.
pub fn completions(options: &CompletionsOptions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Options::command(), "tightfit", &mut script);
    print(&String::from_utf8_lossy(&script))
}

/// Prints the page of the command, or of a subcommand.
///
/// # Errors
/// [`Failure::Usage`] for an unknown subcommand; those of printing.
pub fn man(options: &ManOptions) -> Result<(), Failure> {
    let mut all = Options::command();
    // Options of all commands are then on the page of each.
    all.build();
    let command = match &options.command {
        None => all,
        Some(name) => match all.find_subcommand(name) {
            Some(command) => command.clone(),
            None => {
                let names: Vec<&str> = all.get_subcommands().map(clap::Command::get_name).collect();
                return Err(Failure::Usage(format!("{name} is no subcommand; choose {}", names.join(", "))));
            }
        },
    };
    let mut page = Vec::new();
    Man::new(command)
        .render(&mut page)
        .map_err(|error| Failure::Wrong(format!("the page cannot be written: {error}")))?;
    print(&String::from_utf8_lossy(&page))
}
