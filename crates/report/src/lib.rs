//! Reports of the result, for humans and programs: one output format per file, all from the same
//! [`Optimized`](tightfit_profile::answer::Optimized).
//!
//! ```text
//!                 +-> table   a terminal            +-> svg::front      one kernel: time against workspace
//! Optimized ------+-> csv     a spreadsheet         +-> svg::allotment  one network: who got how much workspace
//!                 +-> json    a program             +-> svg::per_layer  one network under several limits
//!                 +-> svg ------------------------> +-> svg::limits     one network: time against the limit
//! ```
//!
//! ```
//! use tightfit_report::{Align, Grid};
//!
//! let mut grid = Grid::new([("kernel", Align::Left), ("ms", Align::Right)]);
//! grid.push(["conv1", "1.5"]);
//! assert_eq!(grid.csv(), "kernel,ms\nconv1,1.5\n");
//! ```
//!
//! The functions only read, and return a string; empty results make empty reports. `grid` aligns rows, `head` writes the lines above a table,
//! `slower` lists slowed down kernels, and `plan` reports plans.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

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

/// A number with `decimals` decimals. Small negative numbers round to zero without a minus sign.
fn rounded(number: f64, decimals: usize) -> String {
    let text = format!("{number:.decimals$}");
    match text.strip_prefix('-') {
        Some(zero) if zero.chars().all(|digit| "0.".contains(digit)) => zero.to_owned(),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn nothing_is_minus_zero() {
        let texts = [-0.04, -0.05001, 0.04, -10.0].map(|number| rounded(number, 1));
        assert_eq!(texts, ["0.0", "-0.1", "0.0", "-10.0"]);
        assert_eq!(rounded(-0.4, 0), "0");
    }
}
