//! Networks that torchvision has and PyTorch exports, trained for three steps here and in PyTorch, in 64 bits there.
//!
//! Needs a Python with torch, torchvision and onnx, named in `TIGHTFIT_TORCH_PYTHON`:
//!
//! ```console
//! TIGHTFIT_TORCH_PYTHON=.venv/bin/python cargo test -p tightfit-train --test steps -- --ignored
//! ```

use std::process::Command;

use serde_json::Value;
use tightfit_conv::Types;
use tightfit_network::{Rule, Sgd};
use tightfit_onnx::Model;
use tightfit_plan::{Budgets, Checked, Mode, Workload};
use tightfit_test_support::train;
use tightfit_train::machine::cpu::{CpuMachine, Options};
use tightfit_train::{Engine, Poison, Solver, replace_weights};

/// Largest difference of a loss from 64-bit arithmetic: a share of it, or a multiple of PyTorch's difference in 32 bits.
/// Batch normalization over few positions magnifies rounding.
const MAX_RELATIVE_ERROR: f64 = 1e-3;
const MAX_ERROR_RATIO: f64 = 2.0;

/// Trains torchvision's network in PyTorch and here, and compares the losses.
fn compare(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let python = std::env::var("TIGHTFIT_TORCH_PYTHON").expect("name a Python with torchvision");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/train-torchvision.py");
    assert!(Command::new(python).arg(script).arg(name).arg(folder.path()).status().unwrap().success());
    let record: Value =
        serde_json::from_str(&std::fs::read_to_string(folder.path().join("record.json")).unwrap()).unwrap();
    let samples = std::fs::read(folder.path().join("samples.f32")).unwrap();
    let samples: Vec<f32> = samples.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect();

    let model = Model::read(&folder.path().join("net.onnx")).unwrap();
    let batches = record["labels"].as_array().unwrap();
    let batch = batches[0].as_array().unwrap().len();
    let workload = Workload::new(model.network(), batch, Types::F32, Mode::Training).unwrap();
    let schedule = train::everything_resident(&workload, "implicit-gemm", batch);
    let schedule = Checked::new(&workload.lower().unwrap().step, schedule, Budgets::default()).unwrap();
    let machine = CpuMachine::new(Options { threads: Some(train::THREADS), ..Options::default() });
    let rule = Rule::Sgd(Sgd { learning_rate: 0.002, momentum: 0.9, weight_decay: 5e-4 });
    let mut engine =
        Engine::new(&workload, &schedule, machine, Solver { rule, ..Solver::default() }, Poison::Freed).unwrap();
    let mut learned = engine.learned().unwrap();
    replace_weights(&workload, &mut learned, &model.weights().unwrap()).unwrap();
    engine.take_over(&learned).unwrap();
    let length = samples.len() / batches.len();
    for (step, (samples, labels)) in samples.chunks(length).zip(batches).enumerate() {
        let labels: Vec<u32> = labels.as_array().unwrap().iter().map(|label| label.as_u64().unwrap() as u32).collect();
        let loss = engine.step(samples, &labels).unwrap().loss;
        let [truth, narrow] = ["losses", "narrow"].map(|of| record[of][step].as_f64().unwrap());
        let shown = format!("{name}, step {step}: {loss:.6}; PyTorch {narrow:.6}, in 64 bits {truth:.6}");
        println!("{shown}");
        assert!(
            (loss - truth).abs() <= (MAX_RELATIVE_ERROR * truth).max(MAX_ERROR_RATIO * (narrow - truth).abs()),
            "{shown}"
        );
    }
}

macro_rules! takes_the_steps_of_pytorch {
    ($($test:ident $name:literal)*) => {$(
        #[test]
        #[ignore = "needs a Python with torchvision, named in TIGHTFIT_TORCH_PYTHON"]
        fn $test() {
            compare($name);
        }
    )*};
}

takes_the_steps_of_pytorch! {
    resnet50_takes_the_steps_of_pytorch "resnet50"
    densenet121_takes_the_steps_of_pytorch "densenet121"
    mobilenet_v3_takes_the_steps_of_pytorch "mobilenet_v3_large"
    efficientnet_takes_the_steps_of_pytorch "efficientnet_b0"
    convnext_takes_the_steps_of_pytorch "convnext_tiny"
}
