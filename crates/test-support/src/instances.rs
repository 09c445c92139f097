//! Reads the committed instances of `benches/instances`; `scripts/instances.py`, which wrote them, says how they are
//! laid out.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use flate2::read::GzDecoder;
use tightfit_units::{Bytes, Nanos};

/// The shapes, in the order of reports.
pub const SHAPES: [&str; 5] = ["15x40", "159x562", "159-repeated", "465x20", "465x20-repeated"];

/// One network to allot a total to.
pub struct Instance {
    /// Shape, seed and share.
    pub name: String,
    /// Each kernel's front: workspace and time.
    pub kernels: Vec<Vec<(Bytes, Nanos)>>,
    /// The workspace of all together.
    pub total: Bytes,
}

/// All instances of a shape: ten seeds with three totals each.
pub fn read(shape: &str) -> Vec<Instance> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../benches/instances/{shape}.txt.gz"));
    let file = File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (mut instances, mut name) = (Vec::new(), String::new());
    let (mut fronts, mut kernels) = (Vec::new(), Vec::new());
    for line in BufReader::new(GzDecoder::new(file)).lines() {
        let line = line.expect("readable text");
        let (word, rest) = line.split_once(' ').expect("a word and its values");
        let numbers = || rest.split(' ').map(|number| number.parse::<u64>().expect("a number"));
        match word {
            "instance" => {
                fronts.clear();
                name = rest.to_owned();
            }
            "front" => fronts.push(rest.split(' ').map(point).collect::<Vec<_>>()),
            "kernels" => kernels = numbers().map(|front| fronts[front as usize].clone()).collect(),
            _ => instances.extend(numbers().zip(["5 %", "25 %", "60 %"]).map(|(total, share)| Instance {
                name: format!("{name} {share}"),
                kernels: kernels.clone(),
                total: Bytes(total),
            })),
        }
    }
    instances
}

fn point(text: &str) -> (Bytes, Nanos) {
    let (workspace, time) = text.split_once(':').expect("workspace:time");
    (Bytes(workspace.parse().expect("bytes")), Nanos(time.parse().expect("nanoseconds")))
}
