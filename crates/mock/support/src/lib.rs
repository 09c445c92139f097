//! Shared code of the mock libraries. Each is a separate C library that links a copy of this crate, so nothing here is
//! shared between two of them at run time.
//!
//! `control` the settings of a library, and the one way into its functions · `injection` failures on request, and counts of
//! calls · `levers` the C functions that every mock has for tests · `table` live objects by handle · `number` storage types ·
//! `driver` the way to mock-cuda

pub mod control;
pub mod driver;
mod injection;
pub mod levers;
pub mod number;
mod table;

pub use control::{Control, Settings, Status};
pub use injection::{Injection, lock};
pub use table::{Absent, Table};
