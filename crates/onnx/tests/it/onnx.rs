//! Networks exported by PyTorch, without their weights (`scripts/export-onnx.py`), compared with PyTorch's own figures.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tightfit_conv::Types;
use tightfit_network::{Layer, LayerKind, Network, Part};
use tightfit_onnx::Model;
use tightfit_plan::{CostModel, Fronts, Mode, Options, Workload, plan};
use tightfit_units::Bytes;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/onnx");

/// For training, by both exporters, and with the oldest operators.
const TRAINING: [&str; 3] = ["script", "script13", "dynamo"];

/// For inference, where batch normalizations are merged into convolutions.
const INFERENCE: [&str; 2] = ["inference", "inference-dynamo"];

/// PyTorch's figures for each network.
fn said() -> Vec<(String, Value)> {
    let text = std::fs::read_to_string(Path::new(FOLDER).join("torch.json")).unwrap();
    let Value::Object(said) = serde_json::from_str(&text).unwrap() else { panic!("not an object") };
    assert_eq!(said.len(), 8);
    said.into_iter().collect()
}

fn read(name: &str, form: &str) -> Model {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join(format!("{name}.onnx"));
    let packed = std::fs::File::open(Path::new(FOLDER).join(format!("{name}.{form}.onnx.gz"))).unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    std::fs::write(&path, bytes).unwrap();
    Model::read(&path).unwrap_or_else(|error| panic!("{form}: {error}"))
}

/// Elements per sample of all that the layers write.
fn elements(network: &Network) -> u64 {
    let computes = |layer: &&Layer| layer.kind.behavior().part == Part::Hidden;
    network.layers().iter().filter(computes).map(|layer| layer.shape.len() as u64).sum()
}

#[test]
fn exported_networks_have_the_convolutions_parameters_and_maps_that_pytorch_counts() {
    for (name, said) in said() {
        for form in TRAINING {
            let model = read(&name, form);
            let network = model.network();
            assert!(!model.is_for_inference(), "{name} {form}");
            assert_eq!(network.name(), name);
            assert_eq!(network.convolutions().count() as u64, said["convolutions"], "{name} {form}");
            assert_eq!(network.parameters() as u64, said["parameters"], "{name} {form}");
            // The newer exporter writes ConvNeXt's last mean as a gather, which copies 768 numbers.
            let more = if (name.as_str(), form) == ("convnext_tiny", "dynamo") { 768 } else { 0 };
            assert_eq!(elements(network), said["elements"].as_u64().unwrap() + more, "{name} {form}");
        }
    }
}

#[test]
fn networks_exported_for_inference_are_recognized() {
    for (name, said) in said() {
        for form in INFERENCE {
            let model = read(&name, form);
            assert_eq!(model.network().convolutions().count() as u64, said["convolutions"], "{name} {form}");
            // ConvNeXt has layer normalizations, which exporters leave alone.
            assert_eq!(model.is_for_inference(), name != "convnext_tiny", "{name} {form}");
            assert!(elements(model.network()) < said["elements"].as_u64().unwrap(), "{name} {form}");
        }
    }
}

#[test]
fn exported_networks_are_planned_for_training_and_for_inference() {
    for (name, _) in said() {
        for form in TRAINING.into_iter().chain(INFERENCE) {
            let network = read(&name, form).into_network();
            for mode in [Mode::Training, Mode::Inference] {
                let workload = Workload::new(&network, 2, Types::F32, mode).unwrap();
                let costs = CostModel::h200();
                let step = workload.step(&Fronts::assumed(&workload, &costs).unwrap(), &costs).unwrap();
                let found = plan(&step, &costs, &Options { budget: Bytes::gib(4), ..Options::default() });
                let found = found.unwrap_or_else(|error| panic!("{name} {form}: {error}"));
                assert!(found.peak <= Bytes::gib(4), "{name} {form}");
            }
        }
    }
}

#[test]
fn layers_have_the_names_of_the_models_modules() {
    let network = read("resnet50", "script").into_network();
    let known: Vec<&str> = network.layers().iter().map(|layer| layer.name.as_str()).collect();
    for name in ["conv1", "bn1", "maxpool", "layer1.0.downsample.0", "layer4.2.conv3", "layer4.2.bn3", "avgpool", "fc"]
    {
        assert!(known.contains(&name), "{name}: {known:?}");
    }
}

/// The operators of the layers that are only planned, or of the layers that run by a function.
fn operators(name: &str, form: &str, run: bool) -> String {
    let network = read(name, form).into_network();
    let others = network.layers().iter().filter_map(|layer| match &layer.kind {
        LayerKind::Other(other) if other.function.is_some() == run => Some(other.operator.as_str()),
        _ => None,
    });
    let all: std::collections::BTreeSet<&str> = others.collect();
    all.into_iter().collect::<Vec<&str>>().join(" ")
}

#[test]
fn operators_that_are_only_planned() {
    for (name, expected) in [
        ("resnet50", ""),
        ("googlenet", ""),
        ("densenet121", ""),
        ("mobilenet_v3_large", ""),
        ("efficientnet_b0", ""),
        ("convnext_tiny", ""),
        ("unet", "ConvTranspose"),
        ("fcn_resnet50", ""),
    ] {
        for form in TRAINING {
            // The newer exporter writes ConvNeXt's last mean as a gather.
            let more = if (name, form) == ("convnext_tiny", "dynamo") { "Gather" } else { "" };
            assert_eq!(operators(name, form, false), format!("{expected}{more}"), "{name} {form}");
        }
    }
}

#[test]
fn operators_that_run_by_a_function() {
    for (name, expected) in [
        ("resnet50", ""),
        ("mobilenet_v3_large", "HardSigmoid HardSwish Mul"),
        ("efficientnet_b0", "Mul Sigmoid Silu StochasticDepth"),
        ("convnext_tiny", "Gelu LayerNormalization MatMul Mul StochasticDepth Transpose"),
        ("unet", "Resize"),
        ("fcn_resnet50", "Resize"),
    ] {
        for form in TRAINING {
            assert_eq!(operators(name, form, true), expected, "{name} {form}");
        }
    }
}

#[test]
fn a_network_with_operators_that_cannot_run_survives_a_network_file() {
    for name in ["convnext_tiny", "unet"] {
        let network = read(name, "script").into_network();
        assert_eq!(Network::from_json(&network.to_json()).unwrap(), network);
    }
}
