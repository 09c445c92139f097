//! Times of the optimizers: WR, fronts, splits, and WD on the committed instances and on recorded networks.

use std::sync::atomic::AtomicBool;

use divan::{Bencher, black_box};
use tightfit_conv::candidate::Candidates;
use tightfit_conv::optimize::{SearchOptions, allot, divide, front, points, split};
use tightfit_conv::{Algorithm, Backend, Candidate, DivisionCost, Layout, Operation, Problem, Types};
use tightfit_network::{Kernel, Network, distinct};
use tightfit_profile::survey::{Env, Scope, Sizes, survey};
use tightfit_profile::{Recording, Replay};
use tightfit_test_support::instances;
use tightfit_units::{Bytes, Nanos};

fn main() {
    divan::main();
}

fn problem(batch: usize) -> Problem {
    format!("forward n{batch} c64 h27 w27 k192 r5 s5 pad2 f32").parse().expect("a problem")
}

/// Eight algorithms at every size: the more workspace, the faster, unevenly in the size.
fn candidates(batch: usize) -> Vec<Candidate> {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"].map(Algorithm::new);
    let sizes = (1..=batch).flat_map(|size| names.iter().zip(1..).map(move |name| (size as u64, name)));
    sizes
        .map(|(size, (name, speed))| {
            Candidate::new(
                name.clone(),
                size as usize,
                Nanos(20_000 + size * 40_000 / speed + size * 7919 % 997 * 10),
                Bytes((speed - 1) * (size * 500_000 + size * 104_729 % 9973)),
            )
        })
        .collect()
}

/// Without a limit no size is beaten by a sum of smaller ones, so nothing is skipped.
#[divan::bench(args = [256, 1024])]
fn divide_every_size(bencher: Bencher<'_, '_>, batch: usize) {
    let (problem, candidates) = (problem(batch), candidates(batch));
    bencher.bench(|| divide(&problem, black_box(&candidates), Bytes::UNLIMITED, DivisionCost::default()));
}

#[divan::bench(args = [256])]
fn front_every_size(bencher: Bencher<'_, '_>, batch: usize) {
    let (problem, candidates) = (problem(batch), candidates(batch));
    bencher.bench(|| front(&problem, black_box(&candidates), Bytes::UNLIMITED, DivisionCost::default()));
}

#[divan::bench(args = [(256, 8), (4096, 64)])]
fn split_every_size(bencher: Bencher<'_, '_>, (mini_batch, devices): (usize, u64)) {
    let time = |device: u64, size: u64| Nanos(50_000 + size * 30_000 * (1 + device % 4) + size * 7919 % 997 * 50);
    let device = |device| (1..=mini_batch).map(|size| (size, time(device, size as u64))).collect();
    let times: Vec<Vec<_>> = (0..devices).map(device).collect();
    bencher.bench(|| split(black_box(&times), mini_batch, &AtomicBool::new(false)));
}

#[divan::bench(args = instances::SHAPES, sample_count = 3)]
fn allot_30_instances(bencher: Bencher<'_, '_>, shape: &str) {
    let instances = instances::read(shape);
    bencher.bench(|| {
        for instance in &instances {
            black_box(allot(&instance.kernels, instance.total, &SearchOptions::default()).expect(&instance.name));
        }
    });
}

/// The fronts of a network's kernels on a recorded profile, every recorded size used.
fn replayed(network: &str, batch: usize, profile: &str, total: Bytes) -> Vec<Vec<(Bytes, Nanos)>> {
    let path = format!("{}/../../profiles/recorded/{profile}.jsonl.gz", env!("CARGO_MANIFEST_DIR"));
    let recordings = Recording::read(path.as_ref()).expect("a profile");
    let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(Replay::of(recordings).expect("one device"))];
    let network = Network::open(network).expect("a network");
    let kernels = network.kernels(Some(batch), &Operation::ALL, Types::F32, Layout::Nchw).expect("kernels");
    let problems: Vec<Problem> = distinct(&kernels).into_iter().map(|(problem, _)| problem).collect();
    let scope = Scope::new(Sizes::All, vec![total]);
    let found = survey(&problems, &scope, &mut backends, &Env::default()).expect("candidates");
    let kernel_front = |kernel: &Kernel| {
        let Candidates { candidates, cost } = &found.candidates[&kernel.problem];
        points(&front(&kernel.problem, candidates, total, *cost).expect("a front"))
    };
    kernels.iter().map(kernel_front).collect()
}

#[divan::bench(args = [
    ("alexnet-1col", 256, "h200-legacy-alexnet-1col-all", 120),
    ("resnet18", 128, "h200-legacy-resnet18", 512),
    ("resnet50", 32, "h200-2026-11-21", 5088),
    ("resnet50", 64, "h200-resnet50-all", 5088),
    ("vgg16", 256, "h200-legacy-vgg16", 2048),
])]
fn allot_replayed(bencher: Bencher<'_, '_>, (network, batch, profile, mib): (&str, usize, &str, u64)) {
    let total = Bytes::mib(mib);
    let fronts = replayed(network, batch, profile, total);
    bencher.bench(|| allot(black_box(&fronts), total, &SearchOptions::default()));
}
