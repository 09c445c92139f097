//! The error of a configuration against 64-bit arithmetic.

use tightfit_conv::{Algorithm, Configuration, Problem};

/// The question of a comparison: everything that the errors depend on, except the device.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ComparisonKey {
    /// The convolution at its mini-batch.
    pub problem: Problem,
    /// The bits of both factors.
    pub factors: [u32; 2],
    /// The alignment of every address.
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

/// The errors of a configuration and of the program's own choice on the same data. An error is the root mean square of the differences from 64-bit
/// arithmetic, divided by the largest magnitude.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The configuration. Its error does not depend on its time.
    pub configuration: Configuration,
    /// Its error.
    pub error: f64,
    /// The program's own choice and its error, if both outputs fit in memory.
    pub own: Option<(Algorithm, f64)>,
}
