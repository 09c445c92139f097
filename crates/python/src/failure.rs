//! From errors of the libraries to exceptions of the package: one base, one subclass for each thing a caller can do.

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::{PyErr, import_exception};
use tightfit_units::Error;

import_exception!(tightfit.errors, BackendError);
import_exception!(tightfit.errors, BadInput);
import_exception!(tightfit.errors, BudgetTooSmall);
import_exception!(tightfit.errors, DoesNotFit);
import_exception!(tightfit.errors, FileError);
import_exception!(tightfit.errors, NotProfiled);

/// Options of the command that errors advise, and the arguments that they are in Python.
const ARGUMENTS: [(&str, &str); 4] = [
    ("--plan-time", "plan_time"),
    ("--cache FILE", "cache=FILE"),
    ("--cache none", "cache=\"none\""),
    ("--divide off", "divide=\"off\""),
];

/// The exception with the error's message.
pub fn raise(error: Error) -> PyErr {
    let replace = |message: String, (option, argument): &(&str, &str)| message.replace(option, argument);
    let message = ARGUMENTS.iter().fold(error.chain(), replace);
    match error {
        Error::OverLimit { needed, limit, .. } => DoesNotFit::new_err((message, needed.0, limit.0)),
        Error::OverTotal { needed, total } => DoesNotFit::new_err((message, needed.0, total.0)),
        Error::OverBudget { needed, budget, layer, least, .. }
        | Error::OverAnyBudget { needed, budget, layer, least, .. } => {
            BudgetTooSmall::new_err((message, needed.0, budget.0, least.0, layer))
        }
        Error::OverHostBudget { needed, budget, .. } => DoesNotFit::new_err((message, needed.0, budget.0)),
        Error::NotProfiled { .. } | Error::NoStepTimes { .. } | Error::NoSplit { .. } => NotProfiled::new_err(message),
        Error::File { path, .. } | Error::BadNode { path, .. } => {
            FileError::new_err((message, path.display().to_string()))
        }
        Error::Backend { .. } | Error::DeviceLost { .. } | Error::Refused { .. } => BackendError::new_err(message),
        Error::Interrupted => PyKeyboardInterrupt::new_err(()),
        _ => BadInput::new_err(message),
    }
}

/// The exception for an argument that the library cannot be asked with.
pub fn bad_input(what: impl Into<String>) -> PyErr {
    BadInput::new_err(what.into())
}
