//! The functions with which a program sets limits from inside; `include/tightfit.h` declares them.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::{CStr, CString, c_char, c_int};

use crate::limits::Change;
use crate::panics::catch_panics;
use crate::process::{Process, process};

/// `TIGHTFIT_BAD_VALUE`
const BAD_VALUE: c_int = -1;
/// `TIGHTFIT_OFF`
const OFF: c_int = -2;
/// `TIGHTFIT_FAILED`
const FAILED: c_int = -3;

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Sets limits and more (`settings`, such as `workspace=64MiB,sizes=fit`) for the convolutions that the process plans
/// from now on: for all of them if `layers` is null, otherwise for `count` layers by the names that the program gives
/// with `tightfitSetLayer`. Choices for earlier plans become smaller where that is possible.
///
/// Returns the number of convolutions that were planned before and cannot follow, or a negative value for an error that
/// `tightfitLastError` describes; nothing was changed then. Any thread may call it at any time.
///
/// # Safety
/// `settings` is null or a text that ends with 0; `layers` is null or points to `count` such values.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tightfitSetLimits(
    settings: *const c_char,
    layers: *const *const c_char,
    count: c_int,
) -> c_int {
    let set = || -> Result<usize, (c_int, String)> {
        let bad_value = |words: String| (BAD_VALUE, words);
        // SAFETY: forwarded to the caller.
        let layers = unsafe { names(layers, count) }.map_err(bad_value)?;
        if settings.is_null() {
            return Err(bad_value("the settings are null".to_owned()));
        }
        // SAFETY: the caller's word.
        let text = unsafe { CStr::from_ptr(settings) };
        let text = text.to_str().map_err(|_| bad_value(format!("{text:?} is not UTF-8")))?;
        let change = Change::read(text).map_err(bad_value)?;
        if change.is_of_total() && layers.is_some() {
            return Err(bad_value("total-workspace is shared by all convolutions; leave the layers out".to_owned()));
        }
        let process = process();
        if let Some(why) = process.why_off() {
            return Err((OFF, why.to_owned()));
        }
        process.set_limits(&change, layers.as_deref());
        Ok(behind(process, layers.as_deref()))
    };
    match catch_panics(set) {
        Some(Ok(count)) => c_int::try_from(count).unwrap_or(c_int::MAX),
        Some(Err((code, words))) => {
            fail(words);
            code
        }
        None => {
            fail("an internal error".to_owned());
            FAILED
        }
    }
}

/// Describes the last error of `tightfitSetLimits` on the calling thread; empty if there was none. The text is valid
/// until the thread's next error or its end.
#[unsafe(no_mangle)]
pub extern "C" fn tightfitLastError() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

fn fail(mut words: String) {
    words.retain(|character| character != '\0');
    let words = CString::new(words).unwrap_or_default();
    // A thread that is ending can no longer ask.
    let _ = LAST_ERROR.try_with(|last| last.replace(words));
}

/// The names of layers, or `None` for all.
///
/// # Safety
/// `layers` is null or points to `count` values that are null or texts that end with 0.
unsafe fn names(layers: *const *const c_char, count: c_int) -> Result<Option<Vec<String>>, String> {
    let Ok(count) = usize::try_from(count) else { return Err(format!("{count} layers")) };
    if layers.is_null() {
        return if count == 0 { Ok(None) } else { Err(format!("the names of {count} layers are null")) };
    }
    let name = |place: usize| {
        // SAFETY: the caller's word, as `place` is less than `count`.
        let name = unsafe { *layers.add(place) };
        if name.is_null() {
            return Err(format!("the name of layer {} of {count} is null", place + 1));
        }
        // SAFETY: the caller's word.
        Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    };
    (0..count).map(name).collect::<Result<_, String>>().map(Some)
}

/// How many convolutions of these layers, or of all, were planned before and cannot follow the limits. A program that
/// tried several algorithms of a convolution counts it once.
fn behind(process: &Process, layers: Option<&[String]>) -> usize {
    let Some(settings) = process.settings() else { return 0 };
    let (limits, kernels) = (process.limits.get(), process.kernels.all());
    let is_concerned = |name: &Option<String>| match (layers, name) {
        (None, _) => true,
        (Some(layers), Some(name)) => layers.contains(name),
        (Some(_), None) => false,
    };
    let concerned = kernels.iter().filter(|kernel| kernel.layers().iter().any(is_concerned));
    let behind = concerned.filter(|kernel| {
        let own = kernel.question.chosen.workspace;
        !kernel.follows(limits.shared_terms(settings, kernel.layers(), own))
    });
    behind.map(|kernel| (kernel.question.device, kernel.question.problem)).collect::<HashSet<_>>().len()
}

#[cfg(test)]
mod tests {
    use std::ptr::null;

    use super::*;

    fn last_error() -> String {
        // SAFETY: the text is valid until the next error.
        unsafe { CStr::from_ptr(tightfitLastError()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn arguments_of_no_sense_are_errors() {
        assert_eq!(last_error(), "");
        let settings = c"workspace=1MiB".as_ptr();
        let (names, none) = ([c"a".as_ptr(), null()], null::<*const c_char>());
        for (settings, layers, count, words) in [
            (null(), none, 0, "null"),
            (settings, none, 2, "2 layers are null"),
            (settings, names.as_ptr(), 2, "layer 2 of 2 is null"),
            (settings, names.as_ptr(), -1, "-1 layers"),
            (c"\xff".as_ptr(), none, 0, "not UTF-8"),
            (c"total-workspace=1GiB".as_ptr(), names.as_ptr(), 1, "leave the layers out"),
        ] {
            // SAFETY: null, or texts that end with 0, at least the counted number where any are read.
            assert_eq!(unsafe { tightfitSetLimits(settings, layers, count) }, BAD_VALUE, "{words}");
            assert!(last_error().contains(words), "{words}: {}", last_error());
        }
    }
}
