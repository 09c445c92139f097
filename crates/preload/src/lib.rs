//! A `libcudnn.so.9` to preload into unmodified programs: it runs their convolutions in micro-batches, within a
//! workspace limit.
//!
//! ```text
//! program    trampolines   functions that are only forwarded   .
//!            exports       all others: the C functions          \
//!            run           carries a decision out               > forward -> the real libcudnn.so.9
//!            report, summary, launched_program   what was done  /
//!            decide        plans and algorithm numbers         '
//!            process       the one state, made of the parts below
//!            tune          measures between the program's calls, and changes choices
//!            choose        a configuration: measured, from the cache, or by workspace queries
//!            memory        totals and loans        session     the program's handles
//!            judge         whether a choice is faster and as accurate
//!            worker        our threads
//!            kernel        the reported workspace and the choice that runs
//!            recognize     convolutions in the facts
//!            shadow        facts about the program's descriptors
//! ```
//!
//! Each layer knows only the layers below it. Loading does nothing: the first call opens the real library and reads the
//! environment (`settings`), which the program's own calls may change (`limits`). A call that is not recognized, fails or
//! panics is passed to the real library unchanged, and counted (`reason`). The choice that runs may change while the
//! program runs. The workspace that was reported to the program may not (`kernel`).
//!
//! Empty on processors other than x86-64, because the trampolines are written in its assembly.

#![cfg(target_arch = "x86_64")]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod choose;
mod decide;
mod decision;
mod exports;
mod forward;
mod judge;
mod kernel;
mod launched_program;
mod layer;
mod limits;
mod lock;
mod log;
mod memory;
mod original;
mod panics;
mod process;
mod process_libraries;
mod program;
mod progress;
mod ranks;
mod reason;
mod recognize;
mod report;
mod report_state;
mod run;
mod session;
mod settings;
mod shadow;
mod sigpipe;
mod summary;
mod swap_cell;
mod torch;
mod trampolines;
mod tune;
mod worker;
