//! The good files that inputs are made from. Recorded values replace measured ones, so that every run has the same files.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::child::{Setup, start};

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
/// Lists of layers in the repository's `networks`.
pub const LISTS: [&str; 4] = ["alexnet-1col.txt", "resnet18.txt", "vgg16.txt", "deepbench.txt"];
/// The question of `lenet` that the recording and the cache answer.
pub const LENET: &str = "optimize lenet --batch 3 --workspace 64KiB --operations forward";

impl Bench {
    pub fn new() -> Bench {
        let mut bench = Bench { folder: tempfile::tempdir().unwrap(), files: HashMap::new(), losses: Vec::new() };
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for name in NETWORKS {
            bench.succeed(&format!("networks {name} --out {name}.json"));
        }
        for name in LISTS {
            fs::copy(repository.join("networks").join(name), bench.path(name)).unwrap();
        }
        for name in ["synthetic-mixed-cluster.jsonl", "recorded/h200-legacy-alexnet-1col-all.jsonl.gz"] {
            let path = repository.join("profiles").join(name);
            fs::copy(&path, bench.path(&path.file_name().unwrap().to_string_lossy())).unwrap();
        }
        for (network, batch, sizes) in [("lenet", 3, "all"), ("digits-net", 8, "power-of-two")] {
            let file = format!("{network}.jsonl");
            bench.succeed(&format!(
                "profile {network} --batch {batch} --workspace 1MiB --sizes {sizes} --backend cpu --cache {network}.db"
            ));
            bench.succeed(&format!("cache export {file} --cache {network}.db"));
            let measured = fs::read_to_string(bench.path(&file)).unwrap();
            fs::write(bench.path(&file), with_set_times(&measured)).unwrap();
        }
        bench.succeed("cache import lenet.jsonl synthetic-mixed-cluster.jsonl --cache good.db");
        bench.succeed("cache import digits-net.jsonl --cache other.db");
        bench.succeed("cache export good.jsonl.gz --cache good.db");
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

    /// Where a good file is. Nothing may write there.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        self.files[name].clone()
    }

    fn succeed(&self, arguments: &str) -> String {
        let words: Vec<OsString> = arguments.split_whitespace().map(OsString::from).collect();
        let ending = start(self.folder.path(), &words, &Setup::default()).finish();
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
