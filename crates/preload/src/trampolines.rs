//! Functions that are only forwarded, whatever their signatures: each jumps through a table to the real function.
//!
//! ```text
//! cudnnX:   r11 = TABLE[x]
//!           r11 != 0 ->  jmp r11                      arguments, stack and return address as the caller left them
//!           r11 == 0 ->  save arguments, resolve(x), restore, jmp to what it gave
//! ```

use std::arch::naked_asm;

use crate::forward::{TABLE, absent, address};

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
