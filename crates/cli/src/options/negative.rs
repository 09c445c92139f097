//! Values that begin with a hyphen, such as `-1MiB` and `-inf`: what reads an option says which values it takes, but a value of its
//! own looks like an option to clap, whose advice is then about another thing.

use std::ffi::{OsStr, OsString};

use clap::{Arg, Command};

/// The arguments with each negative number joined to the option before it, as `--budget=-1MiB` for `--budget -1MiB`. Arguments
/// after `--` belong to a program, and stay as they are.
pub fn joined(command: &Command, arguments: Vec<OsString>) -> Vec<OsString> {
    let ours = arguments.iter().position(|word| word == "--").unwrap_or(arguments.len());
    let mut joined: Vec<OsString> = Vec::with_capacity(arguments.len());
    for (place, word) in arguments.into_iter().enumerate() {
        match joined.last_mut() {
            Some(option) if place < ours && is_negative(&word) && takes_value(command, option) => {
                option.push("=");
                option.push(word);
            }
            _ => joined.push(word),
        }
    }
    joined
}

/// Whether a word is meant as a number below zero, with a unit or others after it or not, or as none.
fn is_negative(word: &OsStr) -> bool {
    let Some(number) = word.to_str().and_then(|word| word.strip_prefix('-')) else { return false };
    let unsigned = number.strip_prefix('.').unwrap_or(number);
    unsigned.starts_with(|first: char| first.is_ascii_digit())
        || ["inf", "infinity", "nan"].iter().any(|name| number.eq_ignore_ascii_case(name))
}

/// Whether a word is an option, of this command or of a subcommand, that takes a value and has none yet.
fn takes_value(command: &Command, word: &OsStr) -> bool {
    let Some(name) = word.to_str() else { return false };
    let is_meant = |option: &Arg| match name.strip_prefix("--") {
        Some(long) => option.get_long() == Some(long),
        None => option.get_short().is_some_and(|short| name.strip_prefix('-') == Some(short.encode_utf8(&mut [0; 4]))),
    };
    command.get_arguments().any(|option| option.get_action().takes_values() && is_meant(option))
        || command.get_subcommands().any(|command| takes_value(command, word))
}

#[cfg(test)]
mod tests {
    use super::super::definition;
    use super::*;

    #[test]
    fn negative_numbers_join_the_option_before_them() {
        let joined = |line: &str| -> Vec<String> {
            let words = joined(&definition(), line.split(' ').map(OsString::from).collect());
            words.into_iter().map(|word| word.into_string().unwrap()).collect()
        };
        for (line, expected) in [
            ("tightfit plan --budget -1MiB", "tightfit plan --budget=-1MiB"),
            ("tightfit plan -b -1 --assume", "tightfit plan -b=-1 --assume"),
            ("tightfit verify --alpha -inf --beta -.5", "tightfit verify --alpha=-inf --beta=-.5"),
            ("tightfit --seed -1 networks", "tightfit --seed=-1 networks"),
            ("tightfit train --mean -0.5,0.4", "tightfit train --mean=-0.5,0.4"),
            ("tightfit plan --assume -1", "tightfit plan --assume -1"),
            ("tightfit plan --budget -v", "tightfit plan --budget -v"),
            ("tightfit plan --budget=-1 -2", "tightfit plan --budget=-1 -2"),
            ("tightfit run -- program --seed -1", "tightfit run -- program --seed -1"),
        ] {
            assert_eq!(joined(line).join(" "), expected);
        }
    }
}
