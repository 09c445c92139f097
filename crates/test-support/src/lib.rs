//! Shared code of the tests, examples and benches of several crates. Everything here panics where a test cannot go on.
//!
//! `libraries` where cargo put the mocks and the library to preload · `driver` the mock driver's C functions as methods ·
//! `mocks` the CUDA backend on the mocks, with a hand on their levers · `client` a C program on cuDNN in child processes ·
//! `train` networks, schedules and steps to train · `instances` totals to divide among kernels
//!
//! Each module is a separate feature (Cargo.toml). The crates under test depend on this one for their tests alone.

#[cfg(feature = "preload")]
pub mod client;
#[cfg(feature = "mocks")]
pub mod driver;
#[cfg(feature = "instances")]
pub mod instances;
#[cfg(feature = "mocks")]
pub mod libraries;
#[cfg(feature = "cuda")]
pub mod mocks;
#[cfg(feature = "train")]
pub mod train;
