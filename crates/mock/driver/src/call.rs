//! The one way into every exported function: nothing works before cuInit, and a lasting failure that a test asks for
//! loses the current context.

use std::ffi::c_int;

use tightfit_mock_support::control::guarded;

use crate::control::CONTROL;
use crate::error::Code;
use crate::state::lose_context;

/// Answers a call: counted, failed if a test asked for it, and never a panic across the C boundary.
pub fn call(name: &'static str, body: impl FnOnce() -> Result<(), Code>) -> c_int {
    let answer = match CONTROL.on_call(name) {
        Some(injected) => {
            lose_context(injected);
            injected
        }
        None => guarded(|| initialize(name).and_then(|()| body())),
    };
    answer.0
}

/// Answers a call that releases something. It does its work even when it returns an error, as the driver does when it
/// passes on an earlier failure: so an object still alive at the end was leaked by the program.
pub fn release(name: &'static str, body: impl FnOnce() -> Result<(), Code>) -> c_int {
    let injected = CONTROL.on_call(name);
    let answer = guarded(|| initialize(name).and_then(|()| body()));
    injected.inspect(|&code| lose_context(code)).unwrap_or(answer).0
}

/// Refuses every call before the first of cuInit.
fn initialize(name: &str) -> Result<(), Code> {
    let initialized = CONTROL.settings(|asked| {
        asked.initialized |= name == "cuInit";
        asked.initialized
    });
    if initialized { Ok(()) } else { Err(Code::NOT_INITIALIZED) }
}
