//! `tightfit train --backend cuda` over the mock libraries: the memory of the device is the budget, less what libraries
//! take; a smaller budget offloads, and one that no policy can meet is refused.

use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;
use tightfit_test_support::libraries::library;

use crate::folder::{TIGHTFIT, clean};

/// A folder with a cache, and a device of so many bytes.
struct Machine {
    folder: TempDir,
}

impl Machine {
    fn run(&self, memory: u64, arguments: &str) -> Output {
        let mut command = clean(TIGHTFIT);
        for (name, mock) in [("CUDA", "mock_cuda"), ("CUDNN", "mock_cudnn"), ("CUBLAS", "mock_cublas")] {
            command.env(format!("TIGHTFIT_{name}"), library(mock));
        }
        command.env("TIGHTFIT_CACHE", self.folder.path().join("cache.db"));
        command.env("TIGHTFIT_MOCK_CUDA_MEMORY", memory.to_string());
        let common = "digits-net --batch 2 --divide off --backend cuda --format json";
        command.args(arguments.split_whitespace()).args(common.split_whitespace());
        command.current_dir(self.folder.path()).output().unwrap()
    }

    fn succeed(&self, memory: u64, arguments: &str) -> Value {
        let output = self.run(memory, arguments);
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// What it says where it does not fit.
    fn refused(&self, memory: u64, arguments: &str) -> String {
        let output = self.run(memory, arguments);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{arguments}: {message}");
        message
    }
}

#[test]
fn gpu_predicts_in_less_than_it_trains_in() {
    let machine = Machine { folder: tempfile::tempdir().unwrap() };
    let large = 1_u64 << 30;
    let trained = machine.succeed(large, "train --data synthetic --steps 2");
    for graph in ["", "--graph"] {
        let predicted = machine.succeed(large, &format!("predict --data digits --batches 4 --check {graph}"));
        let of = |key: &str| predicted[key].as_u64().unwrap();
        assert_eq!((&predicted["backend"], of("batches"), of("samples")), (&"cuda".into(), 4, 8), "{predicted}");
        assert!(of("peak_bytes") <= of("planned_peak_bytes"), "{predicted}");
        assert!(of("min_feasible_bytes") < trained["min_feasible_bytes"].as_u64().unwrap(), "{predicted}");
    }
}

fn losses(trained: &Value) -> Vec<f64> {
    trained["losses"].as_array().unwrap().iter().map(|loss| loss.as_f64().unwrap()).collect()
}

#[test]
fn gpu_trains_within_its_memory_and_refuses_too_small_a_budget() {
    let machine = Machine { folder: tempfile::tempdir().unwrap() };
    let train = "train --data synthetic --steps 2";
    let (large, beside) = (1_u64 << 30, 256_u64 << 20);

    let roomy = machine.succeed(large, train);
    let field = |key: &str| roomy[key].as_u64().unwrap();
    assert_eq!((&roomy["backend"], field("offloaded_bytes")), (&"cuda".into(), 0), "{roomy}");
    assert_eq!(field("budget_bytes"), large - beside, "{roomy}");
    assert!(field("peak_bytes") > field("min_feasible_bytes"), "{roomy}");

    let least = field("min_feasible_bytes");
    let tight = machine.succeed(large, &format!("{train} --check --budget {least}"));
    assert!(tight["offloaded_bytes"].as_u64().unwrap() > 0 && tight["host_bytes"].as_u64().unwrap() > 0, "{tight}");
    assert!(tight["peak_bytes"].as_u64().unwrap() <= least, "{tight}");
    for (tight, roomy) in losses(&tight).iter().zip(losses(&roomy)) {
        // Other algorithms round otherwise.
        assert!((tight - roomy).abs() <= 1e-3 * roomy, "{tight} {roomy}");
    }

    let message = machine.refused(large, &format!("{train} --budget {}", least - 256));
    assert!(message.contains("digits-net needs at least") && message.contains("raise the budget"), "{message}");
    // The device's own memory is the budget where none is given.
    let small = machine.succeed(least + beside, "plan");
    assert_eq!(small["budget_bytes"].as_u64(), Some(least), "{small}");
    machine.refused(least + beside - 256, train);
}

/// Dropout and the data continue where they were, and 32-bit weights beneath 16-bit ones are kept.
#[test]
fn gpu_resumes_with_the_bits_of_uninterrupted_training() {
    let machine = Machine { folder: tempfile::tempdir().unwrap() };
    let large = 1_u64 << 30;
    let bytes = |name: &str| std::fs::read(machine.folder.path().join(name)).unwrap();
    for types in ["f32", "f16-f32"] {
        let train = format!("train --data digits --types {types}");
        let whole = machine.succeed(large, &format!("{train} --steps 7 --save whole.safetensors"));
        let first = machine.succeed(large, &format!("{train} --steps 3 --save part.safetensors"));
        let resume = "--resume part.safetensors --save part.safetensors";
        let rest = machine.succeed(large, &format!("{train} --steps 7 {resume}"));
        assert_eq!([losses(&first), losses(&rest)].concat(), losses(&whole), "{types}");
        assert_eq!(bytes("part.safetensors"), bytes("whole.safetensors"), "{types}");
    }
}
