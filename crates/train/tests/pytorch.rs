//! Three training steps compared with PyTorch's in 64 bits (`scripts/record-pytorch.py`).

use tightfit_conv::Types;
use tightfit_network::{Builder, Filters, LayerId, LayerKind, Network, Rule, Sgd, Shape, Window};
use tightfit_plan::{Budgets, Checked, Mode, NetworkTensor, ParameterKind, Workload, channel_stride};
use tightfit_test_support::train;
use tightfit_train::machine::cpu::{CpuMachine, Options};
use tightfit_train::{Engine, Learned, Poison, Solver};

/// Numbers from -1 to 1 by their place, as in the script.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| (((i * 37 + i / 7 * 11 + seed * 29) % 101) as f32 - 50.0) / 50.0).collect()
}

fn network() -> Network {
    let mut net = Builder::new("recorded");
    net.input(Shape::image(3, 10, 10));
    let relu = net.conv("conv1", Filters::new(6, 3).pad(1)).relu().here();
    net.layer("lrn", LayerKind::Lrn { size: 3, alpha: 0.5, beta: 0.75, k: 1.0 }, &[relu]);
    let from = net.max_pool("pool1", Window::new(3, 2).ceil()).here();
    let a = net.conv("a", Filters::new(4, 1).no_bias()).batch_norm().relu().here();
    let b = net.at(from).conv("b", Filters::new(6, 3).pad(1).groups(2)).relu().here();
    let join = net.concat("join", &[a, b]).here();
    let c = net.conv("c", Filters::new(10, 3).pad(1)).here();
    net.add("sum", &[c, join]).relu().average_pool("pool2", Window::new(3, 2).pad(1));
    net.flatten().fully_connected("fc", 5).softmax_loss();
    net.finish().unwrap()
}

/// The parameters' names in the record, with their layer and where they lie in its block.
fn parameters(workload: &Workload<'_>) -> Vec<(String, LayerId, std::ops::Range<usize>)> {
    let mut all = Vec::new();
    for (id, layer) in workload.network.iter() {
        for parameter in workload.parameters(id) {
            let kind = match parameter.kind {
                ParameterKind::Weight => "weight",
                ParameterKind::Bias => "bias",
                ParameterKind::Scale => "scale",
                ParameterKind::Shift => "shift",
            };
            let range = parameter.offset..parameter.offset + parameter.elements;
            all.push((format!("{}.{kind}", layer.name), id, range));
        }
    }
    all
}

#[test]
fn losses_gradients_and_statistics_are_those_of_pytorch() {
    let record: serde_json::Value = serde_json::from_str(include_str!("recorded/pytorch.json")).unwrap();
    let recorded = |value: &serde_json::Value| -> Vec<f64> {
        value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
    };
    let near = |what: &str, given: &[f32], truth: &[f64]| {
        let largest = truth.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
        assert_eq!(given.len(), truth.len(), "{what}");
        for (i, (given, truth)) in given.iter().zip(truth).enumerate() {
            // Sums of some hundred products in 32 bits, and three layers' worth of them.
            assert!((f64::from(*given) - truth).abs() <= 2e-5 * largest, "{what}[{i}]: {given}, not {truth}");
        }
    };
    let network = network();
    let workload = Workload::new(&network, 4, Types::F32, Mode::Training).unwrap();
    let schedule = train::everything_resident(&workload, "implicit-gemm", 4);
    let schedule = Checked::new(&workload.lower().unwrap().step, schedule, Budgets::default()).unwrap();
    let machine = CpuMachine::new(Options { threads: Some(train::THREADS), ..Options::default() });
    let solver =
        Solver { rule: Rule::Sgd(Sgd { learning_rate: 0.1, momentum: 0.9, weight_decay: 0.01 }), ..Solver::default() };
    let mut engine = Engine::new(&workload, &schedule, machine, solver, Poison::Freed).unwrap();

    let mut first = Learned::new();
    for (seed, (name, layer, range)) in parameters(&workload).into_iter().enumerate() {
        let around = if name.ends_with(".scale") { 1.0 } else { 0.0 };
        let block = first
            .entry(NetworkTensor::Weights(layer))
            .or_insert_with(|| vec![0.0; workload.bytes(NetworkTensor::Weights(layer)).0 as usize / 4]);
        let given: Vec<f32> = numbers(range.len(), seed).iter().map(|number| around + 0.4 * number).collect();
        block[range].copy_from_slice(&given);
    }
    engine.take_over(&first).unwrap();

    for step in 0..3 {
        let labels: Vec<u32> = (0..4).map(|n| (3 * n + step) % 5).collect();
        let outcome = engine.step(&numbers(4 * 300, 50 + step as usize), &labels).unwrap();
        near(&format!("loss {step}"), &[outcome.loss as f32], &recorded(&record["losses"])[step as usize..][..1]);
        if step != 1 {
            for (name, layer, range) in parameters(&workload) {
                let gradients = engine.read(NetworkTensor::WeightGradient(layer)).unwrap().unwrap();
                let truth = recorded(&record["gradients"][step as usize / 2][&name]);
                near(&format!("step {step} {name}"), &gradients[range], &truth);
            }
        }
    }
    let (normalized, _) = network.iter().find(|(_, layer)| layer.name == "a.bn").unwrap();
    let statistics = engine.read(NetworkTensor::Statistics(normalized)).unwrap().unwrap();
    let truth = recorded(&record["statistics"]);
    near("running means", &statistics[..4], &truth[..4]);
    near("running variances", &statistics[channel_stride(4)..][..4], &truth[4..]);
}
