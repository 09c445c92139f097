//! How a command starts Python: the interpreter, its options, and the program, read as Python and `env` read their own words.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use tightfit_cuda::load;

use super::python::{find_program, first_line};

/// A command whose first program is a Python, perhaps behind `env`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PythonCall {
    /// `env` with its options and variables, if it is there.
    before: Vec<OsString>,
    /// The interpreter.
    pub python: OsString,
    /// Its options.
    options: Vec<OsString>,
    /// The program: a script, `-m` and a module, or `-c` and code; its arguments follow. Empty for one read from standard input.
    program: Vec<OsString>,
}

/// Options of Python that take a value, in the same word or the next one.
const VALUED: &[u8] = b"WX";
/// Options of Python that run no program.
const INFORMATIVE: &[u8] = b"Vh?";
/// The most interpreters that follow each other: a script of a script.
const DEPTH: usize = 4;

impl PythonCall {
    /// Reads a command; `None` if its first program is not known to be a Python.
    pub fn read(command: &[OsString]) -> Option<PythonCall> {
        PythonCall::read_within(command, DEPTH)
    }

    fn read_within(command: &[OsString], depth: usize) -> Option<PythonCall> {
        let first = command.first()?;
        let at = if is_named(first, "env") { after_env(command)? } else { 0 };
        let python = command.get(at)?;
        if !load::is_python(python) {
            // A script without `env` before it runs as the kernel reads its first line.
            let expanded = (at == 0).then(|| expanded(command)).flatten()?;
            return depth.checked_sub(1).and_then(|depth| PythonCall::read_within(&expanded, depth));
        }
        let (options, program) = of_python(&command[at + 1..])?;
        Some(PythonCall { before: command[..at].to_vec(), python: python.clone(), options, program })
    }

    /// The command with the program replaced.
    pub fn with_program(&self, program: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
        let mut words = self.before.clone();
        words.push(self.python.clone());
        words.extend(self.options.iter().cloned());
        words.extend(program);
        words
    }

    /// The program and its arguments; `None` for one read from standard input.
    pub fn program(&self) -> Option<&[OsString]> {
        self.program.first().is_some_and(|word| word != "-").then_some(&self.program[..])
    }
}

fn is_named(word: &OsStr, name: &str) -> bool {
    std::path::Path::new(word).file_name() == Some(OsStr::new(name))
}

/// The place of the program that `env` starts; `None` if it has options that are not read here.
fn after_env(command: &[OsString]) -> Option<usize> {
    let mut at = 1;
    while let Some(word) = command.get(at) {
        match word.as_bytes() {
            b"-" | b"-i" | b"--ignore-environment" => {}
            b"-u" | b"-C" => at += 1,
            b"--" => {}
            bytes if bytes.starts_with(b"--unset=") || bytes.starts_with(b"--chdir=") => {}
            bytes if bytes.starts_with(b"-") => return None,
            bytes if bytes.contains(&b'=') => {}
            _ => return Some(at),
        }
        at += 1;
    }
    None
}

/// Splits the words after a Python into its options and the program; `None` without a program to run.
fn of_python(words: &[OsString]) -> Option<(Vec<OsString>, Vec<OsString>)> {
    let (mut options, mut at) = (Vec::new(), 0);
    while let Some(word) = words.get(at) {
        let bytes = word.as_bytes();
        if bytes == b"-" || !bytes.starts_with(b"-") {
            break;
        }
        at += 1;
        if bytes.starts_with(b"--") {
            options.push(word.clone());
            match bytes {
                b"--check-hash-based-pycs" => {
                    options.extend(words.get(at).cloned());
                    at += 1;
                }
                _ => return None,
            }
            continue;
        }
        let Some(end) = bytes.iter().skip(1).position(|letter| b"cm".contains(letter) || VALUED.contains(letter))
        else {
            if bytes.iter().skip(1).any(|letter| INFORMATIVE.contains(letter)) {
                return None;
            }
            options.push(word.clone());
            continue;
        };
        let end = end + 1;
        if bytes[1..end].iter().any(|letter| INFORMATIVE.contains(letter)) {
            return None;
        }
        let value = match &bytes[end + 1..] {
            [] => {
                at += 1;
                words.get(at - 1)?.clone()
            }
            rest => OsString::from_vec(rest.to_vec()),
        };
        let letter = OsString::from_vec(vec![b'-', bytes[end]]);
        if end > 1 {
            options.push(OsString::from_vec(bytes[..end].to_vec()));
        }
        if VALUED.contains(&bytes[end]) {
            options.extend([letter, value]);
            continue;
        }
        let program = [letter, value].into_iter().chain(words[at..].iter().cloned()).collect();
        return Some((options, program));
    }
    Some((options, words[at.min(words.len())..].to_vec()))
}

/// A script as the kernel starts it: the words of its first line, then its path and the arguments.
fn expanded(command: &[OsString]) -> Option<Vec<OsString>> {
    let script = find_program(command.first()?)?;
    let line = first_line(&script)?;
    let line = line.strip_prefix("#!")?.trim();
    let (interpreter, rest) =
        line.split_once(char::is_whitespace).map_or((line, ""), |(word, rest)| (word, rest.trim()));
    let mut words = vec![OsString::from(interpreter)];
    match rest.strip_prefix("-S").filter(|_| is_named(interpreter.as_ref(), "env")) {
        // Quotes are not read here.
        Some(split) if !split.contains(['"', '\'', '\\', '$']) => {
            words.extend(split.split_whitespace().map(OsString::from))
        }
        Some(_) => return None,
        None => words.extend((!rest.is_empty()).then(|| OsString::from(rest))),
    }
    words.push(script.into());
    words.extend(command[1..].iter().cloned());
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &str) -> Vec<OsString> {
        command.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn options_end_where_python_ends_them() {
        for (command, before, options, program) in [
            ("python train.py -I", "", "", "train.py -I"),
            ("python -I -E train.py -m x", "", "-I -E", "train.py -m x"),
            ("python3.12 -IuX dev -Werror train.py", "", "-Iu -X dev -W error", "train.py"),
            ("python -Ic pass -E", "", "-I", "-c pass -E"),
            ("python -mtool.x a", "", "", "-m tool.x a"),
            ("python --check-hash-based-pycs always -E x.py", "", "--check-hash-based-pycs always -E", "x.py"),
            ("env -i A=1 -u B /opt/bin/python -S x.py", "env -i A=1 -u B", "-S", "x.py"),
            ("python -I", "", "-I", ""),
            ("python -I - a", "", "-I", "- a"),
        ] {
            let read = PythonCall::read(&words(command)).unwrap();
            assert_eq!(
                (read.before, read.options, read.program),
                (words(before), words(options), words(program)),
                "{command}"
            );
        }
        for other in [
            "nohup python x.py",
            "env nohup python x.py",
            "env -S python x.py",
            "sh -c python",
            "python -V",
            "python --help",
            "python -c",
        ] {
            assert_eq!(PythonCall::read(&words(other)), None, "{other}");
        }
        assert_eq!(PythonCall::read(&[]), None);
        for (command, is_there) in [("python", false), ("python -I -", false), ("python x.py", true)] {
            assert_eq!(PythonCall::read(&words(command)).unwrap().program().is_some(), is_there, "{command}");
        }
    }

    #[test]
    fn scripts_are_started_by_their_first_lines() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("tool");
        let path = script.display().to_string();
        for (line, before, python, options) in [
            ("#!/usr/bin/python3 -Es", "", "/usr/bin/python3", "-Es"),
            ("#! /usr/bin/env python3", "/usr/bin/env", "python3", ""),
            ("#!/usr/bin/env -S A=1 python3 -I -s", "/usr/bin/env A=1", "python3", "-I -s"),
        ] {
            std::fs::write(&script, format!("{line}\nimport sys\n")).unwrap();
            let mut permissions = std::fs::metadata(&script).unwrap().permissions();
            std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
            std::fs::set_permissions(&script, permissions).unwrap();
            let read = PythonCall::read(&words(&format!("{path} a -I"))).unwrap();
            assert_eq!(
                (read.before, read.python, read.options),
                (words(before), python.into(), words(options)),
                "{line}"
            );
            assert_eq!(read.program, words(&format!("{path} a -I")), "{line}");
        }
        for line in ["#!/bin/sh", "#!/usr/bin/env -S 'python3' -I", "import sys", "#!"] {
            std::fs::write(&script, format!("{line}\n")).unwrap();
            assert_eq!(PythonCall::read(&words(&path)), None, "{line}");
        }
        // A script that starts itself.
        std::fs::write(&script, format!("#!{path}\n")).unwrap();
        assert_eq!(PythonCall::read(&words(&path)), None);
    }
}
