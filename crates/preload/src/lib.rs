//! A `libcudnn.so.9` to preload into unmodified programs: it runs their convolutions in micro-batches, within a
//! workspace limit.
//!
//! ```text
//! program -> this library -> the real libcudnn.so.9
//!              trampolines     what is only handed on
//!              exports         the backend interface, shadowed; plans decided about when they are finalized
//!              recognize -> choose -> session: micro-batches on the program's handle -> report
//! ```
//!
//! Loading does nothing: the first call opens the real library and reads the environment (`settings`). A call that is
//! not recognized, fails or panics is passed to the real library unchanged, and counted (`reason`).
//!
//! Empty on processors other than x86-64, because the trampolines are written in its assembly.

#![cfg(target_arch = "x86_64")]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod choose;
mod exports;
mod kernel;
mod layer;
mod legacy;
mod log;
mod original;
mod pipe;
mod plan;
mod program;
mod reason;
mod recognize;
mod report;
mod run;
mod session;
mod settings;
mod shadow;
mod total;
mod trampolines;
