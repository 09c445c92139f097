//! The option `--sizes`, and its old name.

use clap::Args;
use tightfit_profile::survey::Sizes;

use crate::failure::Failure;
use crate::message;

/// The micro-batch sizes to measure and use.
#[derive(Args)]
pub struct SizeOption {
    /// Micro-batch sizes to measure and use: undivided, power-of-two, all or fit [default: fit] [env: TIGHTFIT_SIZES]
    #[arg(long)]
    sizes: Option<Sizes>,
    /// Old name of --sizes
    #[arg(long, hide = true, conflicts_with = "sizes")]
    policy: Option<Sizes>,
}

impl SizeOption {
    /// The sizes that the command line names, else the environment's, else `fit`. Warns about an old name.
    ///
    /// # Errors
    /// As [`sizes`].
    pub fn get(&self) -> Result<Sizes, Failure> {
        if self.policy.is_some() {
            message::warn(format_args!("--policy is now called --sizes"));
        }
        sizes(self.sizes.or(self.policy))
    }
}

/// The sizes given, else the environment's, else `fit`.
///
/// # Errors
/// [`Failure::Usage`] if the environment names no sizes that exist.
pub fn sizes(given: Option<Sizes>) -> Result<Sizes, Failure> {
    if let Some(sizes) = given {
        return Ok(sizes);
    }
    let value =
        |name: &'static str| std::env::var(name).ok().filter(|value| !value.is_empty()).map(|value| (name, value));
    let old = || {
        let old = value("TIGHTFIT_POLICY")?;
        message::warn(format_args!("TIGHTFIT_POLICY is now called TIGHTFIT_SIZES"));
        Some(old)
    };
    match value("TIGHTFIT_SIZES").or_else(old) {
        Some((name, value)) => value.parse().map_err(|error| Failure::Usage(format!("{name} is `{value}`: {error}"))),
        None => Ok(Sizes::default()),
    }
}
