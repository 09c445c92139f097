//! The allowed micro-batch sizes, which must be measured.
//!
//! **Source**: Oyama et al. 2018, III.B, for undivided, power-of-two and all; `fit` is our own, see [`super::fit`].

use super::fit::fit;
use crate::candidate::Candidates;
use crate::profile::Profiler;
use crate::words::by_name;
use crate::{Bytes, Candidate, DivisionCost, Error, Nanos, Operation, Problem};

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
    /// use tightfit_core::survey::Sizes;
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
    let largest = limits.iter().copied().max().unwrap_or_default();
    let mut found = match sizes.up_to(problem.batch()) {
        Some(sizes) => {
            let known = profiler.sizes(problem);
            let mut found = Vec::new();
            for size in sizes.into_iter().filter(|size| known.binary_search(size).is_ok()) {
                measure_size(&problem.with_batch(size)?, largest, profiler, &mut found)?;
            }
            found
        }
        None => fit(problem, limits, profiler)?,
    };
    found.sort();
    let divides = sizes != Sizes::Undivided && problem.operation() == Operation::BackwardFilter;
    let cost = if divides { profiler.division_cost(problem)? } else { DivisionCost::default() };
    Ok(Candidates { candidates: found, cost })
}

/// Measures every algorithm of one size whose workspace is within the limit.
pub(super) fn measure_size(
    problem: &Problem,
    limit: Bytes,
    profiler: &mut Profiler<'_>,
    found: &mut Vec<Candidate>,
) -> Result<(), Error> {
    let offers = profiler.offers(problem)?.to_vec();
    let mut best: Option<Nanos> = None;
    for offer in offers {
        if !offer.workspace.is_ok_and(|bytes| bytes <= limit) {
            continue;
        }
        if let Some(measurement) = profiler.measure(problem, &offer.algorithm, best)? {
            best = Some(best.map_or(measurement.time, |best| best.min(measurement.time)));
            found.push(measurement.candidate());
        }
    }
    Ok(())
}
