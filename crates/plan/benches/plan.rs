//! Times of planning: from a step to a checked schedule.

use divan::{Bencher, black_box};
use tightfit_conv::Types;
use tightfit_network::Network;
use tightfit_plan::{Budgets, CostModel, Fronts, Mode, Options, Plan, Policy, Workload, check, plan, simulate};
use tightfit_units::Bytes;

fn main() {
    divan::main();
}

/// A network with a mini-batch of 32 under a budget halfway between the least and the most that its policy takes.
fn with_plan<T>(name: &str, policy: Policy, use_it: impl FnOnce(&Workload<'_>, &dyn Fn() -> Plan) -> T) -> T {
    let network = Network::open(name).expect("a network");
    let workload = Workload::new(&network, 32, Types::F32, Mode::Training).expect("a workload");
    let costs = CostModel::h200();
    let fronts = Fronts::assumed(&workload, &costs).expect("problems");
    let step = workload.step(&fronts, &costs).expect("a step");
    let at = |budget| {
        let options = Options { policy, budget, ..Options::default() };
        plan(&step, &costs, black_box(&options)).expect("a plan")
    };
    let loose = at(Bytes::UNLIMITED);
    let budget = Bytes((loose.peak.0 + loose.min_feasible.0) / 2);
    use_it(&workload, &|| at(budget))
}

#[divan::bench(args = ["alexnet", "googlenet", "resnet152", "densenet40", "vgg19", "vgg516"], sample_count = 5)]
fn plan_dynamic(bencher: Bencher<'_, '_>, name: &str) {
    with_plan(name, Policy::VdnnDynamic, |_, plan| bencher.bench_local(plan));
}

#[divan::bench(args = ["alexnet", "googlenet", "resnet152", "densenet40", "vgg19", "vgg516"], sample_count = 5)]
fn plan_overlap(bencher: Bencher<'_, '_>, name: &str) {
    with_plan(name, Policy::Overlap, |_, plan| bencher.bench_local(plan));
}

#[divan::bench(args = ["vgg516"], sample_count = 5)]
fn check_a_schedule(bencher: Bencher<'_, '_>, name: &str) {
    with_plan(name, Policy::Overlap, |workload, plan| {
        let schedule = plan().schedule;
        let costs = CostModel::h200();
        let step = workload.step(&Fronts::assumed(workload, &costs).expect("problems"), &costs).expect("a step");
        bencher.bench_local(|| check(&step, &schedule, Budgets::default()));
    });
}

#[divan::bench(args = ["vgg516"], sample_count = 5)]
fn simulate_a_schedule(bencher: Bencher<'_, '_>, name: &str) {
    with_plan(name, Policy::Overlap, |workload, plan| {
        let schedule = plan().schedule;
        let costs = CostModel::h200();
        let step = workload.step(&Fronts::assumed(workload, &costs).expect("problems"), &costs).expect("a step");
        bencher.bench_local(|| simulate(&step, &schedule, &CostModel::h200()));
    });
}
