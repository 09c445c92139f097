//! The allowed micro-batch sizes, which must be measured.
//!
//! **Source**: Oyama et al. 2018, III.B, for undivided, power-of-two and all; `fit` is new, see [`super::fit`].

use std::collections::BTreeSet;

use tightfit_conv::candidate::Candidates;
use tightfit_conv::optimize::{divide, undivided};
use tightfit_conv::{Candidate, DivisionCost, Operation, Problem};
use tightfit_units::{Bytes, Error, by_name};

use super::bounds::Bounds;
use super::fit::{Screen, fit};
use super::grouped;
use crate::Profiler;

/// A rule for micro-batch sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sizes {
    /// Only the whole mini-batch.
    Undivided,
    /// 1, 2, 4, .. and the whole mini-batch.
    PowerOfTwo,
    /// Every size.
    All,
    /// The few sizes that fill the limit best, found while measuring.
    #[default]
    Fit,
}

impl Sizes {
    /// All four, in the order of the documentation.
    pub const ALL: [Sizes; 4] = [Sizes::Undivided, Sizes::PowerOfTwo, Sizes::All, Sizes::Fit];

    /// The name used in options and files.
    pub fn name(self) -> &'static str {
        match self {
            Sizes::Undivided => "undivided",
            Sizes::PowerOfTwo => "power-of-two",
            Sizes::All => "all",
            Sizes::Fit => "fit",
        }
    }

    /// The sizes for a mini-batch, rising; `None` if they are found while measuring ([`Sizes::Fit`]).
    ///
    /// ```
    /// use tightfit_profile::survey::Sizes;
    /// assert_eq!(Sizes::PowerOfTwo.up_to(6), Some(vec![1, 2, 4, 6]));
    /// ```
    pub fn up_to(self, mini_batch: usize) -> Option<Vec<usize>> {
        match self {
            Sizes::Undivided => Some(vec![mini_batch]),
            Sizes::PowerOfTwo => {
                let powers = std::iter::successors(Some(1usize), |size| size.checked_mul(2));
                Some(powers.take_while(|&size| size < mini_batch).chain([mini_batch]).collect())
            }
            Sizes::All => Some((1..=mini_batch).collect()),
            Sizes::Fit => None,
        }
    }
}

by_name!(Sizes, "sizes");

/// Measures the `sizes` of a kernel under `limits` and returns its candidates.
///
/// Candidates over the largest limit never run. With [`Sizes::Fit`], the sizes depend on the limits; the other rules
/// fix them, and a recording without some of them returns those it has.
///
/// # Errors
/// The errors of [`Profiler::measure`]. Completed measurements are already saved.
pub fn candidates(
    sizes: Sizes,
    problem: &Problem,
    limits: &[Bytes],
    profiler: &mut Profiler<'_>,
) -> Result<Candidates, Error> {
    screened(sizes, Screen::Twice, problem, limits, profiler)
}

/// As [`candidates`], with how [`Sizes::Fit`] screens.
///
/// # Errors
/// As there.
pub fn screened(
    sizes: Sizes,
    screen: Screen,
    problem: &Problem,
    limits: &[Bytes],
    profiler: &mut Profiler<'_>,
) -> Result<Candidates, Error> {
    let largest = limits.iter().copied().max().unwrap_or_default();
    let mut found = match sizes.up_to(problem.batch()) {
        Some(sizes) => {
            let known = profiler.sizes(problem);
            let (mut found, mut bounds) = (Vec::new(), Bounds::new(problem));
            for size in sizes.into_iter().filter(|size| known.binary_search(size).is_ok()) {
                measure_all(&problem.with_batch(size)?, largest, profiler, &mut bounds, &mut found)?;
            }
            found
        }
        None => fit(problem, limits, screen, profiler)?,
    };
    found.sort();
    let divides = sizes != Sizes::Undivided && problem.operation() == Operation::BackwardFilter;
    let cost = if divides { profiler.division_cost(problem)? } else { DivisionCost::default() };
    settle(problem, limits, cost, profiler, &mut found)?;
    Ok(Candidates { candidates: found, cost })
}

/// Measures every algorithm of one size whose workspace is within the limit.
pub(super) fn measure_size(
    problem: &Problem,
    limit: Bytes,
    profiler: &mut Profiler<'_>,
    found: &mut Vec<Candidate>,
) -> Result<(), Error> {
    measure_all(problem, limit, profiler, &mut Bounds::new(problem), found)
}

/// Measures every algorithm of one size, each against its rivals among the candidates of all sizes.
fn measure_all(
    problem: &Problem,
    limit: Bytes,
    profiler: &mut Profiler<'_>,
    bounds: &mut Bounds,
    found: &mut Vec<Candidate>,
) -> Result<(), Error> {
    let mut offers = profiler.offers(problem)?.to_vec();
    offers.sort_by_key(|offer| grouped::launches_per_group(problem, &offer.algorithm));
    let before = found.len();
    for offer in offers {
        let Some(workspace) = offer.workspace.ok().filter(|bytes| *bytes <= limit) else { continue };
        // A hopeless algorithm is better than none.
        if found.len() > before && grouped::is_hopeless(problem, &offer.algorithm, limit, profiler)? {
            continue;
        }
        let rivals = bounds.rivals(problem.batch(), workspace);
        if let Some(measurement) = profiler.measure_against(problem, &offer.algorithm, rivals)? {
            let candidate = measurement.candidate();
            bounds.add(&candidate);
            found.push(candidate);
        }
    }
    Ok(())
}

/// Measures parts of the answers under `limits` again, divided and undivided, if they were given up after a single timed call: with fewer rivals than
/// at that time, such a measurement may decide.
pub(super) fn settle(
    problem: &Problem,
    limits: &[Bytes],
    cost: DivisionCost,
    profiler: &mut Profiler<'_>,
    found: &mut Vec<Candidate>,
) -> Result<(), Error> {
    let mut settled = BTreeSet::new();
    loop {
        let mut hasty = Vec::new();
        for &limit in limits {
            let answers = [divide(problem, found, limit, cost).ok(), undivided(problem, found, limit)];
            for part in answers.iter().flatten().flat_map(|answer| answer.parts()) {
                let part_problem = problem.with_batch(part.micro_batch)?;
                if profiler.is_hasty(&part_problem, &part.algorithm)
                    && settled.insert((part.micro_batch, part.algorithm.clone()))
                {
                    hasty.push((part_problem, part.algorithm.clone()));
                }
            }
        }
        if hasty.is_empty() {
            return Ok(());
        }
        for (part, algorithm) in hasty {
            let measured = profiler.measure_again(&part, &algorithm)?;
            found.retain(|known| (known.micro_batch, &known.algorithm) != (part.batch(), &algorithm));
            found.extend(measured.map(|measurement| measurement.candidate()));
        }
        found.sort();
    }
}
