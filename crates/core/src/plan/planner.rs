//! From a workload and a budget to a plan.

use super::draft::Drafter;
use super::facts::facts;
use super::policies::{Floors, baseline, choose};
use super::program::Program;
use super::{Costs, Kernels, Options, Plan, Workload};
use crate::Error;

/// Plans a training step (or an inference) in a fixed number of bytes.
///
/// The schedule is complete: every block has its offset in the device arena, every copy its place on the host. It is the
/// same for the same arguments.
///
/// - Source: Rhu et al. 2016, section 3, for the policies; see [`super::Policy`].
///
/// # Errors
/// [`Error::OverBudget`], with the least budget and the layer that fills it, or [`Error::OverHostBudget`] if nothing
/// fits; [`Error::NotProfiled`] for a convolution without a configuration.
///
/// ```
/// use tightfit_core::plan::{Costs, Kernels, Options, Workload, plan};
/// use tightfit_core::{Bytes, Network, Types};
/// let network = Network::open("vgg19")?;
/// let workload = Workload::new(&network, 64, Types::F32, false)?;
/// let costs = Costs::h200();
/// let kernels = Kernels::assumed(&workload, &costs)?;
/// let plan = plan(&workload, &kernels, &costs, &Options { budget: Bytes::gib(5), ..Options::default() })?;
/// assert!(plan.peak <= Bytes::gib(5) && plan.offloaded > Bytes::ZERO);
/// # Ok::<(), tightfit_core::Error>(())
/// ```
pub fn plan(workload: &Workload<'_>, kernels: &Kernels, costs: &Costs, options: &Options) -> Result<Plan, Error> {
    let program = Program::of(workload);
    let drafter = Drafter::new(workload, &program, kernels, costs, *options)?;
    let floors = Floors::of(&drafter);
    let mut chosen = choose(&drafter, &floors)?;
    chosen.draft = drafter.tightened(chosen.draft);
    let baseline = baseline(&drafter);
    Ok(facts(&drafter, &floors, &baseline, chosen))
}
