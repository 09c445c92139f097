//! The time that the library adds to a program in which nothing is divided, on the mocks: `cargo bench -p
//! tightfit-preload`.
//!
//! Each figure is the least of several runs of the C client, alternately with and without the library. The mock refuses
//! these executions at once, so calls are timed and not convolutions. The last column has a cache of 78 000 measurements, a
//! recorded profile, in which the convolution is looked up: there our configuration runs, in one piece.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use tightfit_profile::{Cache, Recording};
use tightfit_test_support::client::{Client, Form};

const RUNS: usize = 5;
const CALLS: usize = 20_000;
/// AlexNet's second layer, which the profile has.
const PROBLEM: &str = "n=16 c=64 k=192 size=27 filter=5 pad=2 engine=1 bench=";
const PROFILE: &str = "../../profiles/recorded/h200-2026-11-21.jsonl.gz";

/// The client's timings, by its words.
const ROWS: [(&str, &str, f64); 10] = [
    ("cudnnBackendExecute", "execute", 1.0),
    ("a variant pack made and destroyed", "pack", 1.0),
    ("  both, after other work", "step", 1.0),
    ("cudnnConvolutionForward", "legacy", 1.0),
    ("  of it reading descriptors back", "legacy-read", 1.0),
    ("a plan made and destroyed", "plan", 1.0),
    ("a graph made and destroyed", "graph", 1.0),
    ("a process that calls nothing [us]", "idle", 1e3),
    ("the first call [us]", "first-call", 1e3),
    ("the first handle, graph and plan [us]", "first-plan", 1e3),
];

fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("cache.db");
    let cache = Cache::open(&file).expect("a cache");
    let profile = Path::new(env!("CARGO_MANIFEST_DIR")).join(PROFILE);
    for mut recording in Recording::read(&profile).expect("a profile") {
        // The mocks' versions, under the name of the profile's device.
        recording.device.library = "cudnn 9.19.0 / cuda 13.0".to_owned();
        cache.import(&recording).expect("room for a profile");
    }
    drop(cache);
    let file = file.to_str().expect("a path in UTF-8");
    let heuristic = [("WORKSPACE", "unlimited"), ("TUNE", "heuristic")];
    let cached = [("WORKSPACE", "unlimited"), ("TUNE", "cached"), ("CACHE", file)];
    let off = [("WORKSPACE", "unlimited"), ("OFF", "1")];
    let ways: [Option<&[(&str, &str)]>; 4] = [None, Some(&off), Some(&heuristic), Some(&cached)];
    let mut least = [const { BTreeMap::new() }; 4];
    for _ in 0..RUNS {
        for (way, least) in ways.iter().zip(&mut least) {
            for (word, nanos) in run(*way) {
                let known = least.entry(word).or_insert(nanos);
                *known = nanos.min(*known);
            }
        }
    }
    println!("{:40}{:>10}{:>10}{:>12}{:>10}", "[ns]", "plain", "off", "heuristic", "cached");
    for (name, word, unit) in ROWS {
        let [plain, off, heuristic, cached] = least.each_ref().map(|least| least[word] / unit);
        println!("{name:40}{plain:>10.0}{off:>10.0}{heuristic:>12.0}{cached:>10.0}");
    }
}

/// Nanoseconds by the client's words.
fn run(variables: Option<&[(&str, &str)]>) -> BTreeMap<String, f64> {
    let client = |arguments: &str| {
        let client = Client::new(Form::Linked, arguments).with("TIGHTFIT_MOCK_CUDA_NAME", "NVIDIA H200");
        match variables {
            Some(variables) => client.preloaded(variables),
            None => client,
        }
    };
    let idle = client("idle=1");
    let begun = Instant::now();
    idle.run();
    let mut times = BTreeMap::from([("idle".to_owned(), begun.elapsed().as_nanos() as f64)]);
    for arguments in [format!("{PROBLEM}{CALLS}"), format!("{PROBLEM}{CALLS} legacy=size algorithm=1")] {
        let run = client(&arguments).run();
        assert_eq!((run.code, run.status()), (Some(0), "0"), "{}{}", run.words, run.errors);
        let timed = run.words.lines().filter_map(|line| line.split_once(' '));
        let hits = run.report.map(|report| report["totals"]["cache_hits"].as_u64() > Some(0));
        let is_cached = variables.is_some_and(|variables| variables.contains(&("TUNE", "cached")));
        assert!(!is_cached || hits == Some(true), "nothing was found in the cache");
        times.extend(timed.filter_map(|(word, time)| Some((word.to_owned(), time.parse().ok()?))));
    }
    times
}
