//! What tests ask of the library: its version, failures, lies; and the one way into every exported function.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{LazyLock, Mutex};

use crate::injection::{Injection, lock};
use crate::status::Status;
use crate::{backend, handle, layers, legacy};

struct Control {
    injection: Injection,
    version: usize,
    /// Added to every workspace that is told, not to what is used.
    workspace_lie: i64,
    /// Executions until one whose first element is wrong; 0 for never.
    spoil: u64,
    executions: u64,
}

static CONTROL: LazyLock<Mutex<Control>> = LazyLock::new(|| Mutex::new(Control::from_environment()));

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

impl Control {
    fn from_environment() -> Control {
        Control {
            injection: variable::<String>("TIGHTFIT_MOCK_CUDNN_FAIL").map(|f| Injection::parse(&f)).unwrap_or_default(),
            version: variable("TIGHTFIT_MOCK_CUDNN_VERSION").unwrap_or(91900),
            workspace_lie: variable("TIGHTFIT_MOCK_CUDNN_LIE_WORKSPACE").unwrap_or(0),
            spoil: variable("TIGHTFIT_MOCK_CUDNN_SPOIL").unwrap_or(0),
            executions: 0,
        }
    }
}

/// The version to answer: 91900 is 9.19.0.
pub fn version() -> usize {
    lock(&CONTROL).version
}

/// The workspace to tell where `bytes` are used.
pub fn told(bytes: u64) -> u64 {
    bytes.saturating_add_signed(lock(&CONTROL).workspace_lie)
}

/// Counts an execution; says whether its result is to be spoiled.
pub fn on_execution() -> bool {
    let mut control = lock(&CONTROL);
    control.executions += 1;
    let spoiled = control.spoil == 1;
    control.spoil = control.spoil.saturating_sub(1);
    spoiled
}

/// The text of this thread's last failed call.
pub fn last_error() -> CString {
    LAST_ERROR.with_borrow(|text| text.clone())
}

/// Answers one call: counted, failed if a test asked for it, and never a panic across the C boundary.
pub fn call(name: &'static str, body: impl FnOnce() -> Result<(), Status>) -> c_int {
    let injected = lock(&CONTROL).injection.on_call(name).map(Status);
    answer(name, injected.unwrap_or_else(|| guarded(body)))
}

/// Answers a call that gives something back: it does so even where it was asked to fail, so that an object that is still
/// alive at the end was forgotten by the program.
pub fn release(name: &'static str, body: impl FnOnce() -> Result<(), Status>) -> c_int {
    let injected = lock(&CONTROL).injection.on_call(name).map(Status);
    let result = guarded(body);
    answer(name, injected.unwrap_or(result))
}

fn guarded(body: impl FnOnce() -> Result<(), Status>) -> Status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::SUCCESS,
        Ok(Err(status)) => status,
        Err(_) => Status::INTERNAL_ERROR,
    }
}

fn answer(name: &str, status: Status) -> c_int {
    if status != Status::SUCCESS {
        let text = CString::new(format!("{name}: status {}", status.0)).unwrap_or_default();
        LAST_ERROR.with_borrow_mut(|last| *last = text);
    }
    status.0
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

/// Back to what the environment says: no object alive, no failure planned, all counts zero.
#[unsafe(no_mangle)]
pub extern "C" fn tightfitMockCudnnReset() {
    handle::reset();
    legacy::reset();
    layers::reset();
    backend::reset();
    *lock(&CONTROL) = Control::from_environment();
}

/// Makes the `nth` call of a function from now on answer `status`; a null name or `*` means any function.
///
/// # Safety
/// `name` is null or a string with its end, alive for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tightfitMockCudnnFail(name: *const c_char, nth: u64, status: c_int) {
    // SAFETY: the caller answers for the string.
    let name = unsafe { text(name) };
    lock(&CONTROL).injection.fail(name, nth, status);
}

/// Sets the version to answer (91900 is 9.19.0).
#[unsafe(no_mangle)]
pub extern "C" fn tightfitMockCudnnSetVersion(version: usize) {
    lock(&CONTROL).version = version;
}

/// Adds `bytes` to every workspace size told; the methods still use what they need.
#[unsafe(no_mangle)]
pub extern "C" fn tightfitMockCudnnLieWorkspace(bytes: i64) {
    lock(&CONTROL).workspace_lie = bytes;
}

/// Makes the `nth` execution from now on write a wrong first element.
#[unsafe(no_mangle)]
pub extern "C" fn tightfitMockCudnnSpoil(nth: u64) {
    lock(&CONTROL).spoil = nth;
}

/// Calls of a function since the last reset; of all functions for null or `*`.
///
/// # Safety
/// `name` is null or a string with its end, alive for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tightfitMockCudnnCalls(name: *const c_char) -> u64 {
    // SAFETY: the caller answers for the string.
    let name = unsafe { text(name) };
    lock(&CONTROL).injection.calls(name)
}

/// A count by its name (README.md); `u64::MAX` for a name it does not know.
///
/// # Safety
/// `kind` is null or a string with its end, alive for the time of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tightfitMockCudnnCount(kind: *const c_char) -> u64 {
    // SAFETY: the caller answers for the string.
    match unsafe { text(kind) } {
        "handles" => handle::count(),
        "backend-descriptors" => backend::count(),
        "executions" => lock(&CONTROL).executions,
        kind => legacy::count(kind).or_else(|| layers::count(kind)).unwrap_or(u64::MAX),
    }
}
