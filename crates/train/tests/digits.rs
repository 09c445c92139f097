//! A small network learns real digits under every plan.

use std::collections::HashMap;
use std::sync::Arc;

use tightfit_conv::candidate::Candidates;
use tightfit_conv::{DivisionCost, Operation, Types};
use tightfit_network::{Builder, Filters, LayerId, Network, Rule, Sgd, Shape};
use tightfit_plan::{
    Action, Algorithms, CostModel, Fronts, Mode, NetworkTensor, Options as Asked, Plan, Policy, Workload, plan,
};
use tightfit_test_support::train::{THREADS, configuration};
use tightfit_train::data::{self, Loader};
use tightfit_train::machine::cpu::{CpuMachine, Options};
use tightfit_train::{Engine, Poison, Solver, evaluate};
use tightfit_units::Bytes;

const BATCH: usize = 32;

fn machine() -> CpuMachine {
    CpuMachine::new(Options { threads: Some(THREADS), ..Options::default() })
}

/// Accuracy on the test part after eight passes over the other.
fn learn(workload: &Workload<'_>, plan: &Plan) -> f64 {
    let input = workload.network.layers()[0].shape;
    let digits = data::open("digits", input, 10, 0).unwrap();
    let solver = Solver { rule: Rule::Sgd(Sgd { learning_rate: 0.02, ..Sgd::default() }), ..Solver::default() };
    let mut engine = Engine::new(workload, &plan.schedule, machine(), solver, Poison::Nothing).unwrap();
    let steps = 8 * digits.train.len().div_ceil(BATCH);
    for batch in Loader::shuffled(Arc::clone(&digits.train), BATCH, 1).unwrap().take(steps) {
        let batch = batch.unwrap();
        engine.step(&batch.samples, &batch.labels).unwrap();
    }
    let learned = engine.learned().unwrap();
    let score = evaluate(machine(), workload, &plan.schedule, &learned, digits.test.unwrap()).unwrap();
    assert_eq!(score.samples, 599);
    score.accuracy()
}

#[test]
fn every_plan_reaches_97_percent() {
    let network = Network::open("digits-net").unwrap();
    let workload = Workload::new(&network, BATCH, Types::F32, Mode::Training).unwrap();
    // An algorithm whose workspace grows with the samples: where there is little room, mini-batches are divided.
    let mut candidates = HashMap::new();
    for (layer, _) in network.convolutions() {
        for operation in Operation::ALL {
            let problem = workload.problem(layer, operation).unwrap();
            let parts = [32, 8].map(|size| configuration(&problem, "explicit-gemm", size).parts()[0].clone());
            candidates.insert(problem, Candidates { candidates: parts.to_vec(), cost: DivisionCost::default() });
        }
    }
    let kernels = Fronts::of(&candidates).unwrap();
    let planned = |policy, budget| {
        let asked = Asked { policy, algorithms: Algorithms::Fit, divide: true, budget, ..Asked::default() };
        plan(&workload.step(&kernels, &CostModel::cpu()).unwrap(), &CostModel::cpu(), &asked).unwrap()
    };
    let roomy = planned(Policy::VdnnDynamic, Bytes::gib(1));
    let least = planned(Policy::VdnnDynamic, roomy.min_feasible);
    let divided = least.schedule.instructions.iter().filter(|step| match &step.action {
        Action::Compute(compute) => compute.configuration.as_ref().is_some_and(|found| found.is_divided()),
        _ => false,
    });
    assert!(divided.count() > 0 && least.offloaded > Bytes::ZERO, "the least budget divides and offloads");
    assert!(least.peak < least.baseline);
    println!(
        "least budget {}: {:.1} % of the baseline",
        least.peak,
        100.0 * least.peak.0 as f64 / least.baseline.0 as f64
    );
    let all = planned(Policy::VdnnAll, Bytes::gib(1));
    let baseline = planned(Policy::Baseline, Bytes::gib(1));
    for (name, plan) in [("baseline", baseline), ("vdnn-all", all), ("vdnn-dynamic at its least", least)] {
        let accuracy = learn(&workload, &plan);
        println!("{name}: {:.2} %", 100.0 * accuracy);
        assert!(accuracy >= 0.97, "{name}: {accuracy}");
    }
}

#[test]
fn testing_fits_where_training_fitted() {
    let mut net = Builder::new("chain");
    net.input(Shape::image(1, 8, 8));
    for number in 0..30 {
        net.conv(format!("conv{number}"), Filters::new(16, 3).pad(1)).relu();
    }
    net.global_average_pool("pool").flatten().fully_connected("fc", 10).softmax_loss();
    let network = net.finish().unwrap();
    let workload = Workload::new(&network, BATCH, Types::F32, Mode::Training).unwrap();
    let mut candidates = HashMap::new();
    for (layer, _) in network.convolutions() {
        for operation in Operation::ALL {
            let problem = workload.problem(layer, operation).unwrap();
            let part = configuration(&problem, "explicit-gemm", 4).parts()[0].clone();
            candidates.insert(problem, Candidates { candidates: vec![part], cost: DivisionCost::default() });
        }
    }
    let kernels = Fronts::of(&candidates).unwrap();
    let planned = |budget| {
        let asked = Asked { policy: Policy::VdnnAll, algorithms: Algorithms::Memory, budget, ..Asked::default() };
        plan(&workload.step(&kernels, &CostModel::cpu()).unwrap(), &CostModel::cpu(), &asked).unwrap()
    };
    let least = planned(planned(Bytes::gib(1)).min_feasible);
    let maps: u64 = network.convolutions().map(|(layer, _)| workload.bytes(map_of(&workload, layer)).0).sum();
    assert!(maps > least.schedule.device_bytes.0, "{maps} in {}", least.schedule.device_bytes);
    let digits = data::open("digits", network.layers()[0].shape, 10, 0).unwrap();
    let mut engine = Engine::new(&workload, &least.schedule, machine(), Solver::default(), Poison::Nothing).unwrap();
    let learned = engine.learned().unwrap();
    let score = evaluate(machine(), &workload, &least.schedule, &learned, digits.test.unwrap()).unwrap();
    assert_eq!(score.samples, 599);
}

/// The feature map that a layer writes.
fn map_of(workload: &Workload<'_>, layer: LayerId) -> NetworkTensor {
    NetworkTensor::FeatureMap(workload.maps.written_by(layer))
}
