//! `run --budget`: a Python that the command starts reads our `sitecustomize`, which fits its models once torch is imported.
//!
//! The Python package does the work (`tightfit/_fit/launch.py`), so it must be installed where torch is.

use std::ffi::{OsStr, OsString};

use crate::failure::Failure;
use crate::options::AutoOrBytes;
use crate::preload::Environment;

const SITE: &str = "tightfit/_fit/site/sitecustomize.py";

/// The environment variables to add for the command.
///
/// # Errors
/// [`Failure::Usage`] if the command starts no Python; [`Failure::Wrong`] if its Python does not run, or lacks the package.
pub(super) fn variables(budget: AutoOrBytes, python: Option<&OsStr>) -> Result<Vec<(&'static str, OsString)>, Failure> {
    let Some(python) = python else {
        return Err(Failure::Usage(
            "--budget fits PyTorch models, but the command starts no Python; leave it out, or start Python directly"
                .to_owned(),
        ));
    };
    let name = python.to_string_lossy();
    let environment = Environment::ask(python)
        .ok_or_else(|| Failure::Wrong(format!("--budget: cannot run {name} to find its packages")))?;
    let Some(site) = environment.file(SITE) else {
        let python = environment.python.display();
        return Err(Failure::Wrong(format!(
            "--budget needs the Python package in the same environment as torch: {python} -m pip install tightfit"
        )));
    };
    let mut path = site.parent().map(|folder| folder.as_os_str().to_owned()).unwrap_or_default();
    if let Some(others) = std::env::var_os("PYTHONPATH").filter(|others| !others.is_empty()) {
        path.push(":");
        path.push(others);
    }
    Ok(vec![("PYTHONPATH", path), ("TIGHTFIT_BUDGET", budget.to_string().into())])
}
