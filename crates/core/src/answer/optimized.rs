//! The result of `optimize` and `verify`: a network's kernels, each with the configuration chosen for it.

use crate::candidate::Limit;
use crate::execute::{Overlapped, Verified};
use crate::optimize::{Needs, Stop, needs};
use crate::profile::Spent;
use crate::survey::Sizes;
use crate::{Bytes, Configuration, Device, Layout, Nanos, Problem, Types};

/// One kernel and what was chosen for it.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizedKernel {
    /// Name of its layer.
    pub layer: String,
    /// The convolution on the whole mini-batch.
    pub problem: Problem,
    /// The fastest way without dividing that fits the limit; none where nothing fits.
    pub undivided: Option<Configuration>,
    /// What was chosen.
    pub configuration: Configuration,
    /// The choices there were, by rising workspace, where a front was computed.
    pub front: Option<Vec<Configuration>>,
    /// What running it showed, where it was run.
    pub verification: Option<Verified>,
}

impl OptimizedKernel {
    /// How many times as fast as undivided; none where nothing fits undivided or the time is zero.
    pub fn speedup(&self) -> Option<f64> {
        speedup(self.undivided.as_ref()?.time(), self.configuration.time())
    }
}

/// What finding out cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profiling {
    /// Time from the first question to the last answer; the recorded times in a replay.
    pub time: Nanos,
    /// What the measurements cost, and which failed.
    pub spent: Spent,
}

impl Profiling {
    /// How many measurements the choice is made from.
    pub fn measurements(&self) -> usize {
        self.spent.measured + self.spent.cached
    }
}

/// A network whose kernels were optimized under one limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Optimized {
    /// Name of the network.
    pub network: String,
    /// Its mini-batch; none where layers have their own (DeepBench).
    pub batch: Option<usize>,
    /// Where the times hold.
    pub device: Device,
    /// Number types of data and arithmetic.
    pub types: Types,
    /// Order of the dimensions in memory.
    pub layout: Layout,
    /// Which micro-batch sizes were allowed.
    pub sizes: Sizes,
    /// What bounds the workspace.
    pub limit: Limit,
    /// The kernels, in the order in which a training step runs them.
    pub kernels: Vec<OptimizedKernel>,
    /// (found - bound) / bound: how far the time is at most from the least possible. 0 where it is proven least.
    pub gap: f64,
    /// Why the search for an allotment (WD) ended.
    pub stop: Option<Stop>,
    /// What measuring cost.
    pub profiling: Profiling,
    /// The least workspace that any choice of configurations would need, where it is known.
    pub least_workspace: Option<Bytes>,
    /// Groups of kernels that may run side by side ([`crate::Network::concurrent`]); empty where that is not known.
    pub groups: Vec<Vec<usize>>,
    /// What running such groups showed, where they were run.
    pub overlapped: Vec<Overlapped>,
}

impl Optimized {
    /// Time of all kernels undivided; none where some kernel fits nothing undivided.
    pub fn undivided_time(&self) -> Option<Nanos> {
        self.kernels.iter().map(|kernel| kernel.undivided.as_ref().map(Configuration::time)).sum()
    }

    /// Time of all kernels as chosen.
    pub fn time(&self) -> Nanos {
        self.kernels.iter().map(|kernel| kernel.configuration.time()).sum()
    }

    /// How many times as fast as undivided; none where some kernel fits nothing undivided or there is no time at all.
    pub fn speedup(&self) -> Option<f64> {
        speedup(self.undivided_time()?, self.time())
    }

    /// Workspace of all kernels as chosen: their sum, or the largest where they share one workspace.
    pub fn workspace(&self) -> Bytes {
        self.limit.combine(self.kernels.iter().map(|kernel| kernel.configuration.workspace()))
    }

    /// What an allotment takes in all, and what WR and one workspace would take to be as fast; none under other limits.
    pub fn needs(&self) -> Option<Needs> {
        let (Limit::Total(_), false) = (self.limit, self.groups.is_empty()) else { return None };
        let kernels: Option<Vec<_>> =
            self.kernels.iter().map(|kernel| Some((&kernel.configuration, kernel.front.as_deref()?))).collect();
        needs(&kernels?, &self.groups)
    }

    /// Time of all kernels as they ran; none where some kernel was not run, or there is none.
    pub fn measured_time(&self) -> Option<Nanos> {
        if self.kernels.is_empty() {
            return None;
        }
        self.kernels.iter().map(|kernel| kernel.verification.as_ref().map(|seen| seen.time)).sum()
    }

    /// Time of all kernels undivided as they ran; none where some kernel was not run or fits nothing undivided.
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
    fn one_kernel_without_undivided_fit_leaves_no_undivided_total() {
        let optimized = samples::verified();
        assert!(optimized.kernels.iter().any(|kernel| kernel.undivided.is_some()));
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
