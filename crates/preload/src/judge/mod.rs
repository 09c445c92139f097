//! Whether a configuration may replace the framework's choice: it must be faster by more than the noise, alternating on
//! the same data, and as accurate.

mod accuracy;
mod duel;
mod errors;

pub use accuracy::{Truth, sampled};
pub use duel::{Speedup, is_worth_it, rounds, timed};
pub use errors::{Errors, comparisons, is_own, log_inaccurate, own};
use tightfit_units::Bytes;

/// Device memory that is left to the program while measuring.
pub const RESERVE: Bytes = Bytes::mib(512);
/// Configurations to compare before the framework's choice stays.
pub const ATTEMPTS: usize = 3;
