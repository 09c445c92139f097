//! The Rust part of the Python package: thin functions over the other crates that take plain values and return JSON, and the
//! `tightfit` command.
//!
//! ```text
//! tightfit/*.py (names, docstrings, types) -> tightfit._native (this) -> tightfit-plan, -profile, ..
//!                                          <- JSON text, the same that the command prints
//! tightfit/__main__.py                     -> run_command             -> tightfit, with the libraries that `run` preloads
//!
//! measure, profile, solve, verify   convolutions: `tightfit.measure`, `Profile`, `optimize`, `verify`
//! prepare, plan, planned, fates     `tightfit.plan`, plans of recorded steps, and the fate of each tensor
//! eager, flow                       for `tightfit._budget`: the simulator of eager steps; least cuts of compiled graphs
//! noting                            for `_budget/eager`: the calls that a pass makes
//! mixed                             mini-batches for unequal devices
//! device, failure, interrupt        shared by these: the device of a call, exceptions, Ctrl-C
//! ```
//!
//! Everything that can take long releases the interpreter lock and stops on Ctrl-C (`interrupt`).
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod command;
mod device;
mod eager;
mod failure;
mod fates;
mod flow;
mod interrupt;
mod measure;
mod mixed;
mod noting;
mod plan;
mod planned;
mod prepare;
mod profile;
mod solve;
mod verify;

/// The native module under `tightfit/*.py`.
#[pyo3::pymodule]
mod _native {
    #[pymodule_export]
    use super::command::run_command;
    #[pymodule_export]
    use super::eager::EagerStep;
    #[pymodule_export]
    use super::flow::least_cut;
    #[pymodule_export]
    use super::measure::measure;
    #[pymodule_export]
    use super::mixed::{record_steps, split, split_times};
    #[pymodule_export]
    use super::noting::{Call, Handle, Held, Notes, Rerun, Slot, Value, settings, settle, unowned, view_of};
    #[pymodule_export]
    use super::plan::{card, checkpoints, checkpoints_of, plan, plan_step};
    #[pymodule_export]
    use super::planned::{Planned, restore_planned};
    #[pymodule_export]
    use super::profile::{Recordings, default_cache, merge, network, networks, parse_size, restore_recordings};
    #[pymodule_export]
    use super::solve::{front, optimize};
    #[pymodule_export]
    use super::verify::verify;
}
