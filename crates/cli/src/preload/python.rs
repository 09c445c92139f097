//! Which Python a command starts, and its packages, found by running it once; imports no packages.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tightfit_cuda::load;

/// The Python that a command starts: its first word that names one (`python`, `/opt/venv/bin/python3.12`), or else the
/// interpreter in the first line of the script it starts (`torchrun`, `accelerate`).
pub fn python_of(command: &[OsString]) -> Option<OsString> {
    if let Some(word) = command.iter().find(|word| load::is_python(word)) {
        return Some(word.clone());
    }
    let line = first_line(&find_program(command.first()?)?)?;
    let mut words = line.strip_prefix("#!")?.split_whitespace();
    words.find(|word| load::is_python(OsStr::new(word))).map(OsString::from)
}

/// The file that a shell would run for a word.
pub fn find_program(word: &OsStr) -> Option<PathBuf> {
    load::on_path(word, &std::env::var_os("PATH").unwrap_or_default())
}

/// The first line of a file, if it is read within 256 bytes.
pub(super) fn first_line(file: &Path) -> Option<String> {
    let mut start = [0; 256];
    let length = fs::File::open(file).ok()?.read(&mut start).ok()?;
    String::from_utf8_lossy(&start[..length]).lines().next().map(str::to_owned)
}

/// Where the answer of a Python begins.
const MARK: &str = "tightfit-environment";

/// A Python and its packages.
#[derive(Debug)]
pub struct Environment {
    /// The interpreter's own file.
    pub python: PathBuf,
    /// Its version.
    pub version: String,
    /// The folders it imports from.
    folders: Vec<PathBuf>,
}

impl Environment {
    /// Queries a Python, given by path or by name; `None` if it cannot be run.
    pub fn ask(python: &OsStr) -> Option<Environment> {
        let questions = format!(
            "import sys; print('{MARK}', sys.executable, sys.version.split()[0], *(p for p in sys.path if p), sep='\\n')"
        );
        let mut command = Command::new(python);
        // This child does not need a preloaded cuDNN.
        command.args(["-c", &questions]).env_remove("LD_PRELOAD").stdin(Stdio::null()).stderr(Stdio::null());
        let output = command.output().ok().filter(|output| output.status.success())?;
        let text = String::from_utf8_lossy(&output.stdout);
        // A customization of the site may print before it.
        let mut lines = text.rsplit_once(MARK).map_or(&*text, |(_, answer)| answer.trim_start()).lines();
        let (python, version) = (PathBuf::from(lines.next()?), lines.next()?.to_owned());
        Some(Environment { python, version, folders: lines.map(PathBuf::from).filter(|path| path.is_dir()).collect() })
    }

    /// A file or folder inside the packages.
    pub fn file(&self, name: &str) -> Option<PathBuf> {
        self.folders.iter().map(|folder| folder.join(name)).find(|path| path.exists())
    }

    /// The installed version of a distribution, read from a name such as `nvidia_cudnn_cu13-9.19.0.56.dist-info`;
    /// `prefix` is the name or its beginning.
    pub fn version_of(&self, prefix: &str) -> Option<(String, String)> {
        let of_folder = |folder: &PathBuf| {
            let entries = fs::read_dir(folder).ok()?;
            entries.flatten().find_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let (name, version) = name.strip_suffix(".dist-info")?.rsplit_once('-')?;
                name.starts_with(prefix).then(|| (name.to_owned(), version.to_owned()))
            })
        };
        self.folders.iter().find_map(of_folder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &str) -> Vec<OsString> {
        command.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn finds_the_python_of_a_command() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("torchrun");
        fs::write(&script, "#!/opt/venv/bin/python3.12\nimport sys\n").unwrap();
        let shell = folder.path().join("train.sh");
        fs::write(&shell, "#!/bin/sh\npython train.py\n").unwrap();
        let through_env = folder.path().join("tool");
        fs::write(&through_env, "#!/usr/bin/env python3\n").unwrap();
        for (command, expected) in [
            ("python train.py", Some("python")),
            ("/opt/x/bin/python3 train.py", Some("/opt/x/bin/python3")),
            ("env A=1 python3.12 -m tool", Some("python3.12")),
            ("mpirun -n 2 python train.py", Some("python")),
            (&format!("{} train.py", script.display()), Some("/opt/venv/bin/python3.12")),
            (&format!("{} x", through_env.display()), Some("python3")),
            (&format!("{} x", shell.display()), None),
            ("pythonic train", None),
            ("/no/such/program", None),
        ] {
            assert_eq!(python_of(&words(command)), expected.map(OsString::from), "{command}");
        }
        assert_eq!(python_of(&[]), None);
    }

    #[test]
    fn finds_a_distribution_by_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("nvidia_cudnn_cu13-9.19.0.56.dist-info")).unwrap();
        let environment =
            Environment { python: PathBuf::new(), version: String::new(), folders: vec![folder.path().to_owned()] };
        let found = environment.version_of("nvidia_cudnn_cu").unwrap();
        assert_eq!(found, ("nvidia_cudnn_cu13".to_owned(), "9.19.0.56".to_owned()));
        assert_eq!(environment.version_of("jax_cuda"), None);
    }
}
