//! Models from ONNX files: plans by default, and messages about models that cannot be read.

use std::io::Read;
use std::path::Path;

use crate::folder::{Folder, json, text};

pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Unpacks an exported network into a folder.
pub fn unpack(folder: &Path, exported: &str, name: &str) {
    let packed = format!("{ROOT}/crates/onnx/tests/data/onnx/{exported}.onnx.gz");
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(std::fs::File::open(packed).unwrap()).read_to_end(&mut bytes).unwrap();
    std::fs::write(folder.join(name), bytes).unwrap();
}

#[test]
fn a_model_exported_for_inference_is_planned_for_it_unless_asked_otherwise() {
    let folder = Folder::new();
    unpack(folder.path(), "googlenet.inference", "served.onnx");
    unpack(folder.path(), "googlenet.script", "googlenet.onnx");
    let planned = |arguments: &str| {
        let output = folder.tightfit(&format!("plan {arguments} --batch 2 --assume")).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let head = text(&output.stdout).lines().next().unwrap().split(", ").nth(1).unwrap().to_owned();
        (head, text(&output.stderr).contains("add --training"))
    };
    assert_eq!(planned("served.onnx"), ("inference".to_owned(), true));
    assert_eq!(planned("served.onnx --inference"), ("inference".to_owned(), false));
    assert_eq!(planned("served.onnx --training"), ("training".to_owned(), false));
    assert_eq!(planned("googlenet.onnx"), ("training".to_owned(), false));
    assert_eq!(planned("googlenet.onnx --inference"), ("inference".to_owned(), false));
}

#[test]
fn an_untrainable_model_is_refused_with_the_names_of_its_layers() {
    let folder = Folder::on_cpu();
    unpack(folder.path(), "unet.script", "unet.onnx");
    unpack(folder.path(), "resnet50.script", "resnet50.onnx");
    for command in ["train", "predict"] {
        let output = folder.tightfit(&format!("{command} unet.onnx --batch 2 --data synthetic")).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        let layers = "ConvTranspose: widen.0, widen.1, widen.2\n".to_owned();
        for part in [format!("`{command}` cannot run unet"), layers, "output of 2x128x128".to_owned()] {
            assert!(said.contains(&part), "{part}: {said}");
        }
        // The weights are in a file that is not there.
        let output = folder.tightfit(&format!("{command} resnet50.onnx --batch 2 --data synthetic")).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("layer conv1: the weights `conv1.weight` cannot be read"), "{said}");
        assert!(said.contains("add --random-weights"), "{said}");
    }
}

#[test]
fn gates_activations_and_layer_normalizations_train_on_the_cpu() {
    let folder = Folder::on_cpu();
    let gated = format!("{ROOT}/crates/train/tests/recorded/gated.script.onnx");
    std::fs::copy(gated, folder.path().join("gated.onnx")).unwrap();
    let train = "train gated.onnx --batch 4 --budget 64MiB --data synthetic";
    let told = folder.json(&format!("{train} --steps 3 --save net.safetensors"));
    assert_eq!(told["losses"].as_array().unwrap().len(), 3);
    // The names and shapes of the model's own state.
    let header = std::fs::read(folder.path().join("net.safetensors")).unwrap();
    let length = u64::from_le_bytes(header[..8].try_into().unwrap()) as usize;
    let header = json(std::str::from_utf8(&header[8..8 + length]).unwrap());
    for (name, shape) in [
        ("layer_scale", serde_json::json!([8, 1, 1])),
        ("wide.weight", serde_json::json!([12, 8])),
        ("norm.weight", serde_json::json!([8])),
        ("norm.bias", serde_json::json!([8])),
    ] {
        assert_eq!(header[name]["shape"], shape, "{name}");
    }
    folder.json(&format!("{train} --steps 4 --resume net.safetensors"));
}

#[test]
fn the_guide_lists_the_layers_that_run() {
    let guide = std::fs::read_to_string(format!("{ROOT}/docs/guide/own-models.md")).unwrap();
    let rows: Vec<Vec<&str>> = guide
        .lines()
        .filter(|line| line.starts_with("| "))
        .map(|line| line.split('|').map(str::trim).collect())
        .collect();
    let said = |operator: &str, runs: &str| {
        rows.iter().any(|row| row.len() == 5 && row[1].contains(&format!("`{operator}`")) && row[3].contains(runs))
    };
    let folder = tempfile::tempdir().unwrap();
    for name in ["mobilenet_v3_large", "efficientnet_b0", "convnext_tiny", "unet", "fcn_resnet50"] {
        for form in ["script", "dynamo"] {
            unpack(folder.path(), &format!("{name}.{form}"), "model.onnx");
            let network = tightfit_onnx::open(&folder.path().join("model.onnx").display().to_string()).unwrap();
            for layer in network.layers() {
                let tightfit_network::LayerKind::Other(other) = &layer.kind else { continue };
                // The words for what exporters spell out in several operators.
                let operator = match other.operator.as_str() {
                    "Silu" => "Sigmoid",
                    "StochasticDepth" => "Mul",
                    operator => operator,
                };
                let runs = if other.function.is_some() { "on the CPU" } else { "no" };
                assert!(said(operator, runs), "{name} {form}: {operator} ({runs})");
            }
        }
    }
}

#[test]
fn predictions_use_the_weights_of_the_file() {
    let folder = Folder::on_cpu();
    let small = format!("{ROOT}/crates/train/tests/recorded/small.script.onnx");
    std::fs::copy(small, folder.path().join("small.onnx")).unwrap();
    let weights = |more: &str| {
        let command =
            format!("predict small.onnx --batch 4 --budget 64MiB --data synthetic --batches 1 --format json {more}");
        let output = folder.tightfit(&command).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        json(&text(&output.stdout))["weights"].as_str().unwrap().to_owned()
    };
    assert_eq!(weights(""), "small.onnx");
    assert_eq!(weights("--random-weights"), "random");
}

/// A small model whose operators are said to be of another version.
fn of_version(folder: &Path, version: u8) {
    let mut bytes = std::fs::read(format!("{ROOT}/crates/train/tests/recorded/small.script.onnx")).unwrap();
    // Field 8, the imported operators: no domain, version 20.
    let at = bytes.windows(4).position(|four| four == [0x42, 2, 0x10, 20]).unwrap();
    bytes[at + 3] = version;
    std::fs::write(folder.join("small.onnx"), bytes).unwrap();
}

#[test]
fn versions_of_operators_that_are_not_known_are_refused() {
    let folder = Folder::on_cpu();
    for (version, known) in [(6, false), (17, true), (20, true), (29, false)] {
        of_version(folder.path(), version);
        for command in [
            "plan small.onnx --batch 2 --assume",
            "optimize small.onnx --batch 2 --workspace 1MiB --sizes undivided",
            "networks small.onnx",
            "predict small.onnx --batch 4 --budget 64MiB --data synthetic --batches 1",
        ] {
            let output = folder.tightfit(command).output().unwrap();
            let said = text(&output.stderr);
            assert_eq!(output.status.success(), known, "{command}: {said}");
            let refusal = format!("its operators are of version {version}; versions 7 to 28 are known");
            assert_eq!(said.contains(&refusal), !known, "{command}: {said}");
        }
    }
}

#[test]
fn files_of_pytorch_name_the_export() {
    let folder = Folder::on_cpu();
    std::fs::write(folder.path().join("mine.pt"), b"PK").unwrap();
    for command in [
        "plan mine.pt --batch 2 --assume",
        "optimize mine.pt --batch 2 --workspace 1MiB",
        "train mine.pt --batch 2 --data synthetic",
    ] {
        let message = folder.fail(command, 1);
        let line = r#"`import torch, tightfit.torch; tightfit.torch.network(model, torch.randn(1, 3, 224, 224), "mine.onnx")`"#;
        assert!(message.contains(line), "{command}: {message}");
    }
}

#[test]
fn a_damaged_model_is_an_error_without_a_backtrace() {
    let folder = Folder::new();
    unpack(folder.path(), "unet.script", "unet.onnx");
    let whole = std::fs::read(folder.path().join("unet.onnx")).unwrap();
    std::fs::write(folder.path().join("cut.onnx"), &whole[..whole.len() / 2]).unwrap();
    for command in [
        "plan cut.onnx --batch 2 --assume",
        "optimize cut.onnx --batch 2 --workspace 1MiB",
        "train cut.onnx --batch 2 --data synthetic",
        "networks cut.onnx",
    ] {
        let output = folder.tightfit(command).output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command}: {said}");
        assert!(
            said.starts_with("error: cut.onnx: is not an ONNX model, or is cut off or damaged"),
            "{command}: {said}"
        );
        assert!(!said.contains("panicked"), "{said}");
    }
}
