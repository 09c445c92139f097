//! `tightfit train --backend cuda` over the mock libraries: the memory of the device is the budget, less what libraries
//! take; a smaller budget offloads, and one that no policy can meet is refused.

use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;
use tightfit_test_support::libraries::library;

use crate::folder::{TIGHTFIT, clean};

/// A folder with a cache, and a device with a given number of bytes.
struct Machine {
    folder: TempDir,
}

impl Machine {
    fn run(&self, memory: u64, arguments: &str) -> Output {
        self.run_with(memory, arguments, "digits-net --batch 2 --divide off")
    }

    /// Runs the command with `what` in place of the default network and options.
    fn run_with(&self, memory: u64, arguments: &str, what: &str) -> Output {
        let mut command = clean(TIGHTFIT);
        for (name, mock) in [("CUDA", "mock_cuda"), ("CUDNN", "mock_cudnn"), ("CUBLAS", "mock_cublas")] {
            command.env(format!("TIGHTFIT_{name}"), library(mock));
        }
        command.env("TIGHTFIT_CACHE", self.folder.path().join("cache.db"));
        command.env("TIGHTFIT_MOCK_CUDA_MEMORY", memory.to_string());
        command.args(arguments.split_whitespace()).args(what.split_whitespace());
        command.args(["--backend", "cuda", "--format", "json"]);
        command.current_dir(self.folder.path()).output().unwrap()
    }

    fn succeed(&self, memory: u64, arguments: &str) -> Value {
        self.parsed(&self.run(memory, arguments))
    }

    fn parsed(&self, output: &Output) -> Value {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The message of a run that does not fit.
    fn refused(&self, memory: u64, arguments: &str) -> String {
        let output = self.run(memory, arguments);
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(3), "{arguments}: {message}");
        message
    }
}

#[test]
fn cpu_only_layers_are_refused_with_the_next_step() {
    let machine = Machine { folder: tempfile::tempdir().unwrap() };
    let gated = concat!(env!("CARGO_MANIFEST_DIR"), "/../train/tests/recorded/gated.script.onnx");
    for command in ["train", "predict"] {
        let output = machine.run_with(1 << 30, command, &format!("{gated} --batch 2 --data synthetic"));
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{message}");
        for part in ["cannot run gated.script on cuda because of", "HardSigmoid: ", "LayerNormalization: norm"] {
            assert!(message.contains(part), "{part}: {message}");
        }
        assert!(message.contains("they run on the CPU: add --backend cpu"), "{message}");
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

/// With one plan, and so the same algorithms; 32-bit weights beneath 16-bit ones are kept.
#[test]
fn gpu_resumes_with_the_bits_of_uninterrupted_training() {
    let machine = Machine { folder: tempfile::tempdir().unwrap() };
    let large = 1_u64 << 30;
    let bytes = |name: &str| std::fs::read(machine.folder.path().join(name)).unwrap();
    // Scoring the digits takes longer than the steps.
    for (plan, train) in [
        ("--types f32", "--data digits --warm-up 5"),
        ("--types f16-f32", "--data synthetic"),
        ("--types f16-f32 --solver adamw", "--data synthetic --schedule step --decay-every 2"),
    ] {
        machine.succeed(large, &format!("plan {plan} --out plan.json"));
        let run = |options: &str| {
            let train = format!("train {train} {options}");
            machine.parsed(&machine.run_with(large, &train, "digits-net --plan plan.json"))
        };
        let whole = run("--steps 7 --save whole.safetensors");
        let first = run("--steps 3 --save part.safetensors");
        let rest = run("--steps 7 --resume part.safetensors --save part.safetensors");
        assert_eq!([losses(&first), losses(&rest)].concat(), losses(&whole), "{plan}");
        assert_eq!(bytes("part.safetensors"), bytes("whole.safetensors"), "{plan}");
    }
}

/// Files of weights have one order, which does not depend on the device's.
#[test]
fn weights_trained_in_one_layout_go_on_in_another() {
    let machine = Machine { folder: tempfile::tempdir().unwrap() };
    let layouts = ["", "--layout nchw"];
    let saved = |name: &str| std::fs::read_to_string(machine.folder.path().join(name)).unwrap();
    let run = |options: &str| {
        let what = "digits-net --batch 2 --divide off --types f16-f32 --data synthetic";
        machine.parsed(&machine.run_with(1 << 30, options, what))
    };
    for (layout, is_last) in layouts.into_iter().zip([true, false]) {
        machine.succeed(1 << 30, &format!("plan --types f16-f32 {layout} --out plan.json"));
        assert_eq!(saved("plan.json").contains("\"layout\":\"nhwc\""), is_last, "{layout}");
    }
    run("train --steps 12 --layout nchw --save first.safetensors");
    let [last, first] = layouts.map(|layout| run(&format!("train --steps 16 --resume first.safetensors {layout}")));
    for (last, first) in losses(&last).iter().zip(losses(&first)) {
        assert!((last - first).abs() <= 2e-2 * first, "{last} {first}");
    }
}

#[test]
fn gpu_and_cpu_take_the_same_steps_with_adamw() {
    let machine = Machine { folder: tempfile::tempdir().unwrap() };
    let train = "train --data digits --solver adamw --learning-rate 0.01 --warm-up 3 --schedule step --steps 8";
    let on_gpu = machine.succeed(1 << 30, train);
    let folder = crate::folder::Folder::on_cpu();
    let on_cpu = folder.json(&format!("{train} digits-net --batch 2 --divide off"));
    for (gpu, cpu) in losses(&on_gpu).iter().zip(losses(&on_cpu)) {
        // Sums are of another order, and AdamW takes a whole step by the sign of a gradient that is rounding alone.
        assert!((gpu - cpu).abs() <= 1e-2 * cpu, "{on_gpu} {on_cpu}");
    }
}
