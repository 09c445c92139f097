//! `run --budget`: a Python that the command starts reads our `sitecustomize`, which fits its models once torch is imported.
//!
//! The Python package does the work (`tightfit/_budget`), so it must be installed where torch is. We first run the command's Python with the same
//! options and variables, and ask whether it reads our `sitecustomize`. If not (`-I`, `-E`, `-S`, `env -i`), our own program starts in that Python
//! and runs the user's program. A separate process watches the processes of the command, and reports a budget that was not applied.

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use tightfit_cuda::load::is_python;

use crate::failure::Failure;
use crate::message;
use crate::options::RunBudget;
use crate::preload::{Environment, PythonCall, find_program, python_of};

const SITE: &str = "tightfit/_budget/site/sitecustomize.py";
/// Runs a program in a Python that does not read our `sitecustomize`.
const PROGRAM: &str = "tightfit_program.py";
/// Watches the command.
const WATCH: &str = "tightfit_watch.py";
/// The file in which processes note their progress.
const MET: &str = "TIGHTFIT_MET";
/// A program that asks a Python whether it has read our `sitecustomize`.
const QUESTION: &str = "import sys; print('tightfit_start' in sys.modules)";

/// A command that runs within its budget.
pub(super) struct Budgeted {
    /// The user's command, or one that starts it.
    pub command: Vec<OsString>,
    /// The environment variables to add for it.
    pub variables: Vec<(&'static str, OsString)>,
    /// The Python of the command, and the folder of the files that it reads.
    python: PathBuf,
    site: PathBuf,
}

impl Budgeted {
    /// Prepares a command.
    ///
    /// # Errors
    /// [`Failure::Wrong`] if no Python has the package, if it does not run, or if it cannot be reached.
    pub(super) fn prepare(
        budget: RunBudget,
        recompute: bool,
        compile: bool,
        command: &[OsString],
    ) -> Result<Budgeted, Failure> {
        let call = PythonCall::read(command);
        let (python, site) = package(call.as_ref(), command)?;
        let path = with_others(&site);
        let budget = OsString::from(budget.to_string());
        let recompute = OsString::from(recompute.to_string());
        let compile = OsString::from(compile.to_string());
        let mut variables = vec![
            ("PYTHONPATH", path),
            ("TIGHTFIT_BUDGET", budget.clone()),
            (MET, OsString::new()),
            ("TIGHTFIT_RECOMPUTE", recompute.clone()),
            ("TIGHTFIT_COMPILE", compile.clone()),
        ];
        let mut command = command.to_vec();
        let question = || ["-c", QUESTION].map(OsString::from);
        if let Some(call) = call.filter(|call| !reads_us(&call.with_program(question()), &variables)) {
            let ours = |met: OsString, program: &[OsString]| {
                let words = [site.join(PROGRAM).into(), budget.clone(), recompute.clone(), compile.clone(), met];
                call.with_program(words.into_iter().chain(program.iter().cloned()))
            };
            if !reads_us(&ours(OsString::new(), &question()), &variables) {
                let python = call.python.to_string_lossy();
                return Err(Failure::Wrong(format!(
                    "--budget cannot be applied: {python} does not run what the package installs; does `{python} -c pass` run?"
                )));
            }
            let Some(program) = call.program() else {
                return Err(Failure::Wrong(
                    "--budget cannot be applied to a program from standard input in a Python that ignores its environment; \
                     name a script, or leave out -I, -E, -S and env -i"
                        .to_owned(),
                ));
            };
            set_met(&mut variables);
            command = ours(variables[2].1.clone(), program);
        } else {
            set_met(&mut variables);
        }
        Ok(Budgeted { command, variables, python, site })
    }

    /// Starts the process that watches this one, which becomes the command.
    pub(super) fn watch(&self) {
        let Some((_, met)) = self.variables.iter().find(|(name, met)| *name == MET && !met.is_empty()) else { return };
        let mut watch = Command::new(&self.python);
        watch.args(["-I", "-S"]).arg(self.site.join(WATCH)).arg(std::process::id().to_string()).arg(met);
        watch.stdin(Stdio::null()).stdout(Stdio::null()).env_remove("LD_PRELOAD");
        if !watch.status().is_ok_and(|status| status.success()) {
            message::say(format_args!(
                "tightfit: cannot watch the command; if it starts Python without its environment, nothing will say so"
            ));
            self.forget();
        }
    }

    /// Removes the file of a command that was not started.
    pub(super) fn forget(&self) {
        if let Some((_, met)) = self.variables.iter().find(|(name, met)| *name == MET && !met.is_empty()) {
            // A file left behind in the folder for temporary ones does no harm.
            let _ = std::fs::remove_file(met);
        }
    }
}

/// The search path of Python with the folder of the package that a Python reads, for the Python of a command.
pub(super) fn search_path(command: &[OsString]) -> Result<OsString, Failure> {
    Ok(with_others(&package(PythonCall::read(command).as_ref(), command)?.1))
}

fn with_others(site: &Path) -> OsString {
    let mut path = site.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("PYTHONPATH").filter(|others| !others.is_empty()) {
        path.push(":");
        path.push(others);
    }
    path
}

/// The Python whose package is used, and the folder of the package that a Python reads.
fn package(call: Option<&PythonCall>, command: &[OsString]) -> Result<(PathBuf, PathBuf), Failure> {
    let named = call.map(|call| call.python.clone()).or_else(|| python_of(command));
    let Some(python) = named else {
        // The programs that a script starts are not known before it runs.
        let program = command.first().map_or_else(Default::default, |word| word.to_string_lossy());
        // The package's own command runs in its Python.
        let own = std::env::args_os().next().filter(|word| is_python(word));
        let mut pythons = ["python3", "python"].map(OsString::from).into_iter().chain(own);
        let found = pythons.find_map(|python| of_python(&python).ok().flatten());
        return found.ok_or_else(|| {
            Failure::Wrong(format!(
                "--budget fits PyTorch models, but {program} names no Python, and the one on PATH has no tightfit; start Python \
                 directly, or `python3 -m pip install tightfit` in the environment of torch"
            ))
        });
    };
    match of_python(&python) {
        Ok(Some(found)) => Ok(found),
        Ok(None) => Err(Failure::Wrong(format!(
            "--budget needs the Python package in the same environment as torch: {} -m pip install tightfit",
            find_program(&python).unwrap_or_else(|| PathBuf::from(&python)).display()
        ))),
        Err(()) => {
            let name = python.to_string_lossy();
            Err(Failure::Wrong(format!("--budget: cannot run {name} to find its packages")))
        }
    }
}

/// A Python and the folder of the package that it reads, if it has the package.
fn of_python(python: &OsStr) -> Result<Option<(PathBuf, PathBuf)>, ()> {
    let environment = Environment::ask(python).ok_or(())?;
    let site = environment.file(SITE).and_then(|file| file.parent().map(Path::to_owned));
    Ok(site.map(|site| (environment.python, site)))
}

/// Whether a Python that is started like this has read our `sitecustomize`.
fn reads_us(command: &[OsString], variables: &[(&'static str, OsString)]) -> bool {
    let [program, arguments @ ..] = command else { return false };
    let mut asked = Command::new(program);
    asked.args(arguments).envs(variables.iter().cloned()).env_remove("LD_PRELOAD");
    let output = asked.stdin(Stdio::null()).stderr(Stdio::null()).output();
    // The site may have a `sitecustomize` that prints.
    output.is_ok_and(|output| output.stdout.trim_ascii_end().ends_with(b"True"))
}

/// Creates the file in which processes note their progress.
fn set_met(variables: &mut [(&'static str, OsString)]) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let path = std::env::temp_dir().join(format!("tightfit-met-{}-{now}", std::process::id()));
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
        Ok(_) => variables[2].1 = std::path::absolute(&path).unwrap_or(path).into(),
        Err(error) => message::say(format_args!(
            "tightfit: cannot write {}: {error}; if the command starts Python without its environment, nothing will say so",
            path.display()
        )),
    }
}
