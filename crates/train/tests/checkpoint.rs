//! Files of weights: every layer's state comes back, and damaged files become errors.

use std::os::unix::fs::FileExt;
use std::path::Path;

use tightfit_conv::Types;
use tightfit_network::Network;
use tightfit_plan::{Mode, Workload};
use tightfit_test_support::train::{THREADS, batch, dense, everything_resident, fork_and_join, residual};
use tightfit_train::checkpoint::Names;
use tightfit_train::machine::cpu::{CpuMachine, Options};
use tightfit_train::{Checkpoint, Engine, Learned, Poison, Progress, Solver, checkpoint};

const BATCH: usize = 4;

fn engine(workload: &Workload<'_>) -> Engine<CpuMachine> {
    let machine = CpuMachine::new(Options { threads: Some(THREADS), ..Options::default() });
    let schedule = everything_resident(workload, "implicit-gemm", BATCH);
    let schedule = tightfit_plan::Checked::assume(&workload.lower().unwrap().step, schedule);
    Engine::new(workload, &schedule, machine, Solver::default(), Poison::Nothing).unwrap()
}

fn progress(step: u64) -> Progress {
    Progress {
        network: "net".to_owned(),
        step,
        samples: step * BATCH as u64,
        seed: 1,
        data: "numbers".to_owned(),
        data_samples: 10,
        solver: "sgd".to_owned(),
        classes: vec!["cat".to_owned(), "dog".to_owned()],
    }
}

fn train(engine: &mut Engine<CpuMachine>, workload: &Workload<'_>, steps: std::ops::Range<u64>) -> Learned {
    for step in steps {
        let (samples, labels) = batch(workload, step);
        engine.step(&samples, &labels).unwrap();
    }
    engine.kept().unwrap()
}

fn read(path: &Path, workload: &Workload<'_>, kept: &mut Learned) -> u64 {
    let file = Checkpoint::read(path).unwrap();
    assert_eq!(file.weights(workload, &Names::of(workload.network), kept).unwrap(), Vec::<String>::new());
    file.solver_state(workload, &Names::of(workload.network), kept).unwrap();
    file.progress().unwrap().unwrap().step
}

/// With dropout, batch normalization, biases, and layers without parameters.
#[test]
fn another_engine_continues_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net.safetensors");
    for network in [fork_and_join(), residual(), dense()] {
        let workload = Workload::new(&network, BATCH, Types::F32, Mode::Training).unwrap();
        let mut first = engine(&workload);
        let kept = train(&mut first, &workload, 0..3);
        checkpoint::save(&path, &workload, &Names::of(&network), &kept, &progress(3)).unwrap();
        let mut second = engine(&workload);
        let mut own = second.kept().unwrap();
        assert_ne!(own, kept, "{}", network.name());
        let step = read(&path, &workload, &mut own);
        assert_eq!(own, kept, "{}", network.name());
        second.take_over(&own).unwrap();
        second.continue_after(step);
        assert_eq!(train(&mut second, &workload, 3..6), train(&mut first, &workload, 3..6), "{}", network.name());
    }
}

/// Every length of a cut file, and every byte of the header replaced: an error or the same numbers, never a panic.
#[test]
fn damaged_files_are_refused_or_read_never_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("net.safetensors");
    let network = Network::open("digits-net").unwrap();
    let workload = Workload::new(&network, BATCH, Types::F32, Mode::Training).unwrap();
    let kept = engine(&workload).kept().unwrap();
    checkpoint::save(&path, &workload, &Names::of(&network), &kept, &progress(1)).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    // Changed in place: writing thousands of files would wait for the disk.
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    for length in (0..header + 9).chain([whole.len() - 1]).rev() {
        file.set_len(length as u64).unwrap();
        let error = Checkpoint::read(&path).unwrap_err().to_string();
        assert!(error.contains("net.safetensors: is not a"), "{length}: {error}");
    }
    file.write_all_at(&whole, 0).unwrap();
    let mut changed = 0;
    for (place, byte) in (0..header).flat_map(|place| [0, b'9', b'"', 0xff].map(|byte| (place, byte))) {
        file.write_all_at(&whole[changed..=changed], changed as u64).unwrap();
        file.write_all_at(&[byte], place as u64).unwrap();
        changed = place;
        let Ok(file) = Checkpoint::read(&path) else { continue };
        let mut own = kept.clone();
        let read = file.progress().and_then(|_| file.weights(&workload, &Names::default(), &mut own).map(|_| ()));
        let read = read.and_then(|()| file.solver_state(&workload, &Names::default(), &mut own));
        assert!(read.is_err() || own.len() == kept.len(), "{place}");
    }
}
