//! Names of layers, where a program's hooks tell them: the name current on a thread when a convolution is first planned is
//! its name in the report, and in the cache among the layers of the program.

use std::cell::RefCell;
use std::ffi::{CStr, c_char};

thread_local! {
    static CURRENT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The calling thread works on the layer of this name until it says another; null ends it. The text is copied.
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
    // A thread that ends has no place for it any more.
    let _ = CURRENT.try_with(|current| current.replace(text));
}

/// The layer that the calling thread works on.
pub fn current() -> Option<String> {
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}
