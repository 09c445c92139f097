//! Names of layers, set by a program's hooks. A convolution takes the name that is current on the thread when it is first
//! planned. The report and the cache show it.
//!
//! Frameworks keep the plans of a thread by shape, so layers with equal convolutions share one. Each thread keeps the
//! layers for which it planned a convolution.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, c_char};

use tightfit_conv::Problem;

/// A layer, or `None` for convolutions that the program did not name.
pub type Layer = Option<String>;

thread_local! {
    static CURRENT: RefCell<Layer> = const { RefCell::new(None) };
    /// By device and convolution.
    static SHARING: RefCell<HashMap<(usize, Problem), Vec<Layer>>> = RefCell::default();
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

/// Calls `with` with the layer that the calling thread works on.
pub fn with_current<T>(with: impl Fn(Option<&str>) -> T) -> T {
    CURRENT.try_with(|current| with(current.borrow().as_deref())).unwrap_or_else(|_| with(None))
}

/// The layers for which the calling thread has planned or run a convolution on a device: the current one, from now on
/// among them, and then the others.
pub fn sharing(device: usize, problem: &Problem) -> Vec<Layer> {
    let current = with_current(|layer| layer.map(str::to_owned));
    let mut layers = vec![current.clone()];
    let known = SHARING.try_with(|sharing| {
        let mut sharing = sharing.borrow_mut();
        let known = sharing.entry((device, *problem)).or_default();
        layers.extend(known.iter().filter(|layer| **layer != current).cloned());
        if !known.contains(&current) {
            known.push(current);
        }
    });
    // A thread that is ending shares with none.
    let _ = known;
    layers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_knows_which_layers_share_a_convolution() {
        let problem = "forward n4 c3 h8 w8 k4 r3 s3 f32".parse().unwrap();
        let on = |name: &CStr| {
            // SAFETY: a text that ends with 0.
            unsafe { tightfitSetLayer(name.as_ptr()) };
            sharing(0, &problem).into_iter().map(Option::unwrap_or_default).collect::<Vec<_>>()
        };
        assert_eq!(on(c"one"), ["one"]);
        assert_eq!(on(c"two"), ["two", "one"]);
        assert_eq!(on(c"one"), ["one", "two"]);
        std::thread::scope(|threads| {
            threads.spawn(|| assert_eq!(sharing(0, &problem), [None], "another thread"));
        });
    }
}
