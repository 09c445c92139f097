//! Networks as JSON: listed, planned, and where they are small also measured and trained.

use serde_json::Value;

use super::bench::NETWORKS;
use super::case::Case;
use super::mutate;

const POLICIES: [&str; 6] = ["baseline", "vdnn-all", "vdnn-conv", "vdnn-dynamic", "overlap", "optimal"];
/// The longest step and the most memory of a network that is measured here.
const SMALL_LIMITS: (f64, u64) = (100_000.0, 64 << 20);

pub fn attack(case: &mut Case) {
    let name = *case.random.pick(&NETWORKS);
    let mut document: Value = serde_json::from_slice(&case.bench.bytes(&format!("{name}.json"))).unwrap();
    let is_text = case.random.one_in(4);
    for _ in 0..case.random.few() {
        if !is_text {
            mutate::json(&mut document, &mut case.random);
        }
    }
    let mut text = document.to_string().into_bytes();
    if is_text {
        mutate::text(&mut text, &mut case.random);
    }
    case.write("m.json", text);
    case.run("networks m.json");
    let batch = *case.random.pick(&[1, 2, 7, 64, 1_048_576]);
    let policy = *case.random.pick(&POLICIES);
    let mode = if case.random.one_in(3) { "--inference" } else { "" };
    case.run(&format!("plan m.json --assume --batch {batch} --budget 1GiB --policy {policy} {mode}"));
    if is_small(case) {
        case.run("optimize m.json --batch 2 --workspace 1MiB --sizes undivided --operations forward --backend cpu");
        case.run("train m.json --batch 2 --budget 256MiB --data synthetic --steps 2 --sizes undivided --backend cpu");
    }
}

/// Whether a step of the network is so small that measuring it takes no time worth naming.
fn is_small(case: &mut Case) -> bool {
    let told = case.run("plan m.json --assume --costs cpu --batch 2 --budget 1GiB --format json").stdout;
    let plan: Value = serde_json::from_str(&told).unwrap_or_default();
    let (time, bytes) = (plan["step_time_us"].as_f64(), plan["baseline_bytes"].as_u64());
    time.is_some_and(|time| time < SMALL_LIMITS.0) && bytes.is_some_and(|bytes| bytes < SMALL_LIMITS.1)
}
