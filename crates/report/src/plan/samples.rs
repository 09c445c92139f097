//! Plans and a device for the tests of reports.

use tightfit_conv::{Device, Types};
use tightfit_network::Network;
use tightfit_plan::{CostModel, Fronts, Mode, Options, Plan, Policy, Workload, plan};
use tightfit_units::Bytes;

/// The plan of a built-in network under a policy, without measurements.
pub fn planned(network: &str, batch: usize, policy: Policy, budget: Bytes) -> Plan {
    let network = Network::open(network).unwrap();
    let workload = Workload::new(&network, batch, Types::F32, Mode::Training).unwrap();
    let step = workload.step(&Fronts::assumed(&workload, &CostModel::h200()).unwrap(), &CostModel::h200()).unwrap();
    plan(&step, &CostModel::h200(), &Options { policy, budget, ..Options::default() }).unwrap()
}

/// A small plan that offloads.
pub fn small() -> Plan {
    planned("digits-net", 4, Policy::VdnnAll, Bytes::mib(8))
}

pub fn device() -> Device {
    Device { backend: "cuda".to_owned(), name: "a <device>".to_owned(), library: "cudnn 9".to_owned(), threads: 0 }
}
