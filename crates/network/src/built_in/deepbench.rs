//! DeepBench: convolutions of several applications, not one network. Source: Baidu Research, DeepBench.

use tightfit_units::Error;

use crate::Network;

/// All convolutions, each with DeepBench's mini-batch.
pub(super) fn all() -> Result<Network, Error> {
    Network::from_list("deepbench", include_str!("../../networks/deepbench.txt"))
}

/// The convolutions with 3x3 and 5x5 filters, at mini-batch 256.
pub(super) fn square() -> Result<Network, Error> {
    Network::from_list("deepbench-256", include_str!("../../networks/deepbench-256.txt"))
}

/// All convolutions, with four times DeepBench's mini-batches. Source: Oyama et al. 2018, IV.A.
pub(super) fn times_four() -> Result<Network, Error> {
    Network::from_list("deepbench-x4", include_str!("../../networks/deepbench-x4.txt"))
}
