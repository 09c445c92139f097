//! The libraries of this process. Libraries that are loaded last are the first to be torn down when it ends.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

unsafe extern "C" {
    fn dl_iterate_phdr(
        callback: unsafe extern "C" fn(*const Object, usize, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
}

/// `struct dl_phdr_info`, up to the number of objects loaded so far.
#[repr(C)]
struct Object {
    address: usize,
    name: *const u8,
    headers: *const c_void,
    count: u16,
    loaded: u64,
}

/// Whether libraries were loaded since this was last asked.
pub fn have_grown() -> bool {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    let loaded = count();
    SEEN.swap(loaded, Ordering::Relaxed) != loaded
}

/// How many were ever loaded; 0 if the loader does not say.
fn count() -> u64 {
    let mut loaded = 0u64;
    // SAFETY: the callback gets the address of `loaded`, which outlives the call.
    unsafe { dl_iterate_phdr(first, (&raw mut loaded).cast()) };
    loaded
}

unsafe extern "C" fn first(object: *const Object, size: usize, loaded: *mut c_void) -> c_int {
    if size >= size_of::<Object>() {
        // SAFETY: the loader's object is of this size, and the data are `count`'s.
        unsafe { *loaded.cast::<u64>() = (*object).loaded };
    }
    // Every object says the same.
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loader_says_how_many_were_loaded() {
        assert!(count() >= 2, "the C library is one");
        assert!(have_grown());
    }
}
