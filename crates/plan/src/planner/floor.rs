//! The lower bound that no measurement can change: the bytes of a plan before any workspace.

use tightfit_units::Error;

use crate::memory::arena::Drafter;
use crate::search::floors::{Floors, proven};
use crate::step::OperationId;
use crate::{CostModel, Fronts, Options, Policy, Stop, Workload};

/// Rejects a budget that no plan of the policy can meet, with any workspaces of its convolutions.
///
/// A budget that passes may still be too small once convolutions are measured. Nothing is measured here: convolutions
/// count as having no workspace, and a schedule counts as its peak of live bytes, regardless of placement.
///
/// - Cost: six schedules, a fraction of the cost of [`crate::plan()`].
///
/// # Errors
/// [`Error::OverAnyBudget`], with the least bytes and the layer at which memory peaks; [`Error::BadProblem`] if the
/// mini-batch is too large.
///
/// ```
/// use tightfit_plan::{CostModel, Mode, Options, Workload, check_budget};
/// use tightfit_units::{Bytes, Error};
/// use tightfit_conv::Types;
/// use tightfit_network::Network;
/// let network = Network::open("vgg16")?;
/// let workload = Workload::new(&network, 64, Types::F32, Mode::Training)?;
/// let options = Options { budget: Bytes::mib(1), ..Options::default() };
/// let refused = check_budget(&workload, &CostModel::h200(), &options);
/// assert!(matches!(refused, Err(Error::OverAnyBudget { .. })));
/// # Ok::<(), tightfit_units::Error>(())
/// ```
pub fn check_budget(workload: &Workload<'_>, costs: &CostModel, options: &Options) -> Result<(), Error> {
    let step = workload.step(&Fronts::assumed(workload, costs)?, costs)?;
    let drafter = Drafter::new(&step, costs, *options, Stop::Never)?;
    if options.policy == Policy::Optimal {
        let (needed, at) = proven(&drafter);
        return match needed > options.budget {
            true => Err(Error::OverAnyBudget {
                network: workload.network.name().to_owned(),
                policy: options.policy.name().to_owned(),
                needed,
                budget: options.budget,
                layer: step.group_name(OperationId(at)).to_owned(),
                least: needed,
            }),
            false => Ok(()),
        };
    }
    let floors = Floors::of(&drafter)?;
    // The times that decide the moves of `overlap` are not known yet. Fetching on demand needs the least bytes in any case.
    let policies: &[Policy] = match options.policy {
        Policy::Overlap => &[Policy::Overlap, Policy::VdnnDynamic],
        ref policy => std::slice::from_ref(policy),
    };
    let floor = policies.iter().map(|policy| floors.of_policy(*policy)).min_by_key(|draft| draft.most_live);
    match floor {
        Some(draft) if draft.most_live > options.budget => Err(Error::OverAnyBudget {
            network: workload.network.name().to_owned(),
            policy: options.policy.name().to_owned(),
            needed: draft.most_live,
            budget: options.budget,
            layer: drafter.binding_layer(draft),
            least: floors.least_of_all(&drafter),
        }),
        _ => Ok(()),
    }
}
