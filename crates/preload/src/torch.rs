//! PyTorch's switches, if the program has PyTorch loaded.

use std::ffi::c_void;

use libloading::os::unix::{Library, RTLD_LAZY};

/// `RTLD_NOLOAD` of Linux: only a library that the program has loaded.
const LOADED_ONLY: i32 = 4;

/// Whether `torch.backends.cudnn.deterministic` or `torch.use_deterministic_algorithms` is on; no without PyTorch, or with one
/// that has other functions.
///
/// Cost: two lookups by name. Asked for once per convolution, because the program may turn the switches at any time.
pub fn asks_for_determinism() -> bool {
    // SAFETY: nothing is loaded, so nothing is initialized.
    let Ok(library) = (unsafe { Library::open(Some("libtorch_cpu.so"), RTLD_LAZY | LOADED_ONLY) }) else {
        return false;
    };
    type Global = unsafe extern "C" fn() -> *mut c_void;
    type Asked = unsafe extern "C" fn(*const c_void) -> bool;
    // SAFETY: `at::globalContext()` returns a reference, which is an address, to an object that lives as long as the process.
    // The two others are its const member functions without arguments, called with that address. Their names say all of this.
    unsafe {
        let Ok(global) = library.get::<Global>(b"_ZN2at13globalContextEv\0") else { return false };
        let context = global();
        let is_on = |name: &[u8]| library.get::<Asked>(name).is_ok_and(|asked| asked(context));
        !context.is_null()
            && (is_on(b"_ZNK2at7Context18deterministicCuDNNEv\0")
                || is_on(b"_ZNK2at7Context23deterministicAlgorithmsEv\0"))
    }
}
