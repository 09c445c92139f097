//! The likely meaning of an option or a command that does not exist.

use std::path::{Path, PathBuf};

use clap::Command;
use tightfit_units::distance;

use crate::failure::Failure;

/// Names from other tools, and their names here.
const OPTIONS: [(&str, &str); 8] = [
    ("--lr", "--learning-rate"),
    ("--bs", "--batch"),
    ("--batch-size", "--batch"),
    ("--memory-limit", "--budget"),
    ("--limit", "--budget"),
    ("--output", "--out"),
    ("--dtype", "--types"),
    ("--gpus", "--devices"),
];
const COMMANDS: [(&str, &str); 8] = [
    ("fit", "tightfit run --budget 8GiB -- python train.py"),
    ("budget", "tightfit run --budget 8GiB -- python train.py"),
    ("tune", "tightfit run -- python train.py"),
    ("sweep", "tightfit run --sweep -- python train.py, or tightfit plan NETWORK --sweep 25..100"),
    ("bench", "tightfit compare -- python train.py"),
    ("export", "tightfit cache export FILE"),
    ("import", "tightfit cache import FILE"),
    ("eval", "tightfit test"),
];

/// The option of a command that was meant by one that it does not have, if any is near.
pub fn option_for(written: &str, command: &Command) -> Option<String> {
    let has = |name: &str| {
        command.get_arguments().any(|known| known.get_long() == name.strip_prefix("--") && !known.is_hide_set())
    };
    let meant =
        OPTIONS.into_iter().find(|(other, ours)| *other == written && has(ours)).map(|(_, ours)| ours.to_owned());
    let names = command.get_arguments().filter(|known| !known.is_hide_set()).filter_map(clap::Arg::get_long);
    meant.or_else(|| nearest(written.trim_start_matches('-'), names).map(|name| format!("--{name}")))
}

/// The command that was meant by one that does not exist, if any is near.
pub fn command_for(written: &str, commands: &Command) -> Option<String> {
    let known = COMMANDS.into_iter().find(|(other, _)| *other == written).map(|(_, ours)| ours.to_owned());
    known.or_else(|| {
        nearest(written, commands.get_subcommands().map(Command::get_name)).map(|name| format!("tightfit {name}"))
    })
}

/// Checks that a file exists.
///
/// # Errors
/// [`Failure::Wrong`]; it names a file of the same kind with a similar name in the folder, if there is one.
pub fn must_exist(path: &Path) -> Result<(), Failure> {
    if path.exists() {
        return Ok(());
    }
    let near = neighbor(path).map_or_else(String::new, |near| format!("; did you mean {}?", near.display()));
    Err(Failure::Wrong(format!("there is no file {}{near}", path.display())))
}

fn neighbor(path: &Path) -> Option<PathBuf> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let files = std::fs::read_dir(folder).ok()?.flatten().map(|file| PathBuf::from(file.file_name()));
    let alike: Vec<PathBuf> = files.filter(|file| file.extension() == path.extension()).collect();
    Some(path.with_file_name(nearest(path.file_name()?.to_str()?, alike.iter().filter_map(|file| file.to_str()))?))
}

/// The nearest name, if it is as near as a slip of the hand.
fn nearest<'a>(written: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = match written.chars().count() {
        0..=2 => 0,
        3..=5 => 1,
        6..=8 => 2,
        _ => 3,
    };
    let near = names.map(|name| (distance(written, name), name)).filter(|(distance, _)| *distance <= most);
    near.min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::definition;

    #[test]
    fn slips_and_words_of_other_tools_are_understood() {
        let all = definition();
        let of = |command: &str, written: &str| option_for(written, all.find_subcommand(command).unwrap());
        assert_eq!(of("train", "--lr").as_deref(), Some("--learning-rate"));
        assert_eq!(of("plan", "--bugdet").as_deref(), Some("--budget"));
        assert_eq!(of("plan", "--quiet"), None);
        assert_eq!(of("networks", "--lr"), None, "which it does not have");
        assert_eq!(command_for("plna", &all).as_deref(), Some("tightfit plan"));
        assert_eq!(command_for("fit", &all).as_deref(), Some("tightfit run --budget 8GiB -- python train.py"));
        assert_eq!(command_for("hello", &all), None);
    }

    #[test]
    fn a_file_that_does_not_exist_is_named_with_a_similar_one() {
        let folder = tempfile::tempdir().unwrap();
        let of = |name: &str| folder.path().join(name);
        for name in ["train.py", "trian.txt", "model.onnx"] {
            std::fs::write(of(name), "").unwrap();
        }
        assert!(must_exist(&of("train.py")).is_ok());
        let said = |name: &str| must_exist(&of(name)).unwrap_err().text();
        for (name, near) in [("trian.py", "train.py"), ("modell.onnx", "model.onnx")] {
            assert_eq!(
                said(name),
                format!("there is no file {}; did you mean {}?", of(name).display(), of(near).display())
            );
        }
        assert_eq!(said("evaluate.py"), format!("there is no file {}", of("evaluate.py").display()));
    }

    #[test]
    fn what_is_suggested_exists() {
        let all = definition();
        for (_, ours) in COMMANDS {
            for line in ours.split(", or ") {
                let name = line.split(' ').nth(1).unwrap();
                assert!(all.find_subcommand(name).is_some(), "{line}");
            }
        }
        for (_, ours) in OPTIONS {
            let long = ours.trim_start_matches('-');
            assert!(
                all.get_subcommands()
                    .flat_map(Command::get_arguments)
                    .chain(all.get_arguments())
                    .any(|known| known.get_long() == Some(long))
            );
        }
    }

    #[test]
    fn letters_are_counted() {
        for (one, other, letters) in [
            ("", "abc", 3),
            ("plan", "plna", 1),
            ("budget", "bugdet", 1),
            ("same", "same", 0),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(one, other), letters, "{one} {other}");
        }
    }
}
