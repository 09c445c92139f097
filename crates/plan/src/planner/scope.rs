//! The scope of the measurements for a plan: workspace limits, and mini-batch sizes.

use std::collections::HashMap;

use tightfit_conv::Problem;
use tightfit_conv::candidate::Limit;
use tightfit_place::Effort;
use tightfit_units::{Bytes, Error};

use crate::memory::arena::Drafter;
use crate::schedule::script::Script;
use crate::step::{Cost, part_sizes as sizes};
use crate::{Algorithms, CostModel, Fronts, Options, Policy, Stop, Workload};

/// The largest workspace of a kernel that any device can provide.
const MAX_WORKSPACE: Bytes = Bytes::gib(256);

/// The workspace limits for which plans within a budget need micro-batch sizes: [`Limit::ladder`] of the budget, or of more than any device has. An
/// unlimited plan therefore has every size that a limited one has, and is not slower for lack of one.
pub fn limits(budget: Bytes) -> Vec<Bytes> {
    let rest = Limit::Total(budget.min(MAX_WORKSPACE)).ladder();
    let whole = (budget > MAX_WORKSPACE).then_some(budget);
    whole.into_iter().chain(rest).collect()
}

/// The smaller mini-batches whose times plans with these options need, for each convolution that may run in parts: the sizes of its parts, unless all
/// maps fit the budget. Without a limit, the sizes of limited plans, as in [`limits`].
///
/// # Errors
/// [`Error::BadProblem`] if the mini-batch is too large.
///
/// ```
/// use tightfit_plan::{CostModel, Mode, Options, Workload, part_sizes};
/// use tightfit_units::Bytes;
/// use tightfit_conv::Types;
/// use tightfit_network::Network;
/// let network = Network::open("vgg16")?;
/// let workload = Workload::new(&network, 176, Types::F32, Mode::Training)?;
/// let within = |budget| part_sizes(&workload, &CostModel::h200(), &Options { budget, ..Options::default() });
/// let sizes = within(Bytes::gib(5))?;
/// assert!(workload.problems()?.iter().all(|problem| sizes[problem] == [88, 44, 22, 11]));
/// assert!(within(Bytes::gib(100))?.is_empty());
/// assert_eq!(within(Bytes::UNLIMITED)?, sizes);
/// # Ok::<(), tightfit_units::Error>(())
/// ```
pub fn part_sizes(
    workload: &Workload<'_>,
    costs: &CostModel,
    options: &Options,
) -> Result<HashMap<Problem, Vec<usize>>, Error> {
    if options.policy != Policy::Optimal || !options.divide {
        return Ok(HashMap::new());
    }
    let step = workload.step(&Fronts::assumed(workload, costs)?, costs)?;
    let drafter = Drafter::new(&step, costs, *options, Stop::Never)?;
    let all = drafter.draft(&Script::new(step.operations.len()), Algorithms::Memory, Effort::Draft);
    // The waste of placement and the smallest workspaces are not known yet, so the size of the largest tensor stands in for them.
    let beside = step.tensors.iter().map(|tensor| tensor.bytes).max().unwrap_or_default();
    if all.peak.0.saturating_add(beside.0) <= options.budget.0 && options.budget != Bytes::UNLIMITED {
        return Ok(HashMap::new());
    }
    let operations = drafter.stretches().iter().flat_map(|of| of.forward.clone().chain(of.backward.clone()));
    let problems = operations.filter_map(|at| match &step.operations[at].cost {
        Cost::Choice(front) => Some(front.problem),
        Cost::Fixed(_) | Cost::Listed(_) => None,
    });
    Ok(problems.map(|problem| (problem, sizes(step.batch))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_without_a_limit_look_for_the_sizes_of_plans_within_one() {
        assert_eq!(limits(Bytes::gib(8)), Limit::Total(Bytes::gib(8)).ladder());
        let unlimited = limits(Bytes::UNLIMITED);
        assert_eq!(unlimited[..2], [Bytes::UNLIMITED, Bytes::gib(256)]);
        assert!(limits(Bytes::gib(128)).iter().take(10).all(|limit| unlimited.contains(limit)), "{unlimited:?}");
    }
}
