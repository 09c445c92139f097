//! A budget as users give it: a size, or a share of what plain training needs.

use std::fmt;
use std::str::FromStr;

use tightfit_units::{Bytes, Error};

/// A share, in percent, of the memory of a step that keeps everything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share(f64);

impl Share {
    /// This share of `whole`.
    pub fn of(self, whole: Bytes) -> Bytes {
        Bytes((whole.0 as f64 * self.0 / 100.0) as u64)
    }
}

/// A size or a share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Budget {
    /// A size.
    Bytes(Bytes),
    /// A share.
    Share(Share),
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Budget, String> {
        let Some(number) = text.strip_suffix('%') else {
            return text.parse().map(Budget::Bytes).map_err(|error: Error| format!("{error}; or a share, as in 60%"));
        };
        match number.trim_end().parse::<f64>() {
            Ok(share) if share > 0.0 && share <= 1000.0 => Ok(Budget::Share(Share(share))),
            _ => Err(format!("`{text}` is not a share; write a percentage above 0, as in 60%")),
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Budget::Bytes(Bytes::UNLIMITED) => f.write_str("unlimited"),
            Budget::Bytes(bytes) => write!(f, "{}B", bytes.0),
            Budget::Share(share) => share.fmt(f),
        }
    }
}

/// The budget of `run`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RunBudget {
    /// All memory that is free on the GPU.
    Auto,
    /// A size or a share.
    Given(Budget),
}

impl RunBudget {
    /// All that a model needs.
    pub fn all() -> RunBudget {
        RunBudget::Given(Budget::Share(Share(100.0)))
    }
}

impl FromStr for RunBudget {
    type Err = String;

    fn from_str(text: &str) -> Result<RunBudget, String> {
        match text {
            "auto" => Ok(RunBudget::Auto),
            given => given.parse().map(RunBudget::Given).map_err(|error: String| format!("{error}, or auto")),
        }
    }
}

impl fmt::Display for RunBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunBudget::Auto => f.write_str("auto"),
            RunBudget::Given(budget) => budget.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_shares_are_read_and_printed() {
        for (text, shown) in [("8GiB", "8589934592B"), ("60%", "60%"), ("62.5 %", "62.5%"), ("unlimited", "unlimited")]
        {
            assert_eq!(text.parse::<RunBudget>().unwrap().to_string(), shown);
        }
        assert_eq!("auto".parse(), Ok(RunBudget::Auto));
        for text in ["0%", "-5%", "x%", "%", "nan%", "1001%", "8 apples"] {
            let refused = text.parse::<Budget>().unwrap_err();
            assert!(refused.contains("60%"), "{refused}");
        }
        let Budget::Share(share) = "62.5%".parse().unwrap() else { panic!("no share") };
        assert_eq!(share.of(Bytes(800)), Bytes(500));
    }
}
