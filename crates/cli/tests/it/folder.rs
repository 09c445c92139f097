//! The command, run in an empty folder without this machine's settings and GPUs.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// The command.
pub const TIGHTFIT: &str = env!("CARGO_BIN_EXE_tightfit");
/// The recorded profile of `alexnet-1col` at every size.
pub const RECORDED: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/recorded/h200-legacy-alexnet-1col-all.jsonl.gz");

/// A program to run with none of this machine's settings of tightfit.
pub fn clean(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TIGHTFIT_")) {
        command.env_remove(name);
    }
    command
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The messages of a command on standard error, without its lines of progress, which come after some seconds.
pub fn said(stderr: &[u8]) -> String {
    let is_progress = |line: &&str| line.ends_with(" so far") || line.ends_with(" left");
    text(stderr).lines().filter(|line| !is_progress(line)).map(|line| line.to_owned() + "\n").collect()
}

pub fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// A folder in which the command runs, with its cache and its files.
pub struct Folder {
    folder: TempDir,
    variables: &'static [(&'static str, &'static str)],
}

impl Folder {
    /// The command finds no GPU, and uses one thread.
    pub fn new() -> Folder {
        Folder { folder: tempfile::tempdir().unwrap(), variables: &[("TIGHTFIT_THREADS", "1")] }
    }

    /// The command uses the CPU, with two threads.
    pub fn on_cpu() -> Folder {
        Folder { variables: &[("TIGHTFIT_BACKEND", "cpu"), ("TIGHTFIT_THREADS", "2")], ..Folder::new() }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Runs the command until a line of its standard error has these words, interrupts it, and returns its outputs.
    pub fn interrupt(&self, arguments: &str, words: &str) -> (String, String) {
        let mut child = self.tightfit(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut told = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains(words) {
            line.clear();
            assert!(told.read_line(&mut line).unwrap() > 0, "it ended early");
        }
        Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        let rest: String = told.lines().map(|line| line.unwrap() + "\n").collect();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(130), "{rest}");
        (text(&output.stdout), rest)
    }

    /// Runs a program in the folder.
    fn settle(&self, program: &str) -> Command {
        let mut command = clean(program);
        command
            .env("TIGHTFIT_CACHE", self.path().join("cache.db"))
            .env("TIGHTFIT_CUDA", self.path().join("no-driver.so"));
        command.envs(self.variables.iter().copied()).current_dir(self.path()).stdin(Stdio::null());
        command
    }

    pub fn tightfit(&self, arguments: &str) -> Command {
        let mut command = self.settle(TIGHTFIT);
        command.args(arguments.split_whitespace());
        command
    }

    /// A shell that finds the command as `$tightfit`.
    pub fn shell(&self, script: &str) -> Command {
        let mut shell = self.settle("bash");
        shell.env("tightfit", TIGHTFIT).args(["-c", script]);
        shell
    }

    pub fn run(&self, arguments: &str) -> Output {
        self.tightfit(arguments).output().unwrap()
    }

    /// Standard output of a command that must succeed.
    pub fn succeed(&self, arguments: &str) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{arguments}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// Runs a command that must succeed and parses its JSON.
    pub fn json(&self, arguments: &str) -> Value {
        json(&self.succeed(&format!("{arguments} --format json")))
    }

    /// Standard error of a command that must fail with `code`; never a panic.
    pub fn fail(&self, arguments: &str, code: i32) -> String {
        let output = self.run(arguments);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments}: {message}");
        assert!(!message.contains("panicked"), "{arguments}: {message}");
        message
    }

    /// Measurements in the cache.
    pub fn measurements(&self) -> u64 {
        if !self.path().join("cache.db").exists() {
            return 0;
        }
        let output = self.run("cache list --format json");
        // While another process makes the file there may be nothing to list yet.
        let Ok(rows) = serde_json::from_slice::<Value>(&output.stdout) else { return 0 };
        rows.as_array().unwrap().iter().map(|row| row["measurements"].as_u64().unwrap()).sum()
    }
}
