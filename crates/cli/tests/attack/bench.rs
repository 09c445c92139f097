//! The good files that inputs are made from. Recorded values replace measured ones, so that every run has the same files.

use std::collections::HashMap;
use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::child;

/// A folder with good files.
pub struct Bench {
    folder: TempDir,
    files: HashMap<String, Vec<u8>>,
    /// The losses of `train --plan` with each good plan.
    pub losses: Vec<f64>,
}

/// How `plans` trains with a plan.
pub const TRAIN: &str = "train digits-net --data digits --steps 4 --backend cpu --format json";
/// The policies of which there is a plan `plan-POLICY.json`.
pub const POLICIES: [&str; 4] = ["baseline", "vdnn-all", "vdnn-conv", "overlap"];
/// The built-in networks of which there is a file `NAME.json`.
pub const NETWORKS: [&str; 5] = ["digits-net", "lenet", "alexnet", "resnet18", "googlenet"];

impl Bench {
    pub fn new() -> Bench {
        let mut bench = Bench { folder: tempfile::tempdir().unwrap(), files: HashMap::new(), losses: Vec::new() };
        for name in NETWORKS {
            bench.succeed(&format!("networks {name} --out {name}.json"));
        }
        let measured = "--batch 8 --workspace 1MiB --sizes power-of-two --backend cpu --cache digits-net.db";
        bench.succeed(&format!("profile digits-net {measured}"));
        bench.succeed("cache export digits-net.jsonl --cache digits-net.db");
        let profile = bench.folder.path().join("digits-net.jsonl");
        fs::write(&profile, with_set_times(&fs::read_to_string(&profile).unwrap())).unwrap();
        for policy in POLICIES {
            let plan = format!("plan digits-net --batch 8 --budget 2MiB --policy {policy} --sizes power-of-two");
            bench.succeed(&format!("{plan} --backend replay:digits-net.jsonl --out plan-{policy}.json"));
        }
        bench.succeed("plan digits-net --batch 8 --budget 2MiB --backend replay:digits-net.jsonl --out plan.json.gz");
        let told = bench.succeed(&format!("{TRAIN} --plan plan-baseline.json"));
        bench.losses = losses(&told).unwrap();
        for entry in fs::read_dir(bench.folder.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                bench.files.insert(name, fs::read(&path).unwrap());
            }
        }
        bench
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        self.files[name].clone()
    }

    fn succeed(&self, arguments: &str) -> String {
        let ending = child::run(self.folder.path(), arguments);
        assert!(ending.succeeded(), "{arguments}: {}", ending.stderr);
        ending.stdout
    }
}

/// The losses of a training that printed JSON.
pub fn losses(told: &str) -> Option<Vec<f64>> {
    let told: Value = serde_json::from_str(told).ok()?;
    told["losses"].as_array()?.iter().map(Value::as_f64).collect()
}

/// A profile whose times follow from where they stand in it.
fn with_set_times(profile: &str) -> String {
    let mut time = 1000;
    let set = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        if let Some(division) = line.get_mut("time_ns") {
            *division = json!(5000);
        }
        for row in line.get_mut("rows").and_then(Value::as_array_mut).into_iter().flatten() {
            time = (time * 7919 + 13) % 1_000_003;
            row[1] = json!(10_000 * row[0].as_u64().unwrap() + time % 10_000);
            // Spread, repeats, and the time of a single call.
            (row[3], row[4], row[5]) = (json!(0.0), json!(3), Value::Null);
        }
        line.to_string() + "\n"
    };
    profile.lines().map(set).collect()
}
