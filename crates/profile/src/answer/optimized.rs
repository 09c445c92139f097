//! The result of `optimize` and `verify`: a network's kernels with their configurations.

use tightfit_conv::candidate::Limit;
use tightfit_conv::execute::{Overlapped, Verified};
use tightfit_conv::optimize::{Needs, Stop, needs};
use tightfit_conv::{Configuration, Device, Layout, Problem, Types};
use tightfit_units::{Bytes, Nanos};

use crate::Spent;
use crate::survey::{Divide, Sizes};

/// Why a kernel has no undivided configuration to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotUndivided {
    /// The whole mini-batch needs more workspace than the limit under every algorithm.
    OverLimit,
    /// No algorithm within the limit was measured on the whole mini-batch.
    NotMeasured,
}

impl NotUndivided {
    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            NotUndivided::OverLimit => "over-limit",
            NotUndivided::NotMeasured => "not-measured",
        }
    }
}

/// One kernel and its configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizedKernel {
    /// Name of its layer.
    pub layer: String,
    /// The convolution at the whole mini-batch.
    pub problem: Problem,
    /// The fastest undivided configuration within the limit, or the reason for having none.
    pub undivided: Result<Configuration, NotUndivided>,
    /// The chosen configuration.
    pub configuration: Configuration,
    /// The alternatives by rising workspace, if a front was computed.
    pub front: Option<Vec<Configuration>>,
    /// The result of running it, if it was run.
    pub verification: Option<Verified>,
}

impl OptimizedKernel {
    /// Speedup over undivided; `None` without an undivided configuration or for a time of zero.
    pub fn speedup(&self) -> Option<f64> {
        speedup(self.undivided.as_ref().ok()?.time(), self.configuration.time())
    }
}

/// The cost of profiling.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profiling {
    /// Elapsed time of all measurements; recorded times in a replay.
    pub time: Nanos,
    /// The cost of the measurements, and the failures.
    pub spent: Spent,
}

impl Profiling {
    /// Number of measurements behind the choice.
    pub fn measurements(&self) -> usize {
        self.spent.measured + self.spent.cached
    }
}

/// A network optimized under one limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimized {
    /// Name of the network.
    pub network: String,
    /// Its mini-batch; `None` if the layers have their own (DeepBench).
    pub batch: Option<usize>,
    /// The device that the times are valid for.
    pub device: Device,
    /// Number types of data and arithmetic.
    pub types: Types,
    /// Order of the dimensions in memory.
    pub layout: Layout,
    /// The allowed micro-batch sizes.
    pub sizes: Sizes,
    /// The axes along which the convolutions may be divided.
    pub divide: Divide,
    /// The workspace limit.
    pub limit: Limit,
    /// The kernels, in training order.
    pub kernels: Vec<OptimizedKernel>,
    /// (time - bound) / bound: upper bound on the relative distance from the optimum; 0 if proven optimal.
    pub gap: f64,
    /// Why the search for an allotment (WD) ended.
    pub stop: Option<Stop>,
    /// The cost of profiling.
    pub profiling: Profiling,
    /// The least workspace that any choice of configurations would need, if known.
    pub least_workspace: Option<Bytes>,
    /// Groups of kernels that can run concurrently ([`tightfit_network::Network::concurrent`]); empty if unknown.
    pub groups: Vec<Vec<usize>>,
    /// The results of running these groups, if they were run.
    pub overlapped: Vec<Overlapped>,
}

impl Optimized {
    /// Total time of all kernels undivided; `None` if some kernel has no undivided configuration.
    pub fn undivided_time(&self) -> Option<Nanos> {
        self.kernels.iter().map(|kernel| kernel.undivided.as_ref().ok().map(Configuration::time)).sum()
    }

    /// Total time of the chosen configurations.
    pub fn time(&self) -> Nanos {
        self.kernels.iter().map(|kernel| kernel.configuration.time()).sum()
    }

    /// Speedup over undivided; `None` if some kernel has no undivided configuration, or the time is zero.
    pub fn speedup(&self) -> Option<f64> {
        speedup(self.undivided_time()?, self.time())
    }

    /// Total workspace of the chosen configurations: their sum, or the largest if they share one workspace.
    pub fn workspace(&self) -> Bytes {
        self.limit.combine(self.kernels.iter().map(|kernel| kernel.configuration.workspace()))
    }

    /// The total workspace of an allotment, and the workspaces with which WR and one workspace are at least as fast. `None` under other limits.
    pub fn needs(&self) -> Option<Needs> {
        let (Limit::Total(_), false) = (self.limit, self.groups.is_empty()) else { return None };
        let kernels: Option<Vec<_>> =
            self.kernels.iter().map(|kernel| Some((&kernel.configuration, kernel.front.as_deref()?))).collect();
        needs(&kernels?, &self.groups)
    }

    /// Total measured time of all kernels; `None` if some kernel was not run, or without kernels.
    pub fn measured_time(&self) -> Option<Nanos> {
        if self.kernels.is_empty() {
            return None;
        }
        self.kernels.iter().map(|kernel| kernel.verification.as_ref().map(|seen| seen.time)).sum()
    }

    /// Total measured time of all kernels undivided; `None` if some kernel was not run or has no undivided
    /// configuration.
    pub fn undivided_measured_time(&self) -> Option<Nanos> {
        if self.kernels.is_empty() {
            return None;
        }
        self.kernels.iter().map(|kernel| kernel.verification.as_ref()?.undivided_time).sum()
    }
}

fn speedup(before: Nanos, after: Nanos) -> Option<f64> {
    (after > Nanos::ZERO).then(|| before.ratio(after))
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn totals_add_up() {
        let optimized = samples::alexnet();
        assert_eq!(optimized.undivided_time(), Some(Nanos(9_000_000)));
        assert_eq!(optimized.time(), Nanos(6_000_000));
        assert_eq!(optimized.speedup(), Some(1.5));
        assert_eq!(optimized.workspace(), Bytes::mib(56));
        assert_eq!(Optimized { limit: Limit::One(Bytes::mib(64)), ..optimized }.workspace(), Bytes::mib(48));
    }

    #[test]
    fn undivided_total_needs_every_kernel_to_fit_undivided() {
        let optimized = samples::verified();
        assert!(optimized.kernels.iter().any(|kernel| kernel.undivided.is_ok()));
        assert_eq!(optimized.undivided_time(), None);
        assert_eq!(optimized.speedup(), None);
        assert_eq!(optimized.measured_time(), Some(Nanos(6_600_000)));
    }

    #[test]
    fn nothing_optimized_takes_no_time_and_has_no_speedup() {
        let empty = samples::empty();
        assert_eq!((empty.time(), empty.undivided_time()), (Nanos::ZERO, Some(Nanos::ZERO)));
        assert_eq!((empty.speedup(), empty.measured_time()), (None, None));
        assert_eq!(empty.workspace(), Bytes::ZERO);
    }
}
