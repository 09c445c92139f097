//! Weights of torchvision's networks lead to torchvision's outputs, and are saved under their original names.
//!
//! Needs a Python with torch and torchvision, named in `TIGHTFIT_TORCH_PYTHON`:
//!
//! ```text
//! TIGHTFIT_TORCH_PYTHON=.venv/bin/python cargo test -p tightfit-train --test torchvision -- --ignored
//! ```

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::process::Command;

use tightfit_conv::candidate::Candidates;
use tightfit_conv::{DivisionCost, Operation, Types};
use tightfit_network::Network;
use tightfit_onnx::Model;
use tightfit_plan::{CostModel, Fronts, Mode, Options as Asked, Policy, Workload, plan};
use tightfit_test_support::train::{THREADS, configuration};
use tightfit_train::checkpoint::Names;
use tightfit_train::machine::cpu::{CpuMachine, Options};
use tightfit_train::{Checkpoint, Engine, Poison, Progress, Solver, checkpoint};

const BATCH: usize = 2;

fn floats(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect()
}

/// The names of a file's tensors.
fn tensors(path: &Path) -> BTreeSet<String> {
    let bytes = std::fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let names = header.as_object().unwrap().keys().cloned();
    names.filter(|name| name != "__metadata__" && !name.ends_with("num_batches_tracked")).collect()
}

/// Runs torchvision's network in torchvision and here, and compares.
fn compare(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let python = std::env::var("TIGHTFIT_TORCH_PYTHON").expect("name a Python with torchvision");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run-torchvision.py");
    let status = Command::new(python).args([script, name]).arg(folder.path()).status().unwrap();
    assert!(status.success());
    let at = |file: &str| folder.path().join(file);
    let model = (name == "googlenet").then(|| Model::read(&at("googlenet.onnx")).unwrap());
    let names = |network: &Network| model.as_ref().map_or_else(|| Names::of(network), Names::of_model);
    let network = model.as_ref().map_or_else(|| Network::open(name).unwrap(), |model| model.network().clone());
    let names = names(&network);

    let workload = Workload::new(&network, BATCH, Types::F32, Mode::Inference).unwrap();
    let mut candidates = HashMap::new();
    for (layer, _) in network.convolutions() {
        let problem = workload.problem(layer, Operation::Forward).unwrap();
        let parts = configuration(&problem, "explicit-gemm", BATCH).parts().to_vec();
        candidates.insert(problem, Candidates { candidates: parts, cost: DivisionCost::default() });
    }
    let step = workload.step(&Fronts::of(&candidates).unwrap(), &CostModel::cpu()).unwrap();
    let asked = Asked { policy: Policy::Baseline, ..Asked::default() };
    let planned = plan(&step, &CostModel::cpu(), &asked).unwrap();
    let machine = CpuMachine::new(Options { threads: Some(THREADS), ..Options::default() });
    let mut engine = Engine::new(&workload, &planned.schedule, machine, Solver::default(), Poison::Nothing).unwrap();

    let (samples, truth) = (floats(&at("samples.f32")), floats(&at("probabilities.f32")));
    let differ = |engine: &mut Engine<CpuMachine>| {
        engine.step(&samples, &[0; BATCH]).unwrap();
        let given = engine.probabilities().unwrap();
        assert_eq!(given.len(), truth.len());
        let off = given.iter().zip(&truth).map(|(given, truth)| (given - truth).abs()).fold(0.0, f32::max);
        // Of the largest, because a thousand classes share the probability.
        off / truth.iter().copied().fold(0.0, f32::max)
    };
    assert!(differ(&mut engine) > 1e-2, "{name}: other weights give other outputs");

    let mut learned = engine.learned().unwrap();
    let file = Checkpoint::read(&at("net.safetensors")).unwrap();
    assert_eq!(file.weights(&workload, &names, &mut learned).unwrap(), Vec::<String>::new());
    engine.take_over(&learned).unwrap();
    let off = differ(&mut engine);
    assert!(off <= 1e-4, "{name}: off by {off:e}");

    let training = Workload::new(&network, BATCH, Types::F32, Mode::Training).unwrap().with_momentum(false);
    let progress = Progress {
        network: name.to_owned(),
        step: 0,
        samples: 0,
        seed: 1,
        data: String::new(),
        data_samples: 0,
        solver: String::new(),
        classes: Vec::new(),
    };
    checkpoint::save(&at("back.safetensors"), &training, &names, &learned, &progress).unwrap();
    assert_eq!(tensors(&at("back.safetensors")), tensors(&at("net.safetensors")));
}

#[test]
#[ignore = "needs a Python with torchvision, named in TIGHTFIT_TORCH_PYTHON"]
fn resnet50_gives_the_outputs_of_torchvision() {
    compare("resnet50");
}

#[test]
#[ignore = "needs a Python with torchvision, named in TIGHTFIT_TORCH_PYTHON"]
fn vgg16_gives_the_outputs_of_torchvision() {
    compare("vgg16");
}

#[test]
#[ignore = "needs a Python with torchvision, named in TIGHTFIT_TORCH_PYTHON"]
fn googlenet_gives_the_outputs_of_torchvision() {
    compare("googlenet");
}
