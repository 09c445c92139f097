//! Where the program of `run` and `compare` begins, so that `tightfit run train.py` needs no `--`, and what starts a script.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::{Arg, Command};

use super::suggestions::must_exist;
use crate::failure::Failure;
use crate::preload::find_program;

/// The commands that take a program.
const TAKE: [&str; 2] = ["run", "compare"];

/// The arguments with `--` before the program of `run` or `compare`: before the first word that is neither an option nor an option's value.
pub fn separated(command: &Command, mut arguments: Vec<OsString>) -> Vec<OsString> {
    let named = arguments.iter().skip(1).position(|word| TAKE.iter().any(|name| word == name)).map(|place| place + 1);
    let Some(start) = named.filter(|&start| arguments[1..start].iter().all(|word| is_option(word))) else {
        return arguments;
    };
    let own = command.find_subcommand(&arguments[start]);
    let options: Vec<&Arg> = command.get_arguments().chain(own.into_iter().flat_map(Command::get_arguments)).collect();
    let mut at = start + 1;
    while let Some(word) = arguments.get(at).filter(|word| is_option(word) && *word != "--") {
        at += if options.iter().any(|option| takes_next(option, word)) { 2 } else { 1 };
    }
    if arguments.get(at).is_some_and(|word| word != "--") {
        arguments.insert(at, "--".into());
    }
    arguments
}

fn is_option(word: &OsStr) -> bool {
    word.len() > 1 && word.as_encoded_bytes().starts_with(b"-")
}

/// Whether a word is this option, with its value in the next word.
fn takes_next(option: &Arg, word: &OsStr) -> bool {
    let Some(name) = word.to_str() else { return false };
    let is_it = match name.strip_prefix("--") {
        Some(long) => option.get_long() == Some(long),
        None => option.get_short().is_some_and(|short| name.strip_prefix('-') == Some(short.encode_utf8(&mut [0; 4]))),
    };
    is_it && option.get_action().takes_values() && !option.is_require_equals_set()
}

/// The command that starts a program: a script that the shell would not start runs with Python.
///
/// # Errors
/// As [`must_exist`], for a script.
pub fn started(command: &[OsString]) -> Result<Vec<OsString>, Failure> {
    let python = || ["python", "python3"].into_iter().find(|name| find_program(OsStr::new(name)).is_some());
    let script = command.first().filter(|word| {
        Path::new(word).extension().is_some_and(|ending| ending == "py") && !find_program(word).is_some_and(may_run)
    });
    script.map_or(Ok(()), |script| must_exist(Path::new(script)))?;
    let first = script.map(|_| python().unwrap_or("python").into());
    Ok(first.into_iter().chain(command.iter().cloned()).collect())
}

fn may_run(file: PathBuf) -> bool {
    file.metadata().is_ok_and(|about| about.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::super::definition;
    use super::*;

    #[test]
    fn a_program_needs_no_hyphens_before_it() {
        let separated = |line: &str| -> Vec<String> {
            let words = separated(&definition(), line.split(' ').map(OsString::from).collect());
            words.into_iter().map(|word| word.into_string().unwrap()).collect()
        };
        for (line, expected) in [
            ("tightfit run train.py", "tightfit run -- train.py"),
            ("tightfit run python train.py --budget 3 -- -x", "tightfit run -- python train.py --budget 3 -- -x"),
            ("tightfit run --budget 60% train.py --lr -1", "tightfit run --budget 60% -- train.py --lr -1"),
            ("tightfit run --budget=60% --compile train.py", "tightfit run --budget=60% --compile -- train.py"),
            ("tightfit run --sweep train.py", "tightfit run --sweep -- train.py"),
            ("tightfit run --recompute=false -v x", "tightfit run --recompute=false -v -- x"),
            ("tightfit -v compare --steps 9 x y", "tightfit -v compare --steps 9 -- x y"),
            ("tightfit run --types bf16 -- x", "tightfit run --types bf16 -- x"),
            ("tightfit run --help", "tightfit run --help"),
            ("tightfit help run", "tightfit help run"),
            ("tightfit run", "tightfit run"),
            ("tightfit plan resnet50 run", "tightfit plan resnet50 run"),
        ] {
            assert_eq!(separated(line).join(" "), expected);
        }
    }

    #[test]
    fn a_script_runs_with_python() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("train.py").into_os_string();
        std::fs::write(&script, "").unwrap();
        let words = started(&[script.clone(), "--lr".into()]).unwrap();
        assert_eq!(words[1..], [script.clone(), "--lr".into()]);
        assert!(words[0].to_string_lossy().starts_with("python"));
        std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
        let own = started(std::slice::from_ref(&script)).unwrap();
        assert_eq!(own, [script], "it names its own interpreter");
        let other: Vec<OsString> = vec!["python".into(), "train.py".into()];
        assert_eq!(started(&other).unwrap(), other);
        let missing = folder.path().join("trian.py").into_os_string();
        assert!(started(&[missing]).unwrap_err().text().ends_with("train.py?"));
    }
}
