//! What tests ask of the library: failures and counts; and the one way into every exported function.

use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{LazyLock, Mutex};

use crate::exports::HANDLES;
use crate::injection::{Injection, lock};

/// A `cublasStatus_t` other than success.
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

static INJECTION: LazyLock<Mutex<Injection>> = LazyLock::new(|| Mutex::new(planned()));

/// The failures that the environment asks for.
fn planned() -> Injection {
    std::env::var("TIGHTFIT_MOCK_CUBLAS_FAIL").map(|text| Injection::parse(&text)).unwrap_or_default()
}

fn guarded(body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(failure)) => failure.0,
        Err(_) => Failure::INTERNAL_ERROR.0,
    }
}

/// Answers one call: counted, failed if a test asked for it, and never a panic across the C boundary.
pub fn call(name: &'static str, body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let injected = lock(&INJECTION).on_call(name);
    injected.unwrap_or_else(|| guarded(body))
}

/// Answers a call that gives something back: it does so even where it was asked to fail.
pub fn release(name: &'static str, body: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let injected = lock(&INJECTION).on_call(name);
    let answer = guarded(body);
    injected.unwrap_or(answer)
}

/// The text at a C string; empty for null.
///
/// # Safety
/// `text` is null or a string with its end, alive and unchanged for as long as the result is used.
unsafe fn text<'a>(text: *const c_char) -> &'a str {
    if text.is_null() {
        return "";
    }
    // SAFETY: it is not null, and the caller answers for the rest.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("")
}

/// No handle alive, no failure planned, all counts zero.
#[unsafe(no_mangle)]
pub extern "C" fn tightfitMockCublasReset() {
    lock(&HANDLES).clear();
    *lock(&INJECTION) = planned();
}

/// Makes the `nth` call of a function from now on answer `status`; a null name or `*` means any function.
///
/// # Safety
/// `name` is null or a string with its end, alive for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tightfitMockCublasFail(name: *const c_char, nth: u64, status: c_int) {
    // SAFETY: the caller answers for the string.
    let name = unsafe { text(name) };
    lock(&INJECTION).fail(name, nth, status);
}

/// Calls of a function since the last reset; of all functions for null or `*`.
///
/// # Safety
/// `name` is null or a string with its end, alive for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tightfitMockCublasCalls(name: *const c_char) -> u64 {
    // SAFETY: the caller answers for the string.
    let name = unsafe { text(name) };
    lock(&INJECTION).calls(name)
}

/// A count by its name (README.md); `u64::MAX` for a name it does not know.
///
/// # Safety
/// `kind` is null or a string with its end, alive for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tightfitMockCublasCount(kind: *const c_char) -> u64 {
    // SAFETY: the caller answers for the string.
    match unsafe { text(kind) } {
        "blas-handles" => lock(&HANDLES).len() as u64,
        _ => u64::MAX,
    }
}
