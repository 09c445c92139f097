//! Lists of layers: listed, planned, and optimized with recorded times.

use super::bench::LISTS;
use super::case::Case;
use super::mutate;

pub fn attack(case: &mut Case) {
    let name = *case.random.pick(&LISTS);
    let mut text = case.bench.bytes(name);
    for _ in 0..case.random.few() {
        mutate::text(&mut text, &mut case.random);
    }
    case.write("m.txt", text);
    let recorded = case.bench.path("h200-legacy-alexnet-1col-all.jsonl.gz");
    case.run("networks m.txt");
    case.run(&format!("optimize m.txt --workspace 64MiB --backend replay:{}", recorded.display()));
    case.run("plan m.txt --assume --batch 2 --budget 1GiB");
}
