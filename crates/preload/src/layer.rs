//! Names of layers, set by a program's hooks. The name that is current on a thread when a convolution is first planned
//! becomes its name in the report and in the program's layers in the cache.

use std::cell::RefCell;
use std::ffi::{CStr, c_char};

thread_local! {
    static CURRENT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Sets the layer that the calling thread works on, until the next call; null clears it. The text is copied.
///
/// # Safety
/// `name` is null or points to a text that ends with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tightfitSetLayer(name: *const c_char) {
    let text = if name.is_null() {
        None
    } else {
        // SAFETY: the caller's word.
        Some(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    };
    // A thread that is ending can no longer store it.
    let _ = CURRENT.try_with(|current| current.replace(text));
}

/// The layer that the calling thread works on.
pub fn current() -> Option<String> {
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}
