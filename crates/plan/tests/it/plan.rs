//! Plans of all built-in networks under all policies: accepted by the checker, within the budget, and tight.

use std::collections::HashMap;

use tightfit_conv::candidate::Candidates;
use tightfit_conv::{Algorithm, Candidate, DivisionCost, Operation, Problem, Types};
use tightfit_network::{Builder, Filters, LayerId, Network, Shape, Window, names};
use tightfit_plan::{
    ALIGNMENT, Algorithms, Budgets, CostModel, Fronts, Kind, MapTreatment, Mode, NetworkTensor, Options, Plan, Policy,
    Workload, check, plan,
};
use tightfit_units::{Bytes, Error, Nanos};

/// Candidates of every convolution at parts of the mini-batch: for each algorithm its name, how many times slower it is than the fastest, and its
/// workspace as a share of the tensors. `share` depends on the convolution's place and operation.
fn candidates<const ALGORITHMS: usize>(
    workload: &Workload<'_>,
    parts: &[usize],
    share: impl Fn(usize, usize) -> [(&'static str, u64, f64); ALGORITHMS],
) -> Fronts {
    let costs = CostModel::h200();
    let mut candidates: HashMap<Problem, Candidates> = HashMap::new();
    for (at, (layer, _)) in workload.network.convolutions().enumerate() {
        for (of, operation) in Operation::ALL.into_iter().enumerate() {
            let problem = workload.problem(layer, operation).unwrap();
            let mut all = Vec::new();
            for micro_batch in parts.iter().map(|parts| problem.batch() / parts).filter(|size| *size > 0) {
                let part = problem.with_batch(micro_batch).unwrap();
                all.extend(share(at, of).map(|(name, slow, share)| Candidate {
                    algorithm: Algorithm::new(name),
                    micro_batch,
                    time: Nanos(costs.convolution(&part).0 * slow),
                    workspace: Bytes((part.tensor_bytes().0 as f64 * share) as u64),
                }));
            }
            candidates.insert(problem, Candidates { candidates: all, cost: DivisionCost::default() });
        }
    }
    Fronts::of(&candidates).unwrap()
}

/// Three algorithms for every convolution, at the whole mini-batch and at half: the more workspace, the faster.
fn kernels(workload: &Workload<'_>) -> Fronts {
    candidates(workload, &[1, 2], |_, _| [("direct", 4, 0.0), ("gemm", 2, 0.25), ("fft", 1, 1.0)])
}

/// Algorithms that take a different share of workspace for each convolution, up to twice its tensors, like libraries' algorithms.
fn uneven_kernels(workload: &Workload<'_>) -> Fronts {
    candidates(workload, &[1, 2, 4], |at, of| {
        let eighths = ((5 * at + 7 * of) % 17) as f64;
        [("direct", 4, 0.0), ("gemm", 2, eighths.min(1.0) / 8.0), ("fft", 1, eighths / 8.0)]
    })
}

fn batch(network: &str) -> usize {
    if network.starts_with("vgg") && network.len() > 5 { 4 } else { 16 }
}

/// The networks that can be trained.
fn trainable() -> impl Iterator<Item = Network> {
    let all = names().map(|(name, _)| Network::open(name).unwrap());
    all.filter(|network| !network.name().starts_with("deepbench"))
}

fn accepted(workload: &Workload<'_>, plan: &Plan) {
    let budgets = Budgets { device: plan.options.budget, host: plan.options.host_budget };
    let violations = check(&workload.lower().unwrap().step, &plan.schedule, budgets);
    let first: Vec<_> = violations.iter().take(5).collect();
    assert!(violations.is_empty(), "{} {}: {} faults, {first:?}", plan.network, plan.options.policy, violations.len());
}

/// Plans without a limit, in the bytes of that plan, at the least budget, and halfway between the two; the last two only if the fastest algorithms
/// fit.
fn at_four_budgets(workload: &Workload<'_>, kernels: &Fronts, options: Options) -> Vec<Plan> {
    let at = |budget| {
        plan(&workload.step(kernels, &CostModel::h200()).unwrap(), &CostModel::h200(), &Options { budget, ..options })
    };
    let loose = at(Bytes::UNLIMITED).unwrap();
    let again = at(loose.peak).unwrap();
    assert!(again.step_time <= loose.step_time, "{} {}: slower in its own bytes", loose.network, options.policy);
    let mut plans = vec![again];
    for budget in [Bytes((loose.peak.0 + loose.min_feasible.0) / 2), loose.min_feasible] {
        match at(budget) {
            Err(error) if error.is_over_limit() && options.algorithms == Algorithms::Performance => {}
            plan => plans.push(plan.unwrap()),
        }
    }
    plans.push(loose);
    plans
}

fn accepted_and_tight(policy: Policy, networks: impl Iterator<Item = Network>) {
    for network in networks {
        let workload = Workload::new(&network, batch(network.name()), Types::F32, Mode::Training).unwrap();
        let kernels = kernels(&workload);
        for algorithms in Algorithms::ALL {
            let options = Options { policy, algorithms, ..Options::default() };
            let plans = at_four_budgets(&workload, &kernels, options);
            let fullest = plans[0].options.budget;
            for plan in plans {
                accepted(&workload, &plan);
                let (name, budget) = (network.name(), plan.options.budget);
                assert!(plan.peak <= budget && plan.most_live <= plan.peak);
                let waste = plan.fragmentation();
                // Halfway, overlap takes a faster step before a tighter one.
                let is_halfway = plan.min_feasible < budget && budget < fullest;
                let most = if policy == Policy::Overlap && is_halfway { 0.03 } else { 0.02 };
                assert!(waste <= most, "{name} {policy} {algorithms} {budget}: {waste}");
            }
        }
    }
}

#[test]
#[ignore = "takes minutes"]
fn every_policy_of_every_network() {
    Policy::ALL.into_iter().for_each(|policy| accepted_and_tight(policy, trainable()));
}

#[test]
#[ignore = "takes minutes"]
fn large_and_uneven_workspaces_of_the_deepest_networks_leave_no_holes() {
    ["resnet152", "vgg116", "vgg516"].into_iter().for_each(|name| without_holes(name, 32));
}

/// Branches, and sums; the ignored test has all networks.
#[test]
fn every_policy_of_few_networks() {
    for policy in Policy::ALL.into_iter().filter(|policy| *policy != Policy::Optimal) {
        accepted_and_tight(policy, ["googlenet", "resnet18"].into_iter().map(|name| Network::open(name).unwrap()));
    }
}

#[test]
fn large_and_uneven_workspaces_leave_no_holes() {
    ["alexnet-1col", "vgg19"].into_iter().for_each(|name| without_holes(name, 128));
}

fn without_holes(name: &str, batch: usize) {
    let network = Network::open(name).unwrap();
    let workload = Workload::new(&network, batch, Types::F32, Mode::Training).unwrap();
    let kernels = uneven_kernels(&workload);
    for policy in [Policy::VdnnAll, Policy::VdnnConv, Policy::VdnnDynamic, Policy::Overlap] {
        for (algorithms, divide) in
            [(Algorithms::Performance, false), (Algorithms::Fit, false), (Algorithms::Fit, true)]
        {
            let options = Options { policy, algorithms, divide, ..Options::default() };
            for plan in at_four_budgets(&workload, &kernels, options) {
                accepted(&workload, &plan);
                let (budget, waste) = (plan.options.budget, plan.fragmentation());
                assert!(waste <= 0.02, "{name} {policy} {algorithms} {budget}, division {divide}: {waste}");
            }
        }
    }
}

#[test]
fn the_fastest_algorithms_are_used_if_they_fit() {
    for name in ["alexnet-1col", "googlenet", "densenet40"] {
        let network = Network::open(name).unwrap();
        let workload = Workload::new(&network, 32, Types::F32, Mode::Training).unwrap();
        for kernels in [kernels(&workload), uneven_kernels(&workload)] {
            for policy in Policy::ALL {
                let at = |algorithms, budget| {
                    let options = Options { policy, algorithms, budget, ..Options::default() };
                    plan(&workload.step(&kernels, &CostModel::h200()).unwrap(), &CostModel::h200(), &options).unwrap()
                };
                let budget = at(Algorithms::Performance, Bytes::UNLIMITED).peak;
                let [fit, fastest] = [Algorithms::Fit, Algorithms::Performance].map(|kind| at(kind, budget).step_time);
                assert!(fit <= fastest, "{name} {policy} {budget}: {fit} with fit, {fastest} with performance");
            }
        }
    }
}

#[test]
fn the_least_budget_passes_and_one_unit_less_is_refused() {
    let costs = CostModel::h200();
    for name in ["digits-net", "alexnet", "googlenet", "resnet18"] {
        let network = Network::open(name).unwrap();
        let workload = Workload::new(&network, 16, Types::F32, Mode::Training).unwrap();
        let kernels = kernels(&workload);
        let of = |policy, budget| {
            let options = Options { policy, budget, ..Options::default() };
            plan(&workload.step(&kernels, &costs).unwrap(), &costs, &options)
        };
        let of_all = of(Policy::Optimal, Bytes::UNLIMITED).unwrap().least;
        for policy in Policy::ALL {
            let at = |budget| of(policy, budget);
            let least = at(Bytes::UNLIMITED).unwrap().min_feasible;
            let exact = at(least).unwrap();
            assert!(exact.peak <= least, "{name} {policy}");
            let error = at(Bytes(least.0 - ALIGNMENT)).unwrap_err();
            assert!(error.is_over_limit());
            // This holds even if the policy that needs less is the one that recomputes.
            let Error::OverBudget { needed, budget, layer, least: any, .. } = error else {
                panic!("{name} {policy}: {error}")
            };
            assert_eq!((needed, budget.0, any), (least, least.0 - ALIGNMENT, of_all), "{name} {policy}");
            assert!(network.layers().iter().any(|known| known.name == layer), "{layer}");
        }
    }
}

#[test]
fn a_network_that_fits_is_not_offloaded() {
    let costs = CostModel::h200();
    for name in ["vgg19", "googlenet", "resnet50"] {
        let network = Network::open(name).unwrap();
        let workload = Workload::new(&network, 16, Types::F32, Mode::Training).unwrap();
        for policy in [Policy::VdnnDynamic, Policy::Overlap] {
            let options = Options { policy, ..Options::default() };
            let plan = plan(&workload.step(&kernels(&workload), &costs).unwrap(), &costs, &options).unwrap();
            assert_eq!((plan.offloaded, plan.host), (Bytes::ZERO, Bytes::ZERO));
            assert_eq!(plan.step_time, plan.baseline_time);
            assert!(plan.maps.iter().all(|map| map.fate != MapTreatment::Offloaded));
            assert!(plan.simulation.stalls.is_empty());
        }
    }
}

#[test]
fn dynamic_logs_the_papers_passes_in_order() {
    let network = Network::open("vgg19").unwrap();
    let workload = Workload::new(&network, 16, Types::F32, Mode::Training).unwrap();
    let kernels = kernels(&workload);
    let at = |budget| {
        plan(
            &workload.step(&kernels, &CostModel::h200()).unwrap(),
            &CostModel::h200(),
            &Options { policy: Policy::VdnnDynamic, budget, ..Options::default() },
        )
        .unwrap()
    };
    let loose = at(Bytes::UNLIMITED);
    let (most, least) = (loose.peak, loose.decisions[0].needed);
    let order = ["all(m)", "none(p)", "conv(p)", "all(p)", "greedy conv", "greedy all", "all(m)"];
    let mut tried = 0;
    for share in (0..=10).rev() {
        let plan = at(Bytes(least.0 + (most.0 - least.0) / 10 * share));
        let attempts: Vec<&str> = plan.decisions.iter().map(|decision| decision.attempt.as_str()).collect();
        assert_eq!(attempts, order[..attempts.len()]);
        assert!(plan.decisions.last().is_some_and(|decision| decision.taken && decision.fits));
        assert!(plan.decisions[1..attempts.len() - 1].iter().all(|decision| !decision.taken && !decision.fits));
        assert!(attempts.len() >= tried, "less memory takes no fewer passes");
        tried = attempts.len();
    }
    assert!(tried >= 5);
    // Below the needs of all(m), prefetches that do not fit are left out.
    assert!(loose.min_feasible < least);
    let plan = at(Bytes(least.0 - ALIGNMENT));
    assert!(!plan.decisions[0].fits && plan.decisions.last().is_some_and(|last| last.attempt.ends_with("limited")));
    accepted(&workload, &plan);
}

/// Their maps alone would not fit.
#[test]
fn networks_full_of_normalizations_train_in_a_fraction_of_their_maps() {
    for (name, batch, budget) in [("resnet50", 64, Bytes::gib(2)), ("densenet40", 256, Bytes::gib(4))] {
        let network = Network::open(name).unwrap();
        let workload = Workload::new(&network, batch, Types::F32, Mode::Training).unwrap();
        let step = workload.step(&kernels(&workload), &CostModel::h200()).unwrap();
        for policy in [Policy::VdnnAll, Policy::VdnnDynamic] {
            let options = Options { policy, budget, ..Options::default() };
            let plan = plan(&step, &CostModel::h200(), &options).unwrap();
            accepted(&workload, &plan);
            let maps: u64 = plan.maps.iter().map(|map| map.bytes.0).sum();
            assert!(maps > budget.0 * 2 && plan.offloaded > budget, "{name} {policy}");
        }
    }
}

#[test]
fn vdnn_all_keeps_no_input_of_a_feature_layer() {
    for name in ["resnet18", "densenet40", "googlenet", "alexnet", "vgg16"] {
        let network = Network::open(name).unwrap();
        let workload = Workload::new(&network, 4, Types::F32, Mode::Training).unwrap();
        let tensors = workload.lower().unwrap().tensors;
        let step = workload.step(&kernels(&workload), &CostModel::h200()).unwrap();
        let options = Options { policy: Policy::VdnnAll, ..Options::default() };
        let plan = plan(&step, &CostModel::h200(), &options).unwrap();
        for map in &plan.maps {
            let NetworkTensor::FeatureMap(id) = tensors[map.map.0] else { panic!("{:?} is no map", map.map) };
            let reads = |layer: &LayerId| !network.layer(*layer).shape.extents().is_empty();
            let is_input = workload.maps.get(id).readers.iter().any(reads);
            let is_read_again = map.reuse_distance.is_some();
            assert_eq!(map.fate == MapTreatment::Offloaded, is_input && is_read_again, "{name} {:?}", map.layers);
        }
    }
}

#[test]
fn the_host_has_a_limit_too() {
    let network = Network::open("vgg16").unwrap();
    let workload = Workload::new(&network, 8, Types::F32, Mode::Training).unwrap();
    let options = Options { policy: Policy::VdnnAll, ..Options::default() };
    let at = |host_budget| {
        plan(
            &workload.step(&kernels(&workload), &CostModel::h200()).unwrap(),
            &CostModel::h200(),
            &Options { host_budget, ..options },
        )
    };
    let host = at(Bytes::UNLIMITED).unwrap().host;
    assert_eq!(at(host).unwrap().host, host);
    let error = at(Bytes(host.0 - 1)).unwrap_err();
    assert!(matches!(error, Error::OverHostBudget { needed, .. } if needed == host), "{error}");
}

#[test]
fn errors_state_the_least_host_budget() {
    let costs = CostModel::h200();
    for name in ["vgg16", "googlenet", "resnet18"] {
        let network = Network::open(name).unwrap();
        let workload = Workload::new(&network, 16, Types::F32, Mode::Training).unwrap();
        let kernels = kernels(&workload);
        for policy in [Policy::VdnnAll, Policy::VdnnConv, Policy::VdnnDynamic, Policy::Overlap] {
            let at = |options| plan(&workload.step(&kernels, &costs).unwrap(), &costs, &options);
            let options = Options { policy, ..Options::default() };
            let loose = at(options).unwrap();
            for share in 0..2 {
                let budget = Bytes(loose.min_feasible.0 + (loose.peak.0 - loose.min_feasible.0) * share / 2);
                let with = |host_budget| at(Options { budget, host_budget, ..options });
                let Err(error) = with(Bytes::ZERO) else { panic!("{name} {policy} {budget} without host memory") };
                let Error::OverHostBudget { needed, .. } = error else { panic!("{name} {policy} {budget}: {error}") };
                assert!(needed <= at(Options { budget, ..options }).unwrap().host, "{name} {policy} {budget}");
                assert!(with(needed).unwrap().host <= needed, "{name} {policy} {budget}");
                let error = with(Bytes(needed.0 - 1)).unwrap_err();
                let told = matches!(error, Error::OverHostBudget { needed: told, .. } if told == needed);
                assert!(told, "{name} {policy} {budget}: {error}");
            }
        }
    }
}

#[test]
fn inference_keeps_the_inputs_of_the_next_layer() {
    let network = Network::open("vgg16").unwrap();
    let workload = Workload::new(&network, 8, Types::F32, Mode::Inference).unwrap();
    for policy in Policy::ALL {
        let options = Options { policy, ..Options::default() };
        let plan = plan(&workload.step(&kernels(&workload), &CostModel::h200()).unwrap(), &CostModel::h200(), &options)
            .unwrap();
        accepted(&workload, &plan);
        assert_eq!((plan.offloaded, plan.at_most.get(Kind::Momentum)), (Bytes::ZERO, Bytes::ZERO));
    }
}

#[test]
fn halves_have_master_weights_and_half_the_maps() {
    let network = Network::open("resnet18").unwrap();
    let single = Workload::new(&network, 8, Types::F32, Mode::Training).unwrap();
    let half = Workload::new(&network, 8, Types::F16F32, Mode::Training).unwrap();
    let options = Options { algorithms: Algorithms::Memory, policy: Policy::Baseline, ..Options::default() };
    let [single, half] = [single, half].map(|workload| {
        let plan = plan(&workload.step(&kernels(&workload), &CostModel::h200()).unwrap(), &CostModel::h200(), &options)
            .unwrap();
        accepted(&workload, &plan);
        plan
    });
    assert!(half.at_most.get(Kind::FeatureMaps).0 < single.at_most.get(Kind::FeatureMaps).0 * 51 / 100);
    assert!(half.at_most.get(Kind::Weights) > single.at_most.get(Kind::Weights));
}

/// conv1 (1x8x8 to 2x8x8), relu in place, pool to 2x4x4, fc to 3, loss; a mini-batch of 64, every length rounded up to 256.
///
/// ```text
/// input    64·64·4      = 16384     conv1    128·64·4 = 32768     pool 32·64·4 = 8192    fc 3·64·4 = 768
/// weights  conv1 (18 and 2 biases at 128: 130·4 = 520 -> 768), fc (96 and 3 biases at 128: 131·4 = 524 -> 768), three times
/// ```
#[test]
fn bytes_of_a_small_network_by_hand() {
    let mut net = Builder::new("small");
    net.input(Shape::image(1, 8, 8)).conv("conv1", Filters::new(2, 3).pad(1)).relu();
    net.max_pool("pool", Window::new(2, 2)).flatten().fully_connected("fc", 3).softmax_loss();
    let network = net.finish().unwrap();
    let workload = Workload::new(&network, 64, Types::F32, Mode::Training).unwrap();
    let kernels = Fronts::assumed(&workload, &CostModel::cpu()).unwrap();
    let plan_of = |policy| {
        let options = Options { policy, algorithms: Algorithms::Memory, ..Options::default() };
        plan(&workload.step(&kernels, &CostModel::cpu()).unwrap(), &CostModel::cpu(), &options).unwrap()
    };
    let weights = 3 * (768 + 768);
    let (input, conv, pool, fc, labels) = (16384, 32768, 8192, 768, 256);
    // Backward through the pooling all maps are there, with the gradients of the pooling's input and output.
    let baseline = plan_of(Policy::Baseline);
    assert_eq!(baseline.most_live, Bytes(weights + input + conv + pool + fc + labels + conv + pool));
    assert_eq!(baseline.peak, baseline.most_live);
    // At the same moment, without unneeded tensors: the map of the loss stays to the end, the labels do not.
    let all = plan_of(Policy::VdnnAll);
    assert_eq!(all.most_live, Bytes(weights + input + conv + pool + fc + conv + pool));
    assert_eq!(all.host, Bytes(input + conv));
    assert_eq!(all.offloaded, Bytes(input + conv));
    // The input moves under conv, and comes back while the pooling goes backward.
    let conv_only = plan_of(Policy::VdnnConv);
    assert_eq!(conv_only.offloaded, Bytes(input));
    // The paper's: weights once, all maps, twice the largest gradient.
    assert_eq!(baseline.paper.baseline, Bytes(520 + 524 + input + conv + pool + fc + labels + 2 * conv));
}
