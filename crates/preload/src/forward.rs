//! The real library's functions by index, and calls of them.

use std::sync::atomic::{AtomicUsize, Ordering};

use tightfit_cuda::sys::cudnn::CudnnStatus;

use crate::process::process;

/// A function's return type, from which to answer if the real library lacks the function.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ReturnType {
    /// A status: `NOT_SUPPORTED`, or `NOT_INITIALIZED` without a real library.
    Status,
    /// A size: 0.
    Size,
    /// A text: an empty one.
    Text,
    /// Nothing.
    Nothing,
    /// Unknown: null or 0.
    Unknown,
}

include!(concat!(env!("OUT_DIR"), "/symbols.rs"));

/// Addresses of the real functions, 0 until the first call. Outside of the process's state, because the trampolines' code
/// reads it; guarded by every entry being one atomic, which only ever goes from 0 to the function's address.
pub static TABLE: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];

/// The address of the real function, or of a substitute if the real library lacks it.
pub fn address(index: usize) -> usize {
    let known = TABLE[index].load(Ordering::Acquire);
    if known != 0 {
        return known;
    }
    let (name, returned) = SYMBOLS[index];
    let original = process().original();
    let address = match original.map(|original| original.symbol(name)) {
        Some(Some(address)) => address,
        Some(None) if returned == ReturnType::Status => not_supported as *const () as usize,
        None if returned == ReturnType::Status => not_initialized as *const () as usize,
        _ if returned == ReturnType::Text => empty as *const () as usize,
        _ => absent as *const () as usize,
    };
    TABLE[index].store(address, Ordering::Release);
    address
}

extern "C" fn not_supported() -> CudnnStatus {
    CudnnStatus::NOT_SUPPORTED
}

extern "C" fn not_initialized() -> CudnnStatus {
    CudnnStatus::NOT_INITIALIZED
}

pub extern "C" fn absent() -> usize {
    0
}

extern "C" fn empty() -> *const std::ffi::c_char {
    c"".as_ptr()
}

/// Forwards a call to the real function, with the signature from its header.
macro_rules! forward {
    ($name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty) => {{
        let address = $crate::forward::address($crate::forward::index::$name);
        // SAFETY: the address belongs to the function of this name in the real library, whose header has this
        // signature, or to one that takes nothing and returns a status. The arguments are the caller's, who owes what
        // cuDNN asks for.
        unsafe {
            let function = std::mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> $result>(address);
            function($($argument),*)
        }
    }};
}
pub(crate) use forward;
