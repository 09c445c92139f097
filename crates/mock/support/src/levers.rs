//! The C functions that every mock has for tests, written out by [`levers!`](crate::levers!) in each of them.

use std::ffi::{CStr, c_char};

/// The text at a C string; empty for null.
///
/// # Safety
/// `text` is null or a string with its end, alive and unchanged for as long as the result is used.
pub unsafe fn text<'a>(text: *const c_char) -> &'a str {
    if text.is_null() {
        return "";
    }
    // SAFETY: it is not null, and the caller answers for the rest.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("")
}

/// Exports a library's levers.
///
/// `control` is its [`Control`](crate::Control), which is reset last. `modules` hold its objects: each has `reset()`, called in this order, and
/// `count(kind: &str) -> Option<u64>`, which counts live objects of a kind that is the module's.
#[macro_export]
macro_rules! levers {
    {
        control: $control:path,
        modules: [$($module:ident),*],
        functions: [$reset:ident, $fail:ident, $calls:ident, $count:ident],
    } => {
        /// Back to the environment's settings: no object alive, no failure planned, all counts zero.
        #[unsafe(no_mangle)]
        pub extern "C" fn $reset() {
            $($module::reset();)*
            $control.reset();
        }

        /// Makes the `nth` call of a function from now on answer `status`; a null name or `*` means any function.
        ///
        /// # Safety
        /// `name` is null or a string with its end, alive for the time of the call.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $fail(name: *const ::std::ffi::c_char, nth: u64, status: ::std::ffi::c_int) {
            // SAFETY: the caller answers for the string.
            let name = unsafe { $crate::levers::text(name) };
            $control.fail(name, nth, status);
        }

        /// Calls of a function since the last reset; of all functions for null or `*`.
        ///
        /// # Safety
        /// `name` is null or a string with its end, alive for the time of the call.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $calls(name: *const ::std::ffi::c_char) -> u64 {
            // SAFETY: the caller answers for the string.
            let name = unsafe { $crate::levers::text(name) };
            $control.calls(name)
        }

        /// A count by its name (README.md); `u64::MAX` for a name that it does not know.
        ///
        /// # Safety
        /// `kind` is null or a string with its end, alive for the time of the call.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $count(kind: *const ::std::ffi::c_char) -> u64 {
            // SAFETY: the caller answers for the string.
            let kind = unsafe { $crate::levers::text(kind) };
            $control.count(kind)$(.or_else(|| $module::count(kind)))*.unwrap_or(u64::MAX)
        }
    };
}
