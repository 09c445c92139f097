//! Three training steps from the weights of an ONNX file, compared with PyTorch's steps from the same weights in 64 bits
//! (`scripts/export-onnx.py --small`).

use std::path::Path;

use tightfit_conv::Types;
use tightfit_network::{Rule, Sgd};
use tightfit_onnx::{Model, Numbers, Slot};
use tightfit_plan::{Budgets, Checked, Mode, Workload};
use tightfit_test_support::train;
use tightfit_train::machine::cpu::{CpuMachine, Options};
use tightfit_train::{Engine, Error, Poison, Solver, replace_weights};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/recorded");

/// Numbers from -1 to 1 by their place, as in the script.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    (0..count).map(|i| (((i * 37 + i / 7 * 11 + seed * 29) % 101) as f32 - 50.0) / 50.0).collect()
}

/// Takes three steps from the weights of each export of a model, and compares the losses.
fn compare(name: &str, record: &str) {
    let record: serde_json::Value = serde_json::from_str(record).unwrap();
    for form in ["script", "dynamo"] {
        let model = Model::read(&Path::new(FOLDER).join(format!("{name}.{form}.onnx"))).unwrap();
        let workload = Workload::new(model.network(), 4, Types::F32, Mode::Training).unwrap();
        let schedule = train::everything_resident(&workload, "implicit-gemm", 4);
        let schedule = Checked::new(&workload.lower().unwrap().step, schedule, Budgets::default()).unwrap();
        let machine = CpuMachine::new(Options { threads: Some(train::THREADS), ..Options::default() });
        let solver = Solver {
            rule: Rule::Sgd(Sgd { learning_rate: 0.1, momentum: 0.9, weight_decay: 0.01 }),
            ..Solver::default()
        };
        let mut engine = Engine::new(&workload, &schedule, machine, solver, Poison::Freed).unwrap();

        let mut learned = engine.learned().unwrap();
        let weights = model.weights().unwrap();
        let read: usize = weights.iter().filter(|of| of.slot < Slot::Mean).map(|of| of.numbers.len()).sum();
        assert_eq!(read, model.network().parameters(), "{name} {form}");
        replace_weights(&workload, &mut learned, &weights).unwrap();
        engine.take_over(&learned).unwrap();
        for step in 0..3 {
            let labels: Vec<u32> = (0..4).map(|n| (3 * n + step) % 5).collect();
            let outcome = engine.step(&numbers(4 * 300, 50 + step as usize), &labels).unwrap();
            let truth = record["losses"][step as usize].as_f64().unwrap();
            // Sums of some hundred products in 32 bits, and a few layers' worth of them.
            let near = (outcome.loss - truth).abs() <= 2e-5 * truth;
            assert!(near, "{name} {form}, step {step}: {}, not {truth}", outcome.loss);
        }
    }
}

#[test]
fn losses_from_the_weights_of_a_file_are_those_of_pytorch() {
    compare("small", include_str!("recorded/small.json"));
}

#[test]
fn losses_of_gates_activations_and_layer_normalizations_are_those_of_pytorch() {
    compare("gated", include_str!("recorded/gated.json"));
}

#[test]
fn losses_of_resized_maps_are_those_of_pytorch() {
    compare("resized", include_str!("recorded/resized.json"));
}

#[test]
fn weights_of_another_length_are_refused() {
    let model = Model::read(&Path::new(FOLDER).join("small.script.onnx")).unwrap();
    let workload = Workload::new(model.network(), 4, Types::F32, Mode::Training).unwrap();
    let mut weights = model.weights().unwrap();
    weights[0].numbers.pop();
    let given = weights[0].numbers.len();
    let Err(Error::Batch { what, wanted }) = replace_weights(&workload, &mut Default::default(), &weights) else {
        panic!("taken")
    };
    assert_eq!((what, wanted), (format!("{given} numbers for Weight of layer first"), (given + 1).to_string()));
    let none = [Numbers { slot: Slot::Scale, ..weights[0].clone() }];
    let Err(Error::Batch { wanted, .. }) = replace_weights(&workload, &mut Default::default(), &none) else {
        panic!("taken")
    };
    assert_eq!(wanted, "none");
}
