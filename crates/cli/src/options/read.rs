//! Reads the command line and the environment, and refuses options that do not go together.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};

use super::Options;
use crate::message;

/// Options that a plan already sets, so that they cannot be combined with one.
const PLANNED: [&str; 10] =
    ["batch", "budget", "host_budget", "policy", "plan_time", "algorithms", "divide", "sizes", "costs", "types"];

/// Options of other commands that do not apply to `run`, and why.
const NOT_FOR_RUN: [(&str, &str); 7] = [
    ("types", "the program chooses the types of its tensors"),
    ("layout", "the program chooses the layout of its tensors"),
    ("threads", "run computes nothing on the CPU"),
    ("every_engine", "run uses the engines that cuDNN proposes to the program"),
    ("backend", "the program computes with cuDNN"),
    ("format", "run prints no results; --report FILE writes JSON"),
    ("seed", "run draws no random numbers"),
];

impl Options {
    /// Reads the command line and the environment; exits the program if they are invalid.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Options {
        let arguments: Vec<OsString> = arguments.into_iter().collect();
        let mut command = Options::command();
        // `run` does not read environment variables meant for other commands, so they cannot be invalid there.
        let first = command.clone().ignore_errors(true).try_get_matches_from(&arguments);
        if first.is_ok_and(|matches| matches.subcommand_name() == Some("run")) {
            for (name, _) in NOT_FOR_RUN {
                command = command.mut_arg(name, |argument| argument.env(None));
            }
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
        if let Some(what) = matches.subcommand_matches("run").and_then(not_for_run) {
            command.error(ErrorKind::ArgumentConflict, what).exit()
        }
        let planned = ["train", "test", "predict"].into_iter().find_map(|command| matches.subcommand_matches(command));
        if let Some(name) = planned.and_then(said_beside_plan) {
            let name = name.replace('_', "-");
            let what =
                format!("the argument '--plan <PLAN>' cannot be used with '--{name}', which the plan already sets");
            command.error(ErrorKind::ArgumentConflict, what).exit()
        }
        Options::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
    }
}

/// The first command-line option that conflicts with a plan given there. Environment variables are for other commands.
fn said_beside_plan(command: &ArgMatches) -> Option<&'static str> {
    let is_said = |name: &&str| command.value_source(name) == Some(ValueSource::CommandLine);
    PLANNED.into_iter().find(|name| is_said(&"plan") && is_said(name))
}

/// The error for a command-line option that does not apply, if any. Environment variables are for other commands.
fn not_for_run(run: &ArgMatches) -> Option<String> {
    let is_said = |name: &str| run.value_source(name) == Some(ValueSource::CommandLine);
    let means_cuda = |name: &str| {
        name == "backend"
            && run.get_one::<String>(name).is_some_and(|backend| ["auto", "cuda"].contains(&backend.as_str()))
    };
    let unused = NOT_FOR_RUN.into_iter().find(|(name, _)| is_said(name) && !means_cuda(name));
    unused.map(|(name, why)| {
        let name = name.replace('_', "-");
        format!("the argument '--{name}' cannot be used with 'run': {why}; leave it out")
    })
}
