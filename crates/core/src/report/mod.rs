//! Reports of the result, for humans and programs: one output format per file, all from the same
//! [`Optimized`](crate::answer::Optimized).
//!
//! ```text
//!                 +-> table   a terminal            +-> svg::front      one kernel: time against workspace
//! Optimized ------+-> csv     a spreadsheet         +-> svg::allotment  one network: who got how much workspace
//!                 +-> json    a program             +-> svg::per_layer  one network under several limits
//!                 +-> svg ------------------------> +-> svg::limits     one network: time against the limit
//! ```
//!
//! Everything here only reads, and returns a string; empty results give empty reports.

mod csv;
mod grid;
mod head;
mod json;
pub mod plan;
mod slower;
pub mod svg;
#[cfg(feature = "tables")]
mod table;

pub use csv::csv;
pub use grid::{Align, Grid, Terminal, count};
pub use head::lines;
pub use json::json;
pub use slower::{Slower, slower};
#[cfg(feature = "tables")]
pub use table::table;
