//! A `libcudnn.so.9` to put under programs that know nothing of it: their convolutions run in micro-batches, within a
//! workspace limit.
//!
//! ```text
//! program -> this library -> the real libcudnn.so.9
//!              trampolines     what is only handed on
//!              exports         the backend interface, shadowed; plans decided about when they are finalized
//!              recognize -> choose -> session: micro-batches on the program's handle -> report
//! ```
//!
//! Loading does nothing: the real library is opened, and the environment read (`settings`), when something is first
//! called. Whatever is not understood, fails or panics goes on to the real library as it came, and is counted
//! (`reason`).
//!
//! Empty on other processors than x86-64, in whose assembly the trampolines are written.

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
