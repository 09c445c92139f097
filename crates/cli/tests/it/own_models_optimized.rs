//! Convolutions of models from ONNX files: optimized from a profile, without the device that it is from.

use std::collections::HashSet;
use std::path::Path;

use serde_json::{Value, json};
use tightfit_network::Kernel;
use tightfit_profile::Selection;

use crate::folder::Folder;
use crate::own_models::{ROOT, unpack};

const BATCH: usize = 32;
const LIMIT: u64 = 16 << 20;

/// The convolutions of a model, forward and backward.
fn kernels(model: &Path) -> Vec<Kernel> {
    Selection::new(tightfit_onnx::open(&model.display().to_string()).unwrap(), Some(BATCH)).kernels().unwrap()
}

/// A profile of these convolutions on a device that does not exist, in nanoseconds. One algorithm is slow and needs no
/// workspace. The other is twice as fast and needs as many bytes as its input has.
fn profile(kernels: &[Kernel]) -> String {
    let device = json!({"device": {"backend": "cuda", "name": "Made-up GPU", "library": "cudnn", "threads": 0}});
    let mut lines = vec![json!({"format": "tightfit-profile", "version": 1}), device];
    let mut seen = HashSet::new();
    for kernel in kernels.iter().filter(|kernel| seen.insert(kernel.problem)) {
        let problem = kernel.problem.to_string().replace(&format!(" n{BATCH} "), " ");
        for (algorithm, time, has_workspace) in [("slow", 20, false), ("fast", 10, true)] {
            let rows: Vec<Value> = [1, 2, 4, 8, 16, 32]
                .into_iter()
                .map(|size| {
                    let bytes = kernel.problem.with_batch(size).unwrap().input_len() * 4;
                    json!([size, time * size, if has_workspace { bytes } else { 0 }, 0.0, 1, null])
                })
                .collect();
            lines.push(json!({"problem": problem, "algorithm": algorithm, "notes": 0, "rows": rows}));
        }
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

#[test]
fn every_convolution_of_exported_models_is_optimized_by_replay() {
    let counted: Value = serde_json::from_str(
        &std::fs::read_to_string(format!("{ROOT}/crates/onnx/tests/data/onnx/torch.json")).unwrap(),
    )
    .unwrap();
    for name in ["resnet50", "efficientnet_b0", "unet", "convnext_tiny"] {
        for form in ["script", "dynamo"] {
            let folder = Folder::new();
            unpack(folder.path(), &format!("{name}.{form}"), "model.onnx");
            let kernels = kernels(&folder.path().join("model.onnx"));
            assert_eq!(
                Some(kernels.len() as u64 / 3),
                counted[name]["convolutions"].as_u64(),
                "{name}: all of torch's"
            );
            std::fs::write(folder.path().join("profile.jsonl"), profile(&kernels)).unwrap();
            let told = folder
                .json(&format!("optimize model.onnx --batch {BATCH} --workspace 16MiB --backend replay:profile.jsonl"));
            let found = told["kernels"].as_array().unwrap();
            assert_eq!(found.len(), kernels.len(), "{name} {form}");
            let mut divided = 0;
            for (kernel, found) in kernels.iter().zip(found) {
                let what = format!("{name} {form}: {} {}", kernel.layer, kernel.problem);
                assert_eq!(found["problem"], kernel.problem.to_string(), "{what}");
                let parts = found["configuration"].as_array().unwrap();
                let samples: u64 = parts.iter().map(|part| part["micro_batch"].as_u64().unwrap()).sum();
                assert_eq!(samples, BATCH as u64, "{what}");
                assert!(found["workspace_bytes"].as_u64().unwrap() <= LIMIT, "{what}");
                // One sample fits everywhere, so the fast algorithm does, whole or divided.
                assert_eq!(found["time_us"], 0.01 * BATCH as f64, "{what}");
                let fits = kernel.problem.input_len() as u64 * 4 <= LIMIT;
                assert_eq!(parts.len() == 1, fits, "{what}");
                divided += usize::from(!fits);
            }
            let speedup = told["speedup"].as_f64().unwrap();
            assert!(divided > 0 && speedup > 1.0, "{name} {form}: {divided} divided, {speedup}");
        }
    }
}

/// ConvNeXt for pictures of 32x32 in place of 224x224.
fn convnext_for_small_pictures(folder: &Path, name: &str) {
    unpack(folder, "convnext_tiny.script", name);
    let mut bytes = std::fs::read(folder.join(name)).unwrap();
    // The last two dimensions of the input: 224 and 32 as numbers of two bytes.
    let (from, to) = ([0x0a, 3, 8, 0xe0, 0x01].repeat(2), [0x0a, 3, 8, 0xa0, 0x00].repeat(2));
    let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
    bytes[at..at + to.len()].copy_from_slice(&to);
    std::fs::write(folder.join(name), bytes).unwrap();
}

#[test]
fn a_profile_of_the_cpu_is_replayed_and_its_choice_verified() {
    let folder = Folder::on_cpu();
    convnext_for_small_pictures(folder.path(), "small.onnx");
    let of = "small.onnx --batch 2 --workspace 1MiB --sizes power-of-two";
    folder.succeed(&format!("profile {of} --operations forward"));
    folder.succeed("cache export small.jsonl.gz");
    // Where nothing can be measured.
    let elsewhere = format!("{of} --operations forward --backend replay:small.jsonl.gz");
    let told = folder.json(&format!("optimize {elsewhere}"));
    let kernels = told["kernels"].as_array().unwrap();
    assert_eq!(kernels.len(), 22);
    for kernel in kernels {
        let parts = kernel["configuration"].as_array().unwrap();
        assert_eq!(parts.iter().map(|part| part["micro_batch"].as_u64().unwrap()).sum::<u64>(), 2, "{kernel}");
        assert!(kernel["workspace_bytes"].as_u64().unwrap() <= 1 << 20, "{kernel}");
    }
    let layer = kernels.last().unwrap()["layer"].as_str().unwrap();
    let verified = folder.json(&format!("verify {of} --layers {layer}"));
    let kernels = verified["kernels"].as_array().unwrap();
    assert_eq!(kernels.len(), 3, "all three operations of {layer}");
    for kernel in kernels {
        assert!(kernel["verification"]["max_relative_error_reference"].as_f64().unwrap() < 1e-4, "{kernel}");
    }
}
