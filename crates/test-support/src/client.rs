//! Runs the C client in child processes, with and without the library to preload, on the mocks. The build script compiles it.

use std::ffi::{c_int, c_ulong};
use std::io;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

use crate::libraries::library;

/// How the client knows cuDNN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// By DT_NEEDED, as PyTorch.
    Linked,
    /// By dlopen and dlsym, as JAX.
    Loaded,
}

/// The folder with the client in both forms, and cuDNN under its own name.
fn installed() -> &'static Path {
    static FOLDER: OnceLock<TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        symlink(library("mock_cudnn"), folder.path().join("libcudnn.so.9")).unwrap();
        for form in [Form::Linked, Form::Loaded] {
            install(form, &folder.path().join(format!("{form:?}")));
        }
        folder
    });
    folder.path()
}

/// Puts the client at a path; the linked form looks for its cuDNN in the same folder.
pub fn install(form: Form, path: &Path) {
    let built = Path::new(env!("OUT_DIR")).join(format!("{form:?}"));
    // Another process writes it: a program that this one has open for writing, or a child that it forks meanwhile, cannot be
    // executed.
    assert!(Command::new("cp").arg(built).arg(path).status().unwrap().success(), "{}", path.display());
}

/// Runs its arguments on a terminal, and passes on their output.
const ON_TERMINAL: &str = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";

/// Drops root's right to write read-only files, for the next execution. A user who may not drop it does not have it either.
fn drop_override() -> io::Result<()> {
    /// `PR_CAPBSET_DROP`
    const DROP: c_int = 24;
    /// `CAP_DAC_OVERRIDE`
    const OVERRIDE: c_ulong = 1;
    unsafe extern "C" {
        fn prctl(option: c_int, ...) -> c_int;
    }
    // SAFETY: the option takes one number.
    unsafe { prctl(DROP, OVERRIDE) };
    Ok(())
}

/// One run of the client.
pub struct Run {
    /// Its standard output.
    pub words: String,
    /// Its standard error.
    pub errors: String,
    /// Its exit code, or `None` if a signal ended it.
    pub code: Option<i32>,
    /// The output tensor; empty if it got none.
    pub output: Vec<f32>,
    /// The report, if one was written.
    pub report: Option<Value>,
}

/// A run to come.
pub struct Client {
    form: Form,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
    library: Option<PathBuf>,
    is_bound: bool,
    is_unheard: bool,
    is_on_terminal: bool,
    /// Holds its files.
    pub folder: TempDir,
}

impl Client {
    /// The client on `arguments`, as in its own text; without the library so far.
    pub fn new(form: Form, arguments: &str) -> Client {
        let arguments = arguments.split_whitespace().map(str::to_owned).collect();
        Client {
            form,
            arguments,
            variables: Vec::new(),
            library: None,
            is_bound: false,
            is_unheard: false,
            is_on_terminal: false,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// With the library, and variables such as `TIGHTFIT_WORKSPACE`, named without their common beginning.
    pub fn preloaded(mut self, variables: &[(&str, &str)]) -> Client {
        self.library = Some(library("preload"));
        for (name, value) in variables {
            self.variables.push((format!("TIGHTFIT_{name}"), (*value).to_owned()));
        }
        self
    }

    /// Whether it is with the library.
    pub fn is_preloaded(&self) -> bool {
        self.library.is_some()
    }

    /// With the form of the library that has no SONAME.
    pub fn plain(mut self) -> Client {
        self.library = Some(library("preload_plain"));
        self
    }

    /// With any other variable.
    pub fn with(mut self, name: &str, value: &str) -> Client {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Bound by the permissions of files, also where root runs it.
    pub fn bound(mut self) -> Client {
        self.is_bound = true;
        self
    }

    /// With a standard error whose reader is gone, and the default action for SIGPIPE.
    pub fn unheard(mut self) -> Client {
        self.is_unheard = true;
        self
    }

    /// On a terminal. Both its outputs are in its standard output.
    pub fn on_terminal(mut self) -> Client {
        self.is_on_terminal = true;
        self
    }

    /// Runs it.
    pub fn run(self) -> Run {
        self.run_keeping().0
    }

    /// Runs it, and returns its folder.
    pub fn run_keeping(self) -> (Run, TempDir) {
        let (cuda, cudnn, folder) = (library("mock_cuda"), library("mock_cudnn"), installed());
        let output = self.folder.path().join("output");
        let report = self.folder.path().join("report.json");
        let program = folder.join(format!("{:?}", self.form));
        let mut command = if self.is_on_terminal { Command::new("python3") } else { Command::new(&program) };
        if self.is_on_terminal {
            command.args(["-c", ON_TERMINAL]).arg(program);
        }
        command.args(&self.arguments).arg(format!("out={}", output.display()));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TIGHTFIT_") {
                command.env_remove(name);
            }
        }
        command.env("TIGHTFIT_CUDA", &cuda).env("TIGHTFIT_MOCK_CUDA", &cuda).env("LD_LIBRARY_PATH", folder);
        command.env("TIGHTFIT_CACHE", "none").env("TIGHTFIT_REPORT", &report);
        if let Some(library) = &self.library {
            command.env("LD_PRELOAD", library).env("TIGHTFIT_CUDNN", cudnn);
        }
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if self.is_bound {
            // SAFETY: between fork and exec it makes one system call.
            unsafe { command.pre_exec(drop_override) };
        }
        if self.is_unheard {
            let mut reader = Command::new("true").stdin(Stdio::piped()).spawn().unwrap();
            command.stderr(reader.stdin.take().unwrap());
            reader.wait().unwrap();
        }
        let Output { status, stdout, stderr } = command.output().unwrap();
        let bytes = std::fs::read(&output).unwrap_or_default();
        let report = std::fs::read(&report).ok().map(|text| serde_json::from_slice(&text).unwrap());
        let run = Run {
            words: String::from_utf8(stdout).unwrap(),
            errors: String::from_utf8(stderr).unwrap(),
            code: status.code(),
            output: bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect(),
            report,
        };
        (run, self.folder)
    }
}

impl Run {
    /// The words after `key` on the lines that begin with it.
    pub fn lines(&self, key: &str) -> Vec<&str> {
        self.words.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix(' ')).collect()
    }

    /// The status of the last execution.
    pub fn status(&self) -> &str {
        self.lines("status").last().copied().unwrap_or("none")
    }

    /// The one workspace that all three queries told.
    pub fn workspace(&self) -> u64 {
        let told: Vec<&str> = self.lines("workspace")[0].split(' ').collect();
        assert!(told.iter().all(|one| one == &told[0]), "the queries disagree: {told:?}\n{}", self.errors);
        told[0].parse().unwrap()
    }

    /// The kernels of the report.
    pub fn kernels(&self) -> &[Value] {
        self.report.as_ref().map_or(&[], |report| report["kernels"].as_array().unwrap())
    }

    /// The reasons of the report with their calls.
    pub fn reasons(&self) -> Vec<(String, u64)> {
        let Some(report) = &self.report else { return Vec::new() };
        let passed = report["passed_through"].as_array().unwrap();
        passed.iter().map(|one| (one["reason"].as_str().unwrap().to_owned(), one["calls"].as_u64().unwrap())).collect()
    }

    /// Asserts that it went well and gave this output to the bit.
    pub fn assert_gives(&self, output: &[f32], after: &str) {
        assert_eq!((self.code, self.status()), (Some(0), "0"), "{after}: {}{}", self.words, self.errors);
        assert!(!output.is_empty() && self.output.len() == output.len(), "{after}: no output");
        let differing = self.output.iter().zip(output).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        assert_eq!(differing, 0, "{after}: {differing} of {} differ\n{}", output.len(), self.errors);
    }
}
