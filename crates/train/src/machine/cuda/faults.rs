//! The errors of a GPU as a machine, and addresses as its session takes them.

use std::ops::Range;

use tightfit_cuda::CudaError;

use crate::Error;

/// Converts a range of addresses; one that does not fit is rejected when used.
pub(super) fn range(bytes: &Range<u64>) -> Range<usize> {
    let narrow = |value| usize::try_from(value).unwrap_or(usize::MAX);
    narrow(bytes.start)..narrow(bytes.end)
}

/// A failure of the libraries at a step.
pub(super) fn failed(step: &str, error: CudaError) -> Error {
    Error::Step { machine: "cuda", step: step.to_owned(), what: error.to_string(), source: Some(Box::new(error)) }
}

/// The error for a step that this machine cannot run.
pub(super) fn wrong(step: &str, what: String) -> Error {
    Error::Step { machine: "cuda", step: step.to_owned(), what, source: None }
}
