//! Recorded profiles: replayed, and taken into a cache that must stay readable and give all of it out again.

use serde_json::Value;

use super::bench::LENET;
use super::case::Case;
use super::mutate;

pub fn attack(case: &mut Case) {
    let name = if case.random.one_in(10) { packed(case) } else { damaged(case) };
    let replay = format!("--backend replay:{name}");
    case.run(&format!("{LENET} {replay}"));
    case.run(&format!("plan lenet --batch 3 --budget 16MiB {replay}"));
    case.run(&format!("split --network resnet18 --batch 32 --devices K80,K20Xm {replay}"));
    case.write("c.db", case.bench.bytes("good.db"));
    let before = measurements(case, "c.db").unwrap_or(0);
    let taken = case.run(&format!("cache import {name} --cache c.db")).succeeded();
    for action in ["list", "list --layers", "export all.jsonl"] {
        let ending = case.run(&format!("cache {action} --cache c.db"));
        let told = ending.stderr.clone();
        case.expect(ending.succeeded(), || format!("cache {action} failed after the import of {name}: {told}"));
    }
    let after = measurements(case, "c.db");
    case.expect(after.is_some_and(|after| after >= before), || format!("{before} measurements became {after:?}"));
    let again = case.run("cache import all.jsonl --cache d.db");
    case.expect(again.succeeded(), || format!("what export wrote is refused by import: {}", again.stderr));
    let there = measurements(case, "d.db");
    case.expect(there == after, || format!("{after:?} measurements were exported, {there:?} came back"));
    if taken {
        case.run(&format!("{LENET} --layers conv1 --backend cpu --cache c.db"));
    }
}

/// How many measurements a cache lists.
pub fn measurements(case: &mut Case, cache: &str) -> Option<u64> {
    let listed = case.run(&format!("cache list --format json --cache {cache}")).stdout;
    let rows: Value = serde_json::from_str(&listed).ok()?;
    rows.as_array()?.iter().map(|row| row["measurements"].as_u64()).sum()
}

fn packed(case: &mut Case) -> &'static str {
    let mut bytes = case.bench.bytes("good.jsonl.gz");
    mutate::bytes(&mut bytes, &mut case.random);
    case.write("m.jsonl.gz", bytes);
    "m.jsonl.gz"
}

fn damaged(case: &mut Case) -> &'static str {
    let good = *case.random.pick(&["lenet.jsonl", "digits-net.jsonl", "synthetic-mixed-cluster.jsonl"]);
    let mut text = case.bench.bytes(good);
    if case.random.one_in(4) {
        mutate::text(&mut text, &mut case.random);
    } else {
        let read = String::from_utf8(text).unwrap();
        let mut lines: Vec<Value> = read.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for _ in 0..case.random.few() {
            // The few lines before the measurements, more often than those.
            let bound = if case.random.one_in(3) { lines.len() } else { lines.len().min(4) };
            let line = case.random.below(bound);
            mutate::json(&mut lines[line], &mut case.random);
        }
        text = lines.iter().flat_map(|line| (line.to_string() + "\n").into_bytes()).collect();
    }
    case.write("m.jsonl", text);
    "m.jsonl"
}
