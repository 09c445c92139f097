//! `tightfit run` with the real preload library, over the mock libraries, under a C program that knows nothing of it: the
//! program's convolution is divided, and its measurements are in the cache that the other commands read.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tightfit_network::Kernel;
use tightfit_profile::Cache;
use tightfit_test_support::client::{self, Form};
use tightfit_test_support::libraries::{self, library};

use crate::folder::{TIGHTFIT, clean};

fn command(folder: &Path) -> Command {
    let mut command = clean(TIGHTFIT);
    let driver = library("mock_cuda");
    command.env("TIGHTFIT_CUDA", &driver).env("TIGHTFIT_MOCK_CUDA", driver);
    command.env("TIGHTFIT_PRELOAD", libraries::folder());
    command.env("TIGHTFIT_CUDNN", folder.join("libcudnn.so.9")).env("TIGHTFIT_CACHE", folder.join("cache.db"));
    command.current_dir(folder);
    command
}

pub fn tightfit(folder: &Path, arguments: &[&str]) -> Output {
    let output = command(folder).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// A folder with the C program and a cuDNN to find.
pub fn with_client() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    symlink(library("mock_cudnn"), folder.path().join("libcudnn.so.9")).unwrap();
    client::install(Form::Linked, &folder.path().join("client"));
    folder
}

#[test]
fn program_runs_divided_and_shares_the_cache() {
    let folder = with_client();
    let path = folder.path();
    let run = |options: &[&str], out: &str| {
        let out = format!("out={out}");
        let program = ["--", "./client", "engine=2", "n=12", out.as_str()];
        tightfit(path, &[&["run"], options, &program[..]].concat());
    };
    run(&["--workspace", "unlimited", "--tune", "heuristic"], "whole");
    run(&["--workspace", "16KiB", "--tune", "first", "--report", "report.json"], "divided");

    let report: Value = serde_json::from_slice(&std::fs::read(path.join("report.json")).unwrap()).unwrap();
    let kernel = &report["kernels"][0];
    let ours = &kernel["ours"];
    assert!(kernel["framework"]["workspace_bytes"].as_u64().unwrap() > 16 << 10, "{report:#}");
    assert!(ours["workspace_bytes"].as_u64().unwrap() <= 16 << 10, "{report:#}");
    let parts = ours["configuration"].as_array().unwrap();
    assert_eq!(parts.iter().map(|part| part["micro_batch"].as_u64().unwrap()).sum::<u64>(), 12, "{report:#}");
    assert!(report["totals"]["tuning_measurements"].as_u64().unwrap() > 0, "{report:#}");

    let numbers = |name: &str| -> Vec<f32> {
        let bytes = std::fs::read(path.join(name)).unwrap();
        bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
    };
    let (whole, divided) = (numbers("whole"), numbers("divided"));
    assert!(!whole.is_empty() && whole.len() == divided.len());
    let largest = whole.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    for (one, other) in whole.iter().zip(&divided) {
        // Another algorithm may have been faster; all of the mock's are within this of each other.
        assert!((one - other).abs() <= 1e-3 * largest, "{one} {other}");
    }

    let list = tightfit(path, &["cache", "list", "--format", "json"]);
    let rows: Value = serde_json::from_slice(&list.stdout).unwrap();
    assert_eq!((&rows[0]["backend"], &rows[0]["device"]), (&"cuda".into(), &"Tightfit Mock GPU".into()), "{rows}");
    assert_ne!(rows[0]["measurements"], "0");

    let list = tightfit(path, &["cache", "list", "--layers", "--format", "csv"]);
    let list = String::from_utf8(list.stdout).unwrap();
    let expected = "network,batch,layer,mini_batch,problem\nclient,,,12,forward ";
    assert!(list.starts_with(expected), "{list}");
    assert_eq!(list.lines().count(), 2, "{list}");
}

/// The loop of the papers: a program that runs on two devices leaves its convolutions in the cache, and the other commands
/// take it by its name.
#[test]
fn recorded_program_is_optimized_and_split_by_its_name() {
    let folder = with_client();
    let path = folder.path();
    let devices = ["Mock A", "Mock B"];
    for (name, slowdown) in devices.into_iter().zip(["200", "600"]) {
        let mut command = command(path);
        command.env("TIGHTFIT_MOCK_CUDA_NAME", name).env("TIGHTFIT_MOCK_CUDNN_SLOWDOWN", slowdown);
        command.args([
            "run",
            "--workspace",
            "unlimited",
            "--sizes",
            "all",
            "--tune",
            "first",
            "--",
            "./client",
            "engine=2",
            "n=6",
            "out=y",
        ]);
        assert!(command.output().unwrap().status.success());
    }
    let json = |arguments: &str| -> Value {
        let arguments = format!("{arguments} --format json");
        serde_json::from_slice(&tightfit(path, &arguments.split_whitespace().collect::<Vec<_>>()).stdout).unwrap()
    };
    let optimized = tightfit(
        path,
        &[
            "optimize",
            "client",
            "--backend",
            "replay",
            "--devices",
            devices[0],
            "--workspace",
            "16KiB",
            "--format",
            "json",
            "--plot",
            "picture.svg",
        ],
    );
    let optimized: Value = serde_json::from_slice(&optimized.stdout).unwrap();
    assert_eq!(optimized["network"], "client");
    assert!(optimized["device"].to_string().contains(devices[0]), "{optimized:#}");
    let parts = optimized["kernels"][0]["configuration"].as_array().unwrap();
    assert_eq!(parts.iter().map(|part| part["micro_batch"].as_u64().unwrap()).sum::<u64>(), 6, "{optimized:#}");
    assert!(std::fs::read_to_string(path.join("picture.svg")).unwrap().starts_with("<svg"));

    let split = command(path)
        .args(["split", "--network", "client", "--batch", "6", "--format", "json", "--devices", "Mock A,Mock B"])
        .output()
        .unwrap();
    let split: Value = serde_json::from_slice(&split.stdout).unwrap_or_else(|_| panic!("{split:?}"));
    let shares = split["devices"].as_array().unwrap();
    let samples: Vec<u64> = shares.iter().map(|share| share["batch"].as_u64().unwrap()).collect();
    assert!(samples.iter().sum::<u64>() == 6 && samples[0] >= samples[1], "{split:#}");
    assert!(shares[0]["alone_time_us"].as_f64() < shares[1]["alone_time_us"].as_f64(), "{split:#}");

    // A GPU or a CPU can take the program as well, by measuring.
    let measured = json("optimize client --backend cpu --sizes undivided --workspace 1MiB --batch 2");
    assert_eq!(measured["kernels"][0]["layer"], "conv1", "{measured:#}");
    let unknown =
        command(path).args(["optimize", "clint", "--workspace", "1MiB", "--backend", "replay"]).output().unwrap();
    let message = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(
        !unknown.status.success() && message.contains("recorded programs") && message.contains("client"),
        "{message}"
    );
}

#[test]
fn report_without_convolutions_has_the_usual_form() {
    let folder = with_client();
    let report = |program: &[&str]| -> Value {
        let options = ["run", "--workspace", "16KiB", "--tune", "heuristic", "--report", "report.json", "--"];
        tightfit(folder.path(), &[&options, program].concat());
        serde_json::from_slice(&std::fs::read(folder.path().join("report.json")).unwrap()).unwrap()
    };
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let (ran, idle) = (report(&["./client", "engine=2", "n=12"]), report(&["./client", "idle=1"]));
    assert_eq!(ran["kernels"].as_array().unwrap().len(), 1, "{ran:#}");
    assert_eq!(idle["kernels"].as_array().unwrap().len(), 0, "{idle:#}");
    assert_eq!((keys(&idle), keys(&idle["totals"])), (keys(&ran), keys(&ran["totals"])));
    for key in ["version", "cudnn", "workspace_limit_bytes"] {
        assert_eq!(idle[key], ran[key], "{key}");
    }
    assert_eq!(report(&["true"])["kernels"], idle["kernels"]);
}

#[test]
fn program_on_cuda_without_convolutions_ends_with_a_line() {
    let folder = with_client();
    let path = folder.path();
    let cuda = path.join("libcuda.so.1");
    std::fs::copy(library("mock_cuda"), &cuda).unwrap();
    let said = |options: &[&str], program: &[&str], with_cuda: bool| -> Vec<String> {
        let mut command = command(path);
        // Marks of children are put here.
        command.env("TMPDIR", path);
        if with_cuda {
            command.env("LD_PRELOAD", &cuda);
        }
        let options = [&["run", "--tune", "heuristic"], options, &["--"]].concat();
        let output = command.args(options).args(program).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{program:?}: {errors}");
        let marks = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert_eq!(marks.filter(|name| name.starts_with("tightfit-run-")).count(), 0, "{program:?}");
        errors.lines().filter(|line| line.contains("no cuDNN convolutions")).map(str::to_owned).collect()
    };
    let idle = ["./client", "idle=1"];
    let lines = said(&[], &idle, true);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("tightfit: ") && lines[0].contains("`tightfit doctor --preload`"), "{lines:?}");
    let none: Vec<String> = Vec::new();
    assert_eq!(said(&["--quiet"], &idle, true), none);
    assert_eq!(said(&[], &["./client", "engine=2", "n=4"], true), none, "it ran one");
    assert_eq!(said(&[], &idle, false), none, "no program for a GPU");
    // A parent that waits for its child prints nothing itself, and the child's convolutions count.
    let parent =
        |arguments: &str, with_cuda| said(&[], &["bash", "-c", &format!("./client {arguments}; :")], with_cuda);
    assert_eq!(parent("idle=1", false), none);
    assert_eq!(parent("idle=1", true).len(), 1);
    assert_eq!(parent("engine=2 n=4", true), none);
    assert_eq!(parent("engine=2 n=4", false), none);
}

#[test]
fn network_at_two_batch_sizes_is_listed_twice() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(&folder.path().join("cache.db")).unwrap();
    for batch in [2, 4] {
        let problem = format!("forward n{batch} c3 h8 w8 k4 r3 s3 f32").parse().unwrap();
        cache.keep_network("tiny", Some(batch), &[Kernel { layer: "conv1".to_owned(), problem }]).unwrap();
    }
    drop(cache);
    let list = tightfit(folder.path(), &["cache", "list", "--layers", "--format", "csv"]);
    let list = String::from_utf8(list.stdout).unwrap();
    let shape = "forward c3 h8 w8 k4 r3 s3 f32";
    let rows = [2, 4].map(|batch| format!("tiny,{batch},conv1,{batch},{shape}"));
    assert_eq!(list.lines().skip(1).collect::<Vec<_>>(), rows, "{list}");
}
