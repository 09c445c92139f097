//! The figures that plans report, checked against their schedules and attempts.

use tightfit_conv::Types;
use tightfit_network::{Network, names};
use tightfit_plan::{Algorithms, CostModel, Fronts, MapTreatment, Mode, Options, Policy, Workload, plan};
use tightfit_units::{Bytes, Nanos};

fn assumed(workload: &Workload<'_>) -> Fronts {
    Fronts::assumed(workload, &CostModel::h200()).unwrap()
}

#[test]
fn overlap_takes_the_fastest_step_that_fits() {
    let costs = CostModel::h200();
    for name in ["vgg16", "googlenet", "resnet50"] {
        let network = Network::open(name).unwrap();
        let workload = Workload::new(&network, 16, Types::F32, Mode::Training).unwrap();
        let kernels = assumed(&workload);
        let under = |policy, budget| {
            let options = Options { policy, budget, ..Options::default() };
            plan(&workload.step(&kernels, &costs).unwrap(), &costs, &options)
        };
        let at = |budget| under(Policy::Overlap, budget).unwrap();
        let loose = at(Bytes::UNLIMITED);
        for share in [0, 1, 25, 50, 75] {
            let plan = at(Bytes(loose.min_feasible.0 + (loose.peak.0 - loose.min_feasible.0) * share / 100));
            let fastest = plan.decisions.iter().filter(|attempt| attempt.fits).filter_map(|attempt| attempt.time).min();
            assert_eq!(fastest, Some(plan.step_time), "{name}, {share} %");
            if let Ok(dynamic) = under(Policy::VdnnDynamic, plan.options.budget) {
                assert!(plan.step_time <= dynamic.step_time, "{name}, {share} %: slower than vdnn-dynamic");
            }
        }
    }
}

#[test]
fn overlap_fits_wherever_the_papers_policies_do() {
    let costs = CostModel::h200();
    for (name, batch) in [("lenet", 64), ("cifar10-quick", 32), ("vgg16", 16), ("googlenet", 16), ("densenet40", 8)] {
        let network = Network::open(name).unwrap();
        let workload = Workload::new(&network, batch, Types::F32, Mode::Training).unwrap();
        let step = workload.step(&assumed(&workload), &costs).unwrap();
        let under = |policy, budget| plan(&step, &costs, &Options { policy, budget, ..Options::default() });
        let optimal = under(Policy::Optimal, Bytes::UNLIMITED).unwrap();
        for policy in Policy::ALL.into_iter().filter(|policy| *policy != Policy::Optimal) {
            let least = under(policy, Bytes::UNLIMITED).unwrap().min_feasible;
            assert!(optimal.min_feasible <= least, "{name}: {policy} needs {least}, optimal {}", optimal.min_feasible);
            let overlap = under(Policy::Overlap, least).unwrap_or_else(|error| panic!("{name}, {policy}: {error}"));
            assert!(overlap.min_feasible <= least, "{name}: {policy} needs {least}, overlap {}", overlap.min_feasible);
        }
    }
}

#[test]
fn fates_follow_the_releases() {
    let network = Network::open("vgg19").unwrap();
    for mode in [Mode::Training, Mode::Inference] {
        let workload = Workload::new(&network, 16, Types::F32, mode).unwrap();
        let fates = |policy| {
            let options = Options { policy, algorithms: Algorithms::Memory, ..Options::default() };
            let plan =
                plan(&workload.step(&assumed(&workload), &CostModel::h200()).unwrap(), &CostModel::h200(), &options)
                    .unwrap();
            plan.maps.iter().filter(|map| map.fate == MapTreatment::Released).count()
        };
        // At most the last map, after which nothing is computed.
        assert!(fates(Policy::Baseline) <= 1, "the baseline keeps everything");
        assert_eq!(
            fates(Policy::Overlap) > 1,
            mode == Mode::Inference,
            "inference gives maps back once they have been read"
        );
    }
}

#[test]
fn optimal_is_never_slower_than_another_policy_and_never_below_its_bound() {
    // All others: see the next test.
    for (name, batch) in [("lenet", 64), ("alexnet", 32), ("resnet18", 16), ("googlenet", 16)] {
        never_slower(name, batch, &[10, 60]);
    }
}

#[test]
#[ignore = "takes minutes"]
fn optimal_of_every_network_is_never_slower_than_another_policy() {
    for (name, _) in names().filter(|(name, _)| !name.starts_with("deepbench")) {
        never_slower(name, if name.starts_with("vgg") && name.len() > 5 { 4 } else { 16 }, &[10, 50, 90]);
    }
}

/// The budgets are these percentages of the way from the least to the most memory.
fn never_slower(name: &str, batch: usize, shares: &[u64]) {
    let costs = CostModel::h200();
    let network = Network::open(name).unwrap();
    let workload = Workload::new(&network, batch, Types::F32, Mode::Training).unwrap();
    let step = workload.step(&assumed(&workload), &costs).unwrap();
    let under = |policy, budget| plan(&step, &costs, &Options { policy, budget, ..Options::default() });
    let free = under(Policy::Optimal, Bytes::UNLIMITED).unwrap();
    assert_eq!((free.offloaded, free.recomputed), (Bytes::ZERO, Nanos::ZERO), "{name}");
    assert_eq!(free.step_time, free.baseline_time, "{name}");
    for share in shares {
        let budget = Bytes(free.min_feasible.0 + (free.most_live.0 - free.min_feasible.0) * share / 100);
        let optimal = under(Policy::Optimal, budget).unwrap();
        assert!(optimal.bound.unwrap() <= optimal.step_time, "{name}, {share}%");
        for policy in Policy::ALL.into_iter().filter(|policy| *policy != Policy::Optimal) {
            if let Ok(other) = under(policy, budget) {
                assert!(optimal.step_time <= other.step_time, "{name}, {share}%: {policy} is faster");
            }
        }
    }
}
