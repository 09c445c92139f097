//! Skips algorithms that compute a convolution of many groups by one kernel per group.
//!
//! cuDNN's legacy interface does so: a depthwise layer of 240 channels takes 240 launches a call, at any size. Its
//! algorithms are screened last, and if one is hopeless at the first screening size, larger sizes do not run it.

use tightfit_conv::{Algorithm, Problem};
use tightfit_units::{Bytes, Error};

use crate::Profiler;

/// Sizes at which every algorithm is screened.
pub(super) const SCREEN: [usize; 2] = [4, 32];
/// Fewest groups at which the launches decide. With two, an algorithm of a recorded H200 takes 6.3 times the best at 4
/// samples and 1.2 times at 256.
const MANY_GROUPS: usize = 16;
/// An algorithm is hopeless if its time at the first screening size is this multiple of the best time.
const HOPELESS_FACTOR: u64 = 5;

/// Workspaces up to this fraction of the limit count as none, and at most `MAX_NEGLIGIBLE`: those without a kernel per
/// group often need a few hundred bytes.
const NEGLIGIBLE_DIVISOR: u64 = 1024;
const MAX_NEGLIGIBLE: Bytes = Bytes::mib(1);

/// Whether `algorithm` may launch a kernel per group of `problem`, which has many.
pub(super) fn launches_per_group(problem: &Problem, algorithm: &Algorithm) -> bool {
    problem.convolution().groups() >= MANY_GROUPS && algorithm.name().starts_with("legacy:")
}

/// Whether the measurements at the first screening size show that `algorithm` is hopeless at the problem's larger one,
/// compared with algorithms that need no more workspace, or next to none of `limit`.
pub(super) fn is_hopeless(
    problem: &Problem,
    algorithm: &Algorithm,
    limit: Bytes,
    profiler: &Profiler<'_>,
) -> Result<bool, Error> {
    if problem.batch() <= SCREEN[0] || !launches_per_group(problem, algorithm) {
        return Ok(false);
    }
    let screened = profiler.known_of(&problem.with_batch(SCREEN[0])?);
    let Some(own) = screened.iter().find(|measurement| measurement.algorithm == *algorithm) else { return Ok(false) };
    let negligible = Bytes(limit.0 / NEGLIGIBLE_DIVISOR).min(MAX_NEGLIGIBLE);
    let workspace = own.workspace.max(negligible);
    Ok(screened.iter().any(|other| other.workspace <= workspace && own.time > other.time * HOPELESS_FACTOR))
}
