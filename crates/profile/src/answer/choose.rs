//! Chooses one configuration per kernel from the kernels' candidates; shared by all front ends.
//!
//! ```text
//! kernels + candidates -> each divided under the limit                                             (WR, one workspace)
//!                      -> fronts (each distinct problem once) -> one point of each, allotted       (WD)
//! ```

use std::collections::HashMap;

use tightfit_conv::candidate::{Candidates, Limit};
use tightfit_conv::optimize::{SearchOptions, Stop, allot, divide, front, points, undivided};
use tightfit_conv::{Backend, Configuration, DivisionCost, Problem};
use tightfit_network::{Kernel, distinct};
use tightfit_units::{Bytes, Error};

use super::{NotUndivided, OptimizedKernel};
use crate::Admission;

/// The configurations of a network's kernels under one limit.
#[derive(Debug)]
pub(super) struct Choice {
    /// In the order of the given kernels.
    pub kernels: Vec<OptimizedKernel>,
    /// Upper bound on the relative distance of the time from the optimum; see [`Allotment::gap`](tightfit_conv::optimize::Allotment::gap).
    pub gap: f64,
    /// Why the search for an allotment ended; `None` without a search.
    pub stop: Option<Stop>,
    /// The least workspace of any choice, under a total.
    pub least_workspace: Option<Bytes>,
}

/// Chooses the configurations of `kernels` from the candidates of their problems.
///
/// Under a total, "undivided" means that each kernel gets an equal share of it, as a framework without WD would give.
///
/// - Cost: one front per distinct problem; with a total, also an allotment.
/// - Source: Oyama et al. 2018, III.B (WR) and III.C (WD).
///
/// # Errors
/// [`Error::OverLimit`] or [`Error::OverTotal`] if a kernel does not fit; [`Error::NotProfiled`] if one is not
/// measured; [`Error::Backend`] if the workspaces of a kernel without an undivided configuration cannot be queried.
pub(super) fn choose(
    kernels: &[Kernel],
    candidates: &HashMap<Problem, Candidates>,
    limit: Limit,
    admission: Admission,
    backend: &mut dyn Backend,
) -> Result<Choice, Error> {
    let none = Candidates { candidates: Vec::new(), cost: DivisionCost::default() };
    let candidates_of = |problem: &Problem| candidates.get(problem).unwrap_or(&none);
    let share = match limit {
        Limit::Total(total) => Bytes(total.0 / kernels.len().max(1) as u64),
        Limit::PerKernel(bytes) | Limit::One(bytes) => bytes,
    };
    let mut optimized = |kernel: &Kernel, configuration: Configuration, front| {
        let whole = undivided(&kernel.problem, &candidates_of(&kernel.problem).candidates, share);
        Ok(OptimizedKernel {
            layer: kernel.layer.clone(),
            problem: kernel.problem,
            undivided: match whole {
                Some(whole) => Ok(whole),
                None => Err(why_divided(&kernel.problem, share, admission, backend)?),
            },
            configuration,
            front,
            verification: None,
        })
    };
    let mut fronts: HashMap<Problem, Vec<Configuration>> = HashMap::new();
    for (problem, _) in distinct(kernels) {
        let Candidates { candidates, cost } = candidates_of(&problem);
        fronts.insert(problem, front(&problem, candidates, limit.bytes(), *cost)?);
    }
    let Limit::Total(total) = limit else {
        let mut fastest = |kernel: &Kernel| {
            let Candidates { candidates, cost } = candidates_of(&kernel.problem);
            let configuration = divide(&kernel.problem, candidates, limit.bytes(), *cost)?;
            optimized(kernel, configuration, Some(fronts[&kernel.problem].clone()))
        };
        let kernels = kernels.iter().map(&mut fastest).collect::<Result<_, Error>>()?;
        return Ok(Choice { kernels, gap: 0.0, stop: None, least_workspace: None });
    };
    let of_kernels: Vec<Vec<Configuration>> = kernels.iter().map(|kernel| fronts[&kernel.problem].clone()).collect();
    let least = of_kernels.iter().filter_map(|front| front.first()).map(Configuration::workspace).sum();
    let fronts: Vec<_> = of_kernels.iter().map(|front| points(front)).collect();
    let allotment = allot(&fronts, total, &SearchOptions::default())?;
    let chosen = kernels.iter().zip(of_kernels).zip(&allotment.choice);
    let kernels = chosen
        .map(|((kernel, front), &choice)| optimized(kernel, front[choice].clone(), Some(front)))
        .collect::<Result<_, Error>>()?;
    Ok(Choice { kernels, gap: allotment.gap(), stop: Some(allotment.stop), least_workspace: Some(least) })
}

/// The reason why no candidate is undivided. Candidates over the limit are never measured, so the backend is asked for their workspaces.
fn why_divided(
    problem: &Problem,
    limit: Bytes,
    admission: Admission,
    backend: &mut dyn Backend,
) -> Result<NotUndivided, Error> {
    let offers = backend.offers(problem)?;
    let admitted = offers.iter().filter(|offer| admission.admits(offer.notes));
    let least = admitted.filter_map(|offer| offer.workspace.as_ref().ok()).min();
    Ok(match least {
        Some(&least) if least > limit => NotUndivided::OverLimit,
        _ => NotUndivided::NotMeasured,
    })
}
