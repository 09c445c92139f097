//! Reads the command line and the environment, and refuses options that do not go together.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, FromArgMatches};

use super::{Options, idle, units};
use crate::message;

/// Options that a plan already sets, so that they cannot be combined with one.
const PLANNED: [&str; 12] = [
    "batch",
    "budget",
    "host_budget",
    "policy",
    "plan_time",
    "algorithms",
    "divide",
    "lanes",
    "sizes",
    "costs",
    "types",
    "layout",
];

impl Options {
    /// Reads the command line and the environment; exits the program if they are invalid.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Options {
        let arguments: Vec<OsString> = arguments.into_iter().collect();
        let mut command = idle::definition();
        let first = command.clone().ignore_errors(true).try_get_matches_from(&arguments);
        if let Some(name) = first.ok().as_ref().and_then(ArgMatches::subcommand_name) {
            command = idle::without_variables(command, name);
        }
        let matches = command.try_get_matches_from_mut(&arguments).unwrap_or_else(|error| {
            let is_run = arguments.get(1).is_some_and(|word| word == "run");
            if is_run && error.kind() == ErrorKind::UnknownArgument && !arguments.iter().any(|word| word == "--") {
                let _ = error.print();
                message::say("\nPut -- before the program: tightfit run [OPTIONS] -- python train.py");
                std::process::exit(2);
            }
            error.exit()
        });
        if let Some(what) = matches.subcommand().and_then(|(name, given)| idle::refusal(name, given)) {
            command.error(ErrorKind::ArgumentConflict, what).exit()
        }
        let planned = ["train", "test", "predict"].into_iter().find_map(|command| matches.subcommand_matches(command));
        if let Some(name) = planned.and_then(said_beside_plan) {
            let name = name.replace('_', "-");
            let what =
                format!("the argument '--plan <PLAN>' cannot be used with '--{name}', which the plan already sets");
            command.error(ErrorKind::ArgumentConflict, what).exit()
        }
        if let Some((name, given)) = matches.subcommand()
            && let Some(subcommand) = command.find_subcommand(name)
        {
            units::check_all(subcommand, given);
        }
        Options::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
    }
}

/// The first command-line option that conflicts with a plan given there. Environment variables are for other commands.
fn said_beside_plan(command: &ArgMatches) -> Option<&'static str> {
    let is_said = |name: &&str| command.value_source(name) == Some(ValueSource::CommandLine);
    PLANNED.into_iter().find(|name| is_said(&"plan") && is_said(name))
}
