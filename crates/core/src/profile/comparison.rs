//! How far a configuration errs against 64-bit arithmetic.

use crate::{Algorithm, Configuration, Problem};

/// What configurations were compared for: everything their errors depend on, except the device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ComparisonKey {
    /// The convolution at its mini-batch.
    pub problem: Problem,
    /// The bits of both factors.
    pub factors: [u32; 2],
    /// What every address is a multiple of.
    pub base: usize,
}

impl ComparisonKey {
    /// Everything but the problem, as the cache has it.
    #[cfg(feature = "cache")]
    pub(super) fn words(&self) -> String {
        let ComparisonKey { factors: [alpha, beta], base, .. } = self;
        format!("factors {alpha:08x} {beta:08x} base {base}")
    }
}

/// The error of a configuration, and that of the program's own choice on the same data. An error is the root of the mean square of
/// the differences from 64-bit arithmetic, over the largest magnitude.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The configuration; whatever time it takes, it errs alike.
    pub configuration: Configuration,
    /// Its error.
    pub error: f64,
    /// The program's own choice and its error, if that had room beside it.
    pub own: Option<(Algorithm, f64)>,
}
