//! More memory, of the device or of the host, is never refused and hardly ever slower, also where each limit is planned alone.

use tightfit_conv::Types;
use tightfit_network::Network;
use tightfit_plan::{CostModel, Fronts, Mode, Options, Step, Workload, plan};
use tightfit_units::{Bytes, Nanos};

use crate::small_step::{Extras, random, small};

/// A plan within this share of its bound ends the search, so that another limit may give a plan that is faster by as much.
const NEAR: f64 = 0.02;

/// Asserts that each of these limits has a plan if the one before it has one, and that it takes hardly longer.
fn rising(step: &Step, costs: &CostModel, limits: impl Iterator<Item = Options>) {
    let mut before: Option<Nanos> = None;
    for options in limits {
        let planned = plan(step, costs, &options);
        let of = || format!("{} in {}, {} of the host", step.name, options.budget, options.host_budget);
        match (planned, before) {
            (Ok(plan), None) => before = Some(plan.step_time),
            (Ok(plan), Some(least)) => {
                let most = least.0 as f64 * (1.0 + NEAR);
                assert!(plan.step_time.0 as f64 <= most, "{}: {} after {least}: {step:?}", of(), plan.step_time);
                before = Some(plan.step_time.min(least));
            }
            (Err(error), Some(_)) => panic!("{}: {error}", of()),
            (Err(error), None) => assert!(error.is_over_limit(), "{error}"),
        }
    }
}

/// The limits of the device on the search's own grid.
fn budgets(least: u64, plain: u64) -> impl Iterator<Item = Options> {
    let budget = move |eighths: u64| Bytes(least + (plain - least) / 8 * eighths);
    [0, 1, 2, 4, 6, 8].into_iter().map(move |of| Options { budget: budget(of), ..Options::default() })
}

#[test]
fn more_memory_of_small_steps_is_never_refused_and_hardly_slower() {
    let (mut next, costs) = (random(17), CostModel::cpu());
    for case in 0..24 {
        let extras = Extras { choices: case % 2 == 1, in_place: case % 4 >= 2, resident: case % 8 >= 4 };
        let step = small(4 + case % 3, extras, &mut next);
        let free = plan(&step, &costs, &Options::default()).unwrap();
        rising(&step, &costs, budgets(free.min_feasible.0, free.baseline.0));
        let budget = Bytes(free.min_feasible.0 + (free.baseline.0 - free.min_feasible.0) / 4);
        let most = plan(&step, &costs, &Options { budget, ..Options::default() }).unwrap().host;
        for host in 1..=4 {
            let hosts = [Bytes::ZERO, Bytes(most.0 * host / 4)].into_iter();
            rising(&step, &costs, hosts.map(|host_budget| Options { budget, host_budget, ..Options::default() }));
        }
    }
}

#[test]
fn more_memory_of_networks_is_never_refused_and_hardly_slower() {
    let costs = CostModel::h200();
    let step = |name: &str, batch: usize| {
        let network = Network::open(name).unwrap();
        let workload = Workload::new(&network, batch, Types::F32, Mode::Training).unwrap();
        workload.step(&Fronts::assumed(&workload, &costs).unwrap(), &costs).unwrap()
    };
    let lenet = step("lenet", 16);
    let free = plan(&lenet, &costs, &Options::default()).unwrap();
    rising(&lenet, &costs, budgets(free.min_feasible.0, free.baseline.0));
    // A search that may copy a little ends at a larger arena than one that may copy nothing.
    let budget = Bytes(383_709_440);
    let hosts = [0, 44, 66].into_iter().map(Bytes::mib);
    let hosts = hosts.map(|host_budget| Options { budget, host_budget, ..Options::default() });
    rising(&step("resnet18", 32), &costs, hosts);
}
