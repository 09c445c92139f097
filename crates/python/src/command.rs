//! The `tightfit` command, which the package brings as a script and as `python -m tightfit`.

use std::ffi::OsString;

use pyo3::{Python, pyfunction};

/// Runs the command with these arguments, without the program's name, and returns its exit code. Ends the process itself
/// where the command does: on wrong arguments, and for `run`, which replaces it.
#[pyfunction]
pub fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| tightfit::start(std::iter::once("tightfit".into()).chain(arguments)))
}
