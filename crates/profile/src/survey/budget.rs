//! The time limit of measuring.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tightfit_units::{Error, Nanos};

/// The most wall-clock time that measuring may take in one process; 10 s by default.
///
/// ```
/// use tightfit_profile::survey::TuneBudget;
/// let budget: TuneBudget = "1.5s".parse()?;
/// assert_eq!(budget.to_string(), "1.5s");
/// assert_eq!("unlimited".parse::<TuneBudget>()?.limit(), None);
/// # Ok::<(), tightfit_units::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TuneBudget(Option<Duration>);

impl TuneBudget {
    /// The time; `None` without a limit.
    pub fn limit(self) -> Option<Duration> {
        self.0
    }
}

impl Default for TuneBudget {
    fn default() -> TuneBudget {
        TuneBudget(Some(Duration::from_secs(10)))
    }
}

impl FromStr for TuneBudget {
    type Err = Error;

    /// Reads a time as [`Nanos`] does, or `unlimited`.
    ///
    /// # Errors
    /// [`Error::BadOption`] for anything else.
    fn from_str(text: &str) -> Result<TuneBudget, Error> {
        if text.trim().eq_ignore_ascii_case("unlimited") {
            return Ok(TuneBudget(None));
        }
        let bad = |_| Error::BadOption {
            what: format!("{text:?} is not a time; use one such as 10s, 500ms, 2m, 0 or unlimited"),
        };
        Ok(TuneBudget(Some(Duration::from_nanos(text.parse::<Nanos>().map_err(bad)?.0))))
    }
}

impl fmt::Display for TuneBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => f.pad("unlimited"),
            Some(limit) => f.pad(&format!("{}s", limit.as_secs_f64())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_printed() {
        let read = |text: &str| text.parse::<TuneBudget>().unwrap();
        assert_eq!(read("10s"), TuneBudget::default());
        assert_eq!(read(" 500 ms ").limit(), Some(Duration::from_millis(500)));
        assert_eq!((read("2m").to_string(), read("0").to_string()), ("120s".to_owned(), "0s".to_owned()));
        assert_eq!(read("Unlimited").limit(), None);
        assert!(read("9999999h").limit() > Some(Duration::from_secs(1 << 33)));
        for wrong in ["", "soon", "-1s", "10 apples", "1.2.3s", "s"] {
            let error = wrong.parse::<TuneBudget>().unwrap_err().to_string();
            assert!(error.contains(&format!("{wrong:?}")) && error.contains("unlimited"), "{error}");
        }
    }
}
