//! From the candidates of a network's kernels to one configuration for each: what every front end shares.
//!
//! ```text
//! kernels + candidates -> each divided under the limit                                             (WR, one workspace)
//!                      -> fronts (each distinct problem once) -> one point of each, allotted       (WD)
//! ```

use std::collections::HashMap;

use super::OptimizedKernel;
use crate::candidate::{Candidates, Limit};
use crate::network::{Kernel, distinct};
use crate::optimize::{SearchOptions, Stop, allot, divide, front, points, undivided};
use crate::{Bytes, Configuration, DivisionCost, Error, Problem};

/// The configurations of a network's kernels under one limit.
#[derive(Debug)]
pub(super) struct Chosen {
    /// In the order of the kernels given.
    pub kernels: Vec<OptimizedKernel>,
    /// How far the time is at most from the least possible: see [`Allotment::gap`](crate::optimize::Allotment::gap).
    pub gap: f64,
    /// Why the search for an allotment ended, where there was one.
    pub stop: Option<Stop>,
    /// The least workspace of any choice, where a total was divided.
    pub least_workspace: Option<Bytes>,
}

/// Chooses the configurations of `kernels` from what was measured of their problems.
///
/// Under a total, "undivided" means that each kernel gets an equal share of it, as a framework without WD would give.
///
/// - Cost: a front for each distinct problem; with a total an allotment besides.
/// - Source: Oyama et al. 2018, III.B (WR) and III.C (WD).
///
/// # Errors
/// [`Error::OverLimit`], [`Error::OverTotal`] or [`Error::NotProfiled`] where it does not fit, or is not measured.
pub(super) fn choose(
    kernels: &[Kernel],
    candidates: &HashMap<Problem, Candidates>,
    limit: Limit,
) -> Result<Chosen, Error> {
    let none = Candidates { candidates: Vec::new(), cost: DivisionCost::default() };
    let of = |problem: &Problem| candidates.get(problem).unwrap_or(&none);
    let share = match limit {
        Limit::Total(total) => Bytes(total.0 / kernels.len().max(1) as u64),
        Limit::PerKernel(bytes) | Limit::One(bytes) => bytes,
    };
    let optimized = |kernel: &Kernel, configuration: Configuration, front| OptimizedKernel {
        layer: kernel.layer.clone(),
        problem: kernel.problem,
        undivided: undivided(&kernel.problem, &of(&kernel.problem).candidates, share),
        configuration,
        front,
        verification: None,
    };
    let mut fronts: HashMap<Problem, Vec<Configuration>> = HashMap::new();
    for (problem, _) in distinct(kernels) {
        let Candidates { candidates, cost } = of(&problem);
        fronts.insert(problem, front(&problem, candidates, limit.bytes(), *cost)?);
    }
    let Limit::Total(total) = limit else {
        let fastest = |kernel: &Kernel| {
            let Candidates { candidates, cost } = of(&kernel.problem);
            let configuration = divide(&kernel.problem, candidates, limit.bytes(), *cost)?;
            Ok(optimized(kernel, configuration, Some(fronts[&kernel.problem].clone())))
        };
        let kernels = kernels.iter().map(fastest).collect::<Result<_, Error>>()?;
        return Ok(Chosen { kernels, gap: 0.0, stop: None, least_workspace: None });
    };
    let of_kernels: Vec<Vec<Configuration>> = kernels.iter().map(|kernel| fronts[&kernel.problem].clone()).collect();
    let least = of_kernels.iter().filter_map(|front| front.first()).map(Configuration::workspace).sum();
    let fronts: Vec<_> = of_kernels.iter().map(|front| points(front)).collect();
    let allotment = allot(&fronts, total, &SearchOptions::default())?;
    let chosen = kernels.iter().zip(of_kernels).zip(&allotment.choice);
    let kernels =
        chosen.map(|((kernel, front), &choice)| optimized(kernel, front[choice].clone(), Some(front))).collect();
    Ok(Chosen { kernels, gap: allotment.gap(), stop: Some(allotment.stop), least_workspace: Some(least) })
}
