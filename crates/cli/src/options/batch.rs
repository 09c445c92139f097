//! A mini-batch size: a number, or the largest that fits.

use std::fmt;
use std::str::FromStr;

/// A mini-batch size as it is given to `plan`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    /// This number of samples.
    Samples(usize),
    /// As many as fit in the budget.
    Max,
}

impl FromStr for Batch {
    type Err = String;

    fn from_str(text: &str) -> Result<Batch, String> {
        if text == "max" { Ok(Batch::Max) } else { super::number::read_samples(text).map(Batch::Samples) }
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Batch::Samples(samples) => samples.fmt(f),
            Batch::Max => f.write_str("max"),
        }
    }
}
