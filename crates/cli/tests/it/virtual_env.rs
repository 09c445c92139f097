//! A virtual environment made for a test, with libraries by the C compiler and a Python that is a shell script.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::folder::{TIGHTFIT, clean, text};

pub const REAL: &str = "int cudnnCreate(void) { return 0; } int cudnnGetVersion(void) { return 91900; }";
pub const NEWER: &str = "int cudnnCreate(void) { return 0; } int cudnnNewThing(void) { return 0; }";
pub const OURS: &str = "int cudnnCreate(void) { return 0; } int cudnnGetVersion(void) { return 91900; } \
                    void tightfitSetLayer(const char *name) { (void)name; }";

/// A virtual environment with cuDNN's wheel, and our library in a separate folder.
pub struct VirtualEnv {
    folder: TempDir,
}

impl VirtualEnv {
    pub fn new(real: &str) -> VirtualEnv {
        let place = VirtualEnv { folder: tempfile::tempdir().unwrap() };
        for folder in ["venv/bin", "preload", "venv/lib/python3.12/site-packages/nvidia/cudnn/lib"] {
            fs::create_dir_all(place.path(folder)).unwrap();
        }
        let soname = ["-Wl,-soname,libcudnn.so.9"];
        place.compile(real, &place.cudnn(), &soname);
        place.compile(OURS, &place.path("preload/libtightfit_preload.so"), &soname);
        place.compile(OURS, &place.path("preload/libtightfit_preload_plain.so"), &[]);
        let answer = format!("#!/bin/sh\nprintf '%s\\n' \"$0\" 3.12.1 '{}'\n", place.site().display());
        place.executable("venv/bin/python3", &answer);
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        // The command prints paths without symbolic links.
        fs::canonicalize(self.folder.path()).unwrap().join(name)
    }

    pub fn site(&self) -> PathBuf {
        self.path("venv/lib/python3.12/site-packages")
    }

    pub fn cudnn(&self) -> PathBuf {
        self.site().join("nvidia/cudnn/lib/libcudnn.so.9")
    }

    pub fn python(&self) -> String {
        self.path("venv/bin/python3").display().to_string()
    }

    pub fn executable(&self, name: &str, text: &str) {
        // Another process writes it: a file that this one has open for writing, or a child that it forks meanwhile, cannot
        // be executed.
        let source = self.path("script");
        fs::write(&source, text).unwrap();
        let status = Command::new("install").args(["-m", "755"]).arg(source).arg(self.path(name)).status();
        assert!(status.unwrap().success(), "{name}");
    }

    pub fn compile(&self, source: &str, library: &Path, options: &[&str]) {
        let file = self.path("source.c");
        fs::write(&file, source).unwrap();
        let status = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(library).arg(&file).args(options).status();
        assert!(status.unwrap().success(), "{source}");
    }

    /// The command with nothing of this machine's settings.
    pub fn tightfit(&self, arguments: &[&str]) -> Command {
        let mut command = clean(TIGHTFIT);
        for name in ["LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX"] {
            command.env_remove(name);
        }
        command.env("TIGHTFIT_PRELOAD", self.path("preload")).args(arguments).stdin(Stdio::null());
        command.current_dir(self.path("preload"));
        command
    }

    /// Runs `script` through `run` with options, with cuDNN from the fake environment.
    pub fn run(&self, options: &str, script: &str) -> Output {
        let cudnn = self.cudnn().display().to_string();
        let mut arguments: Vec<&str> = vec!["run", "--cudnn", &cudnn];
        arguments.extend(options.split_whitespace());
        arguments.extend(["--", "sh", "-c", script]);
        self.tightfit(&arguments).output().unwrap()
    }
}

/// The value of a variable as the command saw it; `None` if it was not set.
pub fn seen(output: &Output, name: &str) -> Option<String> {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let environment = text(&output.stdout);
    environment.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix('=')?.to_owned()))
}
