//! Reads the command line and the environment, and refuses options that do not go together.

use std::ffi::{OsStr, OsString};

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, FromArgMatches};

use super::{Options, idle, negative, program, suggestions, units};

/// Options that a plan already sets, so that they cannot be combined with one.
const PLANNED: [&str; 13] = [
    "freeze",
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
        let mut command = idle::definition();
        let arguments = program::separated(&command, arguments.into_iter().collect());
        let mut arguments = negative::joined(&command, arguments);
        if arguments.len() == 1 {
            arguments.push("-h".into());
        }
        let first = command.clone().ignore_errors(true).try_get_matches_from(&arguments);
        if let Some(name) = first.ok().as_ref().and_then(ArgMatches::subcommand_name) {
            command = idle::without_variables(command, name);
        }
        let defined = command.clone();
        let matches = command.try_get_matches_from_mut(&arguments).unwrap_or_else(|error| {
            with_variable(with_advice(error, &defined, &arguments), &defined, &arguments).exit()
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

/// An error about an unknown option or command, with the likely meaning in place of words of similar letters.
fn with_advice(mut error: Error, command: &Command, arguments: &[OsString]) -> Error {
    let kinds = [ContextKind::Suggested, ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand];
    let (written, built) = match error.kind() {
        ErrorKind::UnknownArgument => (error.get(ContextKind::InvalidArg), true),
        ErrorKind::InvalidSubcommand => (error.get(ContextKind::InvalidSubcommand), false),
        _ => return error,
    };
    let Some(ContextValue::String(written)) = written.cloned() else { return error };
    kinds.into_iter().for_each(|kind| drop(error.remove(kind)));
    // Only what is built has the common options.
    let mut whole = command.clone();
    whole.build();
    let named = arguments.iter().skip(1).find_map(|word| whole.find_subcommand(word));
    let meant = if built {
        suggestions::option_for(&written, named.unwrap_or(&whole))
    } else {
        suggestions::command_for(&written, &whole)
    };
    if let Some(meant) = meant {
        let text = StyledStr::from(format!("did you mean `{meant}`?"));
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![text]));
    }
    // The parser's own usage has what it would have suggested.
    let usage = named.unwrap_or(&whole).clone().render_usage();
    error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
    error
}

/// An error about the value of an option, with the name of the variable that has the value, if one has.
fn with_variable(mut error: Error, command: &Command, arguments: &[OsString]) -> Error {
    let Some(ContextValue::String(written)) = error.get(ContextKind::InvalidArg).cloned() else { return error };
    // Only what is built can be written.
    let mut built = command.clone();
    built.build();
    let options = built.get_subcommands().flat_map(Command::get_arguments).chain(built.get_arguments());
    let named = options
        .filter(|option| option.to_string() == written)
        .find_map(|option| Some((option.get_id().clone(), option.get_env().filter(|name| is_set(name))?.to_owned())));
    let Some((id, variable)) = named else { return error };
    // The command line is wrong even without the variable.
    let silent = |option: Arg| if *option.get_id() == id { option.env(None) } else { option };
    let without = command.clone().mut_args(silent).mut_subcommands(|command| command.mut_args(silent));
    let again = without.try_get_matches_from(arguments).err();
    if again.and_then(|again| again.get(ContextKind::InvalidArg).cloned())
        != Some(ContextValue::String(written.clone()))
    {
        let named = format!("{} ({written})", variable.to_string_lossy());
        error.insert(ContextKind::InvalidArg, ContextValue::String(named));
    }
    error
}

fn is_set(variable: &OsStr) -> bool {
    std::env::var_os(variable).is_some()
}

/// The first command-line option that conflicts with a plan given there. Environment variables are for other commands.
fn said_beside_plan(command: &ArgMatches) -> Option<&'static str> {
    let is_said = |name: &&str| command.value_source(name) == Some(ValueSource::CommandLine);
    PLANNED.into_iter().find(|name| is_said(&"plan") && is_said(name))
}
