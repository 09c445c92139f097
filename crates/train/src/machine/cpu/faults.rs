//! The errors of the CPU as a machine.

use tightfit_cpu::arena::ArenaError;

use crate::Error;

/// A failure of this machine.
pub(super) fn failed(step: &str, what: impl Into<String>) -> Error {
    Error::Step { machine: "cpu", step: step.to_owned(), what: what.into(), source: None }
}

/// A failure to borrow bytes.
pub(super) fn refused(step: &str, source: ArenaError) -> Error {
    let what = "could not borrow its bytes".to_owned();
    Error::Step { machine: "cpu", step: step.to_owned(), what, source: Some(Box::new(source)) }
}
