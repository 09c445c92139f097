//! The options that bound the workspace.

use clap::Args;
use tightfit_conv::candidate::Limit;
use tightfit_units::Bytes;

use super::units;
use crate::failure::Failure;

/// The limit of the workspace: exactly one of the three. Environment variables count if the command line has none.
#[derive(Args)]
#[group(multiple = false)]
pub struct WorkspaceOptions {
    /// Workspace limit per kernel, such as 64MiB [env: TIGHTFIT_WORKSPACE]
    #[arg(long, value_name = "SIZE")]
    pub workspace: Option<Bytes>,
    /// Total workspace, divided among all kernels to minimize their total time; every kernel gets its own part (under
    /// `run`, kernels of equal shape share one) [env: TIGHTFIT_TOTAL_WORKSPACE]
    #[arg(long, value_name = "SIZE")]
    pub total_workspace: Option<Bytes>,
    /// Workspace that all kernels share, one after another [env: TIGHTFIT_ONE_WORKSPACE]
    #[arg(long, value_name = "SIZE")]
    pub one_workspace: Option<Bytes>,
}

impl WorkspaceOptions {
    /// # Errors
    /// [`Failure::Usage`] if neither the command line nor the environment names one, or if the environment names two,
    /// or no size.
    pub fn limit(&self) -> Result<Limit, Failure> {
        let given = [self.workspace, self.total_workspace, self.one_workspace];
        let limits = [Limit::PerKernel, Limit::Total, Limit::One];
        let mut found: Vec<Limit> = given.into_iter().zip(limits).filter_map(|(size, limit)| size.map(limit)).collect();
        if found.is_empty() {
            let names = ["TIGHTFIT_WORKSPACE", "TIGHTFIT_TOTAL_WORKSPACE", "TIGHTFIT_ONE_WORKSPACE"];
            for (name, limit) in names.into_iter().zip(limits) {
                if let Some(size) = units::of_environment(name)? {
                    found.push(limit(size));
                }
            }
        }
        match found[..] {
            [limit] => Ok(limit),
            _ => {
                let options = "--workspace, --total-workspace or --one-workspace (with a SIZE, such as 64MiB)";
                Err(Failure::Usage(format!(
                    "give exactly one of {options}, or set exactly one of their environment variables"
                )))
            }
        }
    }
}
