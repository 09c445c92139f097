//! The library's statuses, and the way into its functions.

use std::ffi::c_int;

use tightfit_mock_support::driver::Unreachable;
use tightfit_mock_support::{Absent, Control, Status};

/// A `cublasStatus_t`: any integer, because tests ask for unknown ones too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure(c_int);

impl Failure {
    /// `CUBLAS_STATUS_NOT_INITIALIZED`
    pub const NOT_INITIALIZED: Failure = Failure(1);
    /// `CUBLAS_STATUS_INVALID_VALUE`
    pub const INVALID_VALUE: Failure = Failure(7);
    /// `CUBLAS_STATUS_EXECUTION_FAILED`
    pub const EXECUTION_FAILED: Failure = Failure(13);
    /// `CUBLAS_STATUS_INTERNAL_ERROR`
    pub const INTERNAL_ERROR: Failure = Failure(14);
    /// `CUBLAS_STATUS_NOT_SUPPORTED`
    pub const NOT_SUPPORTED: Failure = Failure(15);
}

impl Status for Failure {
    const SUCCESS: Failure = Failure(0);
    const PANICKED: Failure = Failure::INTERNAL_ERROR;

    fn of(code: c_int) -> Failure {
        Failure(code)
    }
}

impl From<Absent> for Failure {
    fn from(_: Absent) -> Failure {
        Failure::NOT_INITIALIZED
    }
}

impl From<Unreachable> for Failure {
    fn from(why: Unreachable) -> Failure {
        match why {
            Unreachable::NotLoaded => Failure::NOT_INITIALIZED,
            Unreachable::Refused(_) => Failure::EXECUTION_FAILED,
        }
    }
}

/// Failures and counts of this library.
pub static CONTROL: Control<()> = Control::new("TIGHTFIT_MOCK_CUBLAS_FAIL");

/// Answers a call, see [`Control::call`].
pub fn call(name: &'static str, body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    CONTROL.call(name, body).0
}

/// Answers a call that gives something back, see [`Control::release`].
pub fn release(name: &'static str, body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    CONTROL.release(name, body).0
}
