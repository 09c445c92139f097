//! Plans close to the least budget, where hardly any decisions that fit have a placement that does.

use tightfit_conv::Types;
use tightfit_network::Network;
use tightfit_plan::{CostModel, Fronts, Mode, Options, Workload, plan};
use tightfit_units::{Bytes, Nanos};

#[test]
fn the_least_budget_takes_less_time_than_the_plan_that_needs_least() {
    let (network, costs) = (Network::open("densenet40").unwrap(), CostModel::h200());
    let workload = Workload::new(&network, 32, Types::F32, Mode::Training).unwrap();
    let step = workload.step(&Fronts::assumed(&workload, &costs).unwrap(), &costs).unwrap();
    let planned = |budget: Bytes| plan(&step, &costs, &Options { budget, ..Options::default() }).unwrap();
    let budget = planned(Bytes::UNLIMITED).min_feasible;
    let plan = planned(budget);
    let least = plan.decisions.iter().find(|one| one.attempt == "least").and_then(|one| one.time).unwrap();
    assert!(plan.peak <= budget, "{} in {budget}", plan.peak);
    assert!(plan.step_time.0 < least.0 / 10 * 8, "{} of {least}", plan.step_time);
}

#[test]
fn with_hardly_any_time_a_plan_takes_no_several_times_as_long() {
    let (network, costs) = (Network::open("resnet50").unwrap(), CostModel::h200());
    let workload = Workload::new(&network, 256, Types::F32, Mode::Training).unwrap();
    let step = workload.step(&Fronts::assumed(&workload, &costs).unwrap(), &costs).unwrap();
    let everything = plan(&step, &costs, &Options::default()).unwrap().step_time;
    for budget in [Bytes::gib(6), Bytes::gib(10)] {
        for milliseconds in [0, 20, 60] {
            let plan_time = Some(Nanos(1_000_000 * milliseconds));
            let found = plan(&step, &costs, &Options { budget, plan_time, ..Options::default() }).unwrap();
            // The plan with the least memory is five times slower.
            assert!(
                found.peak <= budget && found.step_time.0 < 2 * everything.0,
                "{}: {milliseconds} ms",
                found.step_time
            );
        }
    }
}
