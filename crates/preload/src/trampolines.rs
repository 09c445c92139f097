//! Functions that are only forwarded, whatever their signatures: each jumps through a table to the real function.
//!
//! ```text
//! cudnnX:   r11 = TABLE[x]
//!           r11 != 0 ->  jmp r11                      arguments, stack and return address as the caller left them
//!           r11 == 0 ->  save arguments, resolve(x), restore, jmp to what it gave
//! ```

use std::arch::naked_asm;
use std::sync::atomic::{AtomicUsize, Ordering};

use tightfit_cuda::sys::cudnn::CudnnStatus;

use crate::original;

/// A function's return type, from which to answer if the real library lacks the function.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Returned {
    /// A status: `NOT_SUPPORTED`, or `NOT_INITIALIZED` if there is no real library at all.
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

/// Declares a trampoline.
macro_rules! trampoline {
    ($name:ident, $index:literal) => {
        #[allow(non_snake_case, missing_docs)]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() {
            naked_asm!(
                "mov r11, qword ptr [rip + {table} + 8 * {index}]",
                "test r11, r11",
                "je 2f",
                "jmp r11",
                "2:",
                "mov r11d, {index}",
                "jmp {slow}",
                table = sym TABLE,
                index = const $index,
                slow = sym slow,
            )
        }
    };
}

include!(concat!(env!("OUT_DIR"), "/trampolines.rs"));

/// Addresses of the real functions, 0 until the first call.
static TABLE: [AtomicUsize; COUNT] = [const { AtomicUsize::new(0) }; COUNT];

/// Resolves the function whose index is in r11 and goes on to it with every argument in place: the registers that carry
/// integers, floats, the number of vector registers (rax) and a nested function's chain (r10).
#[unsafe(naked)]
extern "C" fn slow() {
    naked_asm!(
        // The return address leaves the stack 8 off a multiple of 16; rbp brings it back to one.
        "push rbp",
        "mov rbp, rsp",
        "sub rsp, 192",
        "mov [rsp], rdi",
        "mov [rsp + 8], rsi",
        "mov [rsp + 16], rdx",
        "mov [rsp + 24], rcx",
        "mov [rsp + 32], r8",
        "mov [rsp + 40], r9",
        "mov [rsp + 48], rax",
        "mov [rsp + 56], r10",
        "movups [rsp + 64], xmm0",
        "movups [rsp + 80], xmm1",
        "movups [rsp + 96], xmm2",
        "movups [rsp + 112], xmm3",
        "movups [rsp + 128], xmm4",
        "movups [rsp + 144], xmm5",
        "movups [rsp + 160], xmm6",
        "movups [rsp + 176], xmm7",
        "mov edi, r11d",
        "call {resolve}",
        "mov r11, rax",
        "mov rdi, [rsp]",
        "mov rsi, [rsp + 8]",
        "mov rdx, [rsp + 16]",
        "mov rcx, [rsp + 24]",
        "mov r8, [rsp + 32]",
        "mov r9, [rsp + 40]",
        "mov rax, [rsp + 48]",
        "mov r10, [rsp + 56]",
        "movups xmm0, [rsp + 64]",
        "movups xmm1, [rsp + 80]",
        "movups xmm2, [rsp + 96]",
        "movups xmm3, [rsp + 112]",
        "movups xmm4, [rsp + 128]",
        "movups xmm5, [rsp + 144]",
        "movups xmm6, [rsp + 160]",
        "movups xmm7, [rsp + 176]",
        "mov rsp, rbp",
        "pop rbp",
        "jmp r11",
        resolve = sym resolve,
    )
}

extern "C" fn resolve(index: u32) -> usize {
    std::panic::catch_unwind(|| address(index as usize)).unwrap_or(absent as *const () as usize)
}

/// The address of the real function, or of a substitute if the real library lacks it.
pub fn address(index: usize) -> usize {
    let known = TABLE[index].load(Ordering::Acquire);
    if known != 0 {
        return known;
    }
    let (name, returned) = SYMBOLS[index];
    let address = match original::symbol(name) {
        Ok(Some(address)) => address,
        Ok(None) if returned == Returned::Status => not_supported as *const () as usize,
        Err(()) if returned == Returned::Status => not_initialized as *const () as usize,
        _ if returned == Returned::Text => empty as *const () as usize,
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

extern "C" fn absent() -> usize {
    0
}

extern "C" fn empty() -> *const std::ffi::c_char {
    c"".as_ptr()
}

/// Forwards a call to the real function, with the signature from its header.
macro_rules! forward {
    ($name:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty) => {{
        let address = $crate::trampolines::address($crate::trampolines::index::$name);
        // SAFETY: the address is that of the function of this name in the real library, whose header has this
        // signature, or of one that takes nothing and returns a status. The arguments are the caller's, who owes what
        // cuDNN asks for.
        unsafe {
            let function = std::mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> $result>(address);
            function($($argument),*)
        }
    }};
}
pub(crate) use forward;
