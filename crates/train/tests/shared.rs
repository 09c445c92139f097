//! Layers that share numbers train them as one tensor.

use std::collections::HashMap;
use std::time::Duration;

use tightfit_conv::candidate::Candidates;
use tightfit_conv::{DivisionCost, Types};
use tightfit_network::{AdamW, LayerId, Network, Rule, Sgd};
use tightfit_onnx::{Shared, Slot};
use tightfit_plan::{
    Algorithms, Budgets, Checked, CostModel, Fronts, Mode, NetworkTensor, Options as Asked, Schedule, Stream, Workload,
    channel_stride, plan,
};
use tightfit_test_support::train::{THREADS, batch, configuration, everything_resident, sums};
use tightfit_train::machine::cpu::{CpuMachine, Options};
use tightfit_train::{Engine, Error, Learned, Poison, Solver};
use tightfit_units::Nanos;

const BATCH: usize = 4;
const ALGORITHM: &str = "explicit-gemm";

fn layer(network: &Network, name: &str) -> LayerId {
    network.iter().find(|(_, layer)| layer.name == name).unwrap().0
}

/// The convolutions and normalizations of the second block use the numbers of the first.
fn shared(network: &Network) -> Vec<Shared> {
    let both = |name: &str, slot: Slot| Shared {
        name: name.to_owned(),
        is_initializer: true,
        uses: ["s1", "s2"].map(|block| (layer(network, &format!("{block}.{name}")), slot)).to_vec(),
    };
    let mut all = vec![both("3x3", Slot::Weight), both("5x5", Slot::Weight)];
    all.extend([Slot::Scale, Slot::Shift, Slot::Mean, Slot::Variance].map(|slot| both("3x3.bn", slot)));
    all
}

fn sgd(learning_rate: f32, momentum: f32, weight_decay: f32) -> Rule {
    Rule::Sgd(Sgd { learning_rate, momentum, weight_decay })
}

/// The kept tensors before and after `steps` steps from equal numbers.
fn train(
    workload: &Workload<'_>,
    schedule: &Schedule,
    (rule, slow): (Rule, Option<usize>),
    shared: &[Shared],
    steps: u64,
) -> Result<[Learned; 2], Error> {
    let budgets = Budgets { device: schedule.device_bytes, host: schedule.host_bytes };
    let checked = Checked::new(&workload.lower().unwrap().step, schedule.clone(), budgets).unwrap();
    let mut delays = [Duration::ZERO; Stream::ALL.len()];
    slow.iter().for_each(|&slow| delays[slow] = Duration::from_micros(300));
    let machine = CpuMachine::new(Options { threads: Some(THREADS), delays, ..Options::default() });
    let solver = Solver { rule, ..Solver::default() };
    let mut engine = Engine::with_shared(workload, &checked, machine, solver, Poison::Freed, shared)?;
    // Equal numbers to begin with, also where they are not shared.
    let mut before = engine.kept()?;
    for name in ["3x3", "5x5", "3x3.bn"] {
        let [one, other] = ["s1", "s2"].map(|block| layer(workload.network, &format!("{block}.{name}")));
        let numbers = before[&NetworkTensor::Weights(one)].clone();
        if !shared.is_empty() {
            assert_eq!(before[&NetworkTensor::Weights(other)], numbers, "{name}");
        }
        before.insert(NetworkTensor::Weights(other), numbers);
    }
    engine.take_over(&before)?;
    for step in 0..steps {
        let (samples, labels) = batch(workload, step);
        engine.step(&samples, &labels)?;
    }
    Ok([before, engine.kept()?])
}

#[test]
fn the_gradients_of_all_uses_are_added_and_statistics_move_for_each() {
    let network = sums();
    let workload = Workload::new(&network, BATCH, Types::F32, Mode::Training).unwrap();
    let schedule = everything_resident(&workload, ALGORITHM, BATCH);
    let rule = (sgd(0.5, 0.0, 0.0), None);
    let [before, apart] = train(&workload, &schedule, rule, &[], 1).unwrap();
    let [_, together] = train(&workload, &schedule, rule, &shared(&network), 1).unwrap();
    for name in ["3x3", "5x5", "3x3.bn"] {
        let [one, other] = ["s1", "s2"].map(|block| layer(&network, &format!("{block}.{name}")));
        let of = |all: &Learned, layer: LayerId| all[&NetworkTensor::Weights(layer)].clone();
        assert_eq!(of(&together, one), of(&together, other), "{name}");
        let steps = of(&apart, one).into_iter().zip(of(&apart, other)).zip(of(&before, one));
        let (mut most, mut moved) = (0f32, 0f32);
        for (got, ((one, other), before)) in of(&together, one).into_iter().zip(steps) {
            most = most.max((got - (one + other - before)).abs());
            moved = moved.max((other - before).abs());
        }
        assert!(most < 1e-6 && moved > 1e-4, "{name}: {most}, of {moved}");
    }
    let [one, other] = ["s1", "s2"].map(|block| layer(&network, &format!("{block}.3x3.bn")));
    let of = |all: &Learned, layer: LayerId| all[&NetworkTensor::Statistics(layer)].clone();
    let channels = network.layer(one).shape.channels();
    for first in [0, channel_stride(channels)] {
        for at in first..first + channels {
            let (before, [one, other]) = (of(&before, one)[at], [one, other].map(|layer| of(&apart, layer)[at]));
            let got = of(&together, layer(&network, "s1.3x3.bn"))[at];
            assert!((got - (other + 0.9 * (one - before))).abs() < 1e-6, "{at}: {got}");
        }
    }
    assert_eq!(of(&together, one), of(&together, other));
    // Layers that are not shared stay apart.
    let apart = ["s1.1x1", "s2.1x1"].map(|name| together[&NetworkTensor::Weights(layer(&network, name))].clone());
    assert_ne!(apart[0], apart[1]);
}

#[test]
fn copies_stay_equal_with_any_solver_and_with_branches_side_by_side() {
    let network = sums();
    let shared = shared(&network);
    let adamw = Rule::AdamW(AdamW::default());
    for rule in [sgd(0.05, 0.9, 0.01), adamw] {
        let workload = Workload::new(&network, BATCH, Types::F32, Mode::Training).unwrap();
        let workload = workload.with_adamw(matches!(rule, Rule::AdamW(_)));
        let mut all = HashMap::new();
        for problem in workload.problems().unwrap() {
            let candidates = configuration(&problem, ALGORITHM, BATCH).parts().to_vec();
            all.insert(problem, Candidates { candidates, cost: DivisionCost::default() });
        }
        let costs = CostModel { side_by_side: 1.9, launch: Nanos::ZERO, ..CostModel::cpu() };
        let asked = Asked { algorithms: Algorithms::Memory, divide: false, lanes: true, ..Asked::default() };
        let step = workload.step(&Fronts::of(&all).unwrap(), &costs).unwrap();
        let beside = plan(&step, &costs, &asked).unwrap().schedule;
        assert!(beside.lanes() > 1);
        let resident = everything_resident(&workload, ALGORITHM, BATCH);
        let [_, want] = train(&workload, &resident, (rule, None), &shared, 4).unwrap();
        for slow in [None, Some(0), Some(3), Some(4)] {
            let [_, got] = train(&workload, &beside, (rule, slow), &shared, 4).unwrap();
            assert!(got == want, "{rule:?}, slow {slow:?}");
        }
        for name in ["3x3", "5x5", "3x3.bn"] {
            let [one, other] = ["s1", "s2"].map(|block| layer(&network, &format!("{block}.{name}")));
            assert_eq!(want[&NetworkTensor::Weights(one)], want[&NetworkTensor::Weights(other)], "{name}");
            assert_eq!(want[&NetworkTensor::Momentum(one)], want[&NetworkTensor::Momentum(other)], "{name}");
        }
    }
}

#[test]
fn sharing_tensors_of_different_lengths_is_refused() {
    let network = sums();
    let workload = Workload::new(&network, BATCH, Types::F32, Mode::Training).unwrap();
    let schedule = everything_resident(&workload, ALGORITHM, BATCH);
    let uses = ["s1.3x3", "s2.5x5"].map(|name| (layer(&network, name), Slot::Weight)).to_vec();
    let wrong = [Shared { name: "w".to_owned(), is_initializer: true, uses }];
    let budgets = Budgets { device: schedule.device_bytes, host: schedule.host_bytes };
    let checked = Checked::new(&workload.lower().unwrap().step, schedule, budgets).unwrap();
    let machine = CpuMachine::new(Options::default());
    let refused = Engine::with_shared(&workload, &checked, machine, Solver::default(), Poison::Nothing, &wrong);
    let Err(Error::Unsound { what }) = refused else { panic!("taken") };
    assert_eq!(what, "w cannot be trained as one: layer s2.5x5 keeps it in another length or order");
}
