//! The option `--divide`.

use clap::Args;
use tightfit_profile::survey::Divide;

/// Along what convolutions are divided.
#[derive(Args, Clone)]
pub struct DivideOption {
    /// Divide convolutions along the mini-batch (batch), along a spatial axis (space), along the mini-batch first and then
    /// space where the mini-batch is small, samples are large or nothing else fits (both), or not at all (off, or
    /// --sizes undivided) [default: both]
    #[arg(
        long,
        value_name = "batch|space|both|off",
        env = "TIGHTFIT_DIVIDE",
        value_parser = divide,
    )]
    pub divide: Option<Divide>,
}

impl DivideOption {
    /// The value of the option, or the default.
    pub fn get(&self) -> Divide {
        self.divide.unwrap_or_default()
    }
}

/// Reads a way to divide; `on` and the other words for yes and no are older names of `both` and `off`.
fn divide(word: &str) -> Result<Divide, String> {
    match word.to_ascii_lowercase().as_str() {
        "on" | "true" | "yes" | "y" | "t" | "1" => Ok(Divide::Both),
        "false" | "no" | "n" | "f" | "0" => Ok(Divide::Off),
        word => word.parse().map_err(|error: tightfit_units::Error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_older_versions_are_read() {
        for (word, expected) in [
            ("batch", Divide::Batch),
            ("space", Divide::Space),
            ("both", Divide::Both),
            ("off", Divide::Off),
            ("on", Divide::Both),
            ("True", Divide::Both),
            ("no", Divide::Off),
        ] {
            assert_eq!(divide(word), Ok(expected), "{word}");
        }
        assert!(divide("maybe").unwrap_err().contains("batch, space, both, off"));
    }
}
