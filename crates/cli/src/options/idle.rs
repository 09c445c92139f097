//! Common options that have no effect on a command: its help leaves them out, and it refuses them. Environment variables for
//! them are for other commands, and are not read.

use clap::parser::ValueSource;
use clap::{ArgMatches, Command, CommandFactory};

use super::Options;

/// Options of commands that compute, measure or draw random numbers; commands that only show something ignore them.
const OF_WORK: [&str; 10] = [
    "backend",
    "types",
    "layout",
    "threads",
    "devices",
    "cudnn",
    "every_engine",
    "deterministic",
    "exact_class",
    "seed",
];

/// Why options have no effect on `run`.
const RUN: [(&str, &str); 7] = [
    ("types", "the program chooses the types of its tensors"),
    ("layout", "the program chooses the layout of its tensors"),
    ("threads", "run computes nothing on the CPU"),
    ("every_engine", "run uses the engines that cuDNN proposes to the program"),
    ("backend", "the program computes with cuDNN"),
    ("format", "run prints no results; --report FILE writes JSON"),
    ("seed", "run draws no random numbers"),
];

/// The options without effect on a command.
fn idle(command: &str) -> Vec<&'static str> {
    let work_and = |others: &[&'static str]| [&OF_WORK, others].concat();
    match command {
        "networks" | "report" => work_and(&["cache"]),
        "cache" => work_and(&[]),
        "completions" | "man" => work_and(&["cache", "format", "verbose"]),
        "doctor" => vec!["backend", "types", "layout", "every_engine", "deterministic", "exact_class", "seed"],
        "profile" | "optimize" | "plan" => vec!["seed"],
        "split" => vec!["threads", "cudnn", "every_engine", "deterministic", "exact_class", "seed"],
        "run" => RUN.map(|(name, _)| name).to_vec(),
        "compare" => RUN.map(|(name, _)| name).into_iter().filter(|name| *name != "format").collect(),
        _ => Vec::new(),
    }
}

/// The definition of the command, in which the help of each subcommand has the common options that have an effect there.
pub fn definition() -> Command {
    let all = settled(Options::command());
    let common: Vec<clap::Arg> = all.get_arguments().filter(|option| option.is_global_set()).cloned().collect();
    let hidden = |of: &str| {
        let idle = idle(of);
        let hide = |option: &clap::Arg| option.clone().hide(true).env(None);
        common.iter().filter(|option| idle.contains(&option.get_id().as_str())).map(hide).collect::<Vec<_>>()
    };
    // An option that a subcommand has already is not handed down to it.
    super::purposes::by_purpose(all.mut_subcommands(|command| {
        let hidden = hidden(command.get_name());
        command.args(hidden)
    }))
}

/// A command and its subcommands, in which an empty variable is as good as none.
fn settled(command: Command) -> Command {
    let is_empty =
        |option: &clap::Arg| option.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty());
    let command = command.mut_args(|option| if is_empty(&option) { option.env(None) } else { option });
    command.mut_subcommands(settled)
}

/// The definition, without the variables that have no effect on a subcommand, so that they cannot be invalid there.
pub fn without_variables(all: Command, subcommand: &str) -> Command {
    idle(subcommand).into_iter().fold(all, |all, name| all.mut_arg(name, |option| option.env(None)))
}

/// The error for a common option on the command line that has no effect on a subcommand, if there is one.
pub fn refusal(subcommand: &str, given: &ArgMatches) -> Option<String> {
    let is_said = |name: &&str| given.value_source(name) == Some(ValueSource::CommandLine);
    let means_cuda = |name: &str| {
        matches!((subcommand, name), ("run" | "compare", "backend"))
            && given.get_one::<String>(name).is_some_and(|backend| ["auto", "cuda"].contains(&backend.as_str()))
    };
    let name = idle(subcommand).into_iter().filter(is_said).find(|name| !means_cuda(name))?;
    let of_run = RUN.into_iter().find(|(known, _)| ["run", "compare"].contains(&subcommand) && *known == name);
    let (name, why) = (name.replace('_', "-"), of_run.map_or("it has no effect there", |(_, why)| why));
    Some(format!("the argument '--{name}' cannot be used with '{subcommand}': {why}; leave it out"))
}
