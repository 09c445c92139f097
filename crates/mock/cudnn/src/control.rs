//! Requests of tests to the library, in addition to failures: its version, lies, a wrong result; and the way into its
//! functions.

use std::cell::RefCell;
use std::ffi::{CString, c_int};
use std::time::Duration;

use tightfit_mock_support::control::variable;
use tightfit_mock_support::{Control, Settings};

use crate::status::Status;

/// The settings of this library for tests.
pub struct Levers {
    version: usize,
    /// Added to every workspace in an answer, not to the bytes in use.
    workspace_lie: i64,
    /// Executions until one whose first element is wrong; 0 for never.
    spoil: u64,
    /// The engine whose every execution writes a wrong first element; none below 0.
    spoiled_engine: i64,
    /// The engine that does so where the padding before and after differs; none below 0.
    spoiled_uneven: i64,
    /// Factor of the virtual time per product, so that two mock devices can differ in speed.
    slowdown: u64,
    /// Milliseconds of the host's that it takes to build the plan of an engine that compiles, which then refuses some.
    compile: u64,
    executions: u64,
    /// Questions in the heuristic mode for which cuDNN captures graphs.
    mode_b: u64,
}

impl Settings for Levers {
    fn from_environment() -> Levers {
        Levers {
            version: variable("TIGHTFIT_MOCK_CUDNN_VERSION").unwrap_or(91900),
            workspace_lie: variable("TIGHTFIT_MOCK_CUDNN_LIE_WORKSPACE").unwrap_or(0),
            spoil: variable("TIGHTFIT_MOCK_CUDNN_SPOIL").unwrap_or(0),
            spoiled_engine: variable("TIGHTFIT_MOCK_CUDNN_SPOIL_ENGINE").unwrap_or(-1),
            spoiled_uneven: variable("TIGHTFIT_MOCK_CUDNN_SPOIL_UNEVEN").unwrap_or(-1),
            slowdown: variable("TIGHTFIT_MOCK_CUDNN_SLOWDOWN").unwrap_or(1),
            compile: variable("TIGHTFIT_MOCK_CUDNN_COMPILE").unwrap_or(0),
            executions: 0,
            mode_b: 0,
        }
    }

    fn count(&self, kind: &str) -> Option<u64> {
        match kind {
            "executions" => Some(self.executions),
            "mode-b" => Some(self.mode_b),
            _ => None,
        }
    }
}

/// Failures, counts and settings of this library.
pub static CONTROL: Control<Levers> = Control::new("TIGHTFIT_MOCK_CUDNN_FAIL");

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// The version to answer: 91900 is 9.19.0.
pub fn version() -> usize {
    CONTROL.settings(|asked| asked.version)
}

/// The workspace to report if `bytes` are used.
pub fn reported(bytes: u64) -> u64 {
    bytes.saturating_add_signed(CONTROL.settings(|asked| asked.workspace_lie))
}

/// How many times slower than usual this device computes.
pub fn slowdown() -> u64 {
    CONTROL.settings(|asked| asked.slowdown)
}

/// How long it takes to compile an engine.
pub fn compile() -> Duration {
    Duration::from_millis(CONTROL.settings(|asked| asked.compile))
}

/// Counts a question in heuristic mode B.
pub fn on_mode_b() {
    CONTROL.settings(|asked| asked.mode_b += 1);
}

/// Counts an execution, by an engine of this index if it is a convolution, perhaps with other padding before than after, and
/// returns whether to corrupt its result.
pub fn on_execution(engine: Option<i64>, is_uneven: bool) -> bool {
    CONTROL.settings(|asked| {
        asked.executions += 1;
        let is_wrong = |index: i64| engine == Some(index);
        let spoiled = asked.spoil == 1 || is_wrong(asked.spoiled_engine) || is_uneven && is_wrong(asked.spoiled_uneven);
        asked.spoil = asked.spoil.saturating_sub(1);
        spoiled
    })
}

/// The text of this thread's last failed call.
pub fn last_error() -> CString {
    LAST_ERROR.with_borrow(|text| text.clone())
}

/// Answers a call, see [`Control::call`].
pub fn call(name: &'static str, body: impl FnOnce() -> Result<(), Status>) -> c_int {
    answer(name, CONTROL.call(name, body))
}

/// Answers a call that gives something back, see [`Control::release`].
pub fn release(name: &'static str, body: impl FnOnce() -> Result<(), Status>) -> c_int {
    answer(name, CONTROL.release(name, body))
}

fn answer(name: &str, status: Status) -> c_int {
    if status != Status::SUCCESS {
        let text = CString::new(format!("{name}: status {}", status.0)).unwrap_or_default();
        LAST_ERROR.with_borrow_mut(|last| *last = text);
    }
    status.0
}

/// Sets the version to answer (91900 is 9.19.0).
#[unsafe(no_mangle)]
pub extern "C" fn tightfitMockCudnnSetVersion(version: usize) {
    CONTROL.settings(|asked| asked.version = version);
}

/// Adds `bytes` to every workspace size told; the methods still use what they need.
#[unsafe(no_mangle)]
pub extern "C" fn tightfitMockCudnnLieWorkspace(bytes: i64) {
    CONTROL.settings(|asked| asked.workspace_lie = bytes);
}

/// Makes every convolution of an engine, by its global index, write a wrong first element; none below 0.
#[unsafe(no_mangle)]
pub extern "C" fn tightfitMockCudnnSpoilEngine(index: i64) {
    CONTROL.settings(|asked| asked.spoiled_engine = index);
}

/// Makes the `nth` execution from now on write a wrong first element.
#[unsafe(no_mangle)]
pub extern "C" fn tightfitMockCudnnSpoil(nth: u64) {
    CONTROL.settings(|asked| asked.spoil = nth);
}
