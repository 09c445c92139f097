//! The help of `tightfit`, with its commands by what people come for.

use clap::Command;

/// The commands of each purpose, in the order in which people need them.
const PURPOSES: [(&str, &[&str]); 5] = [
    ("Train a PyTorch program in the memory you have", &["run", "compare", "report"]),
    ("Ask before you train", &["plan", "networks", "doctor"]),
    ("Train without a framework", &["train", "test", "predict"]),
    ("Convolutions: measure, divide, check", &["profile", "optimize", "verify", "split", "cache"]),
    ("This command", &["completions", "man", "help"]),
];

/// The command, whose help lists its subcommands by purpose.
pub fn by_purpose(command: Command) -> Command {
    let mut lines = String::new();
    for (purpose, names) in PURPOSES {
        lines += &format!("{purpose}:\n");
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map_or_else(|| "Print help of a command".to_owned(), ToString::to_string);
            lines += &format!("  {name:<12} {about}\n");
        }
        lines.push('\n');
    }
    command.help_template(format!(
        "{{about}}\n\n{{usage-heading}} {{usage}}\n\n{lines}Options:\n{{options}}{{after-help}}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::definition;

    #[test]
    fn every_command_has_one_purpose() {
        let mut named: Vec<&str> = PURPOSES.iter().flat_map(|(_, names)| *names).copied().collect();
        named.sort_unstable();
        let command = definition();
        let mut there: Vec<&str> = command.get_subcommands().map(Command::get_name).chain(["help"]).collect();
        there.sort_unstable();
        assert_eq!(named, there);
    }
}
