//! Testing runs in the bytes of the plan for training.

use std::collections::HashMap;

use tightfit_conv::candidate::Candidates;
use tightfit_conv::{DivisionCost, Operation, Types};
use tightfit_network::{Builder, Filters, LayerId, Shape};
use tightfit_plan::{Algorithms, CostModel, Fronts, Mode, NetworkTensor, Options as Asked, Policy, Workload, plan};
use tightfit_test_support::train::{THREADS, configuration};
use tightfit_train::data;
use tightfit_train::machine::cpu::{CpuMachine, Options};
use tightfit_train::{Engine, Poison, Solver, evaluate};
use tightfit_units::Bytes;

const BATCH: usize = 32;

fn machine() -> CpuMachine {
    CpuMachine::new(Options { threads: Some(THREADS), ..Options::default() })
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
