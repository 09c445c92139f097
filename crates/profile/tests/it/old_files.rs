//! Caches and profiles that the program of commit f99b3c5 wrote: they open, and nothing in them is lost.

use std::fs;
use std::path::{Path, PathBuf};

use tightfit_conv::{DivisionCost, Problem};
use tightfit_profile::{Admission, Cache, Mark, Owner, Recording};
use tightfit_units::{Bytes, Nanos};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/f99b3c5").join(name)
}

/// A copy of the cache, since opening one for writing adds what is new.
fn copied(folder: &Path) -> PathBuf {
    let path = folder.join("cache.db");
    fs::copy(data("cache.db"), &path).unwrap();
    path
}

/// The content of the cache, as exported by the program that wrote it.
fn exported() -> Vec<Recording> {
    Recording::read(&data("profile.jsonl")).unwrap()
}

/// Spreads are rounded in files.
fn as_exported(recordings: &[Recording]) -> Vec<Recording> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("again.jsonl");
    Recording::write(&file, recordings).unwrap();
    assert_eq!(fs::read(&file).unwrap(), fs::read(data("profile.jsonl")).unwrap(), "it is written as it was");
    Recording::read(&file).unwrap()
}

#[test]
fn an_old_profile_is_read_and_written_as_it_was() {
    let recordings = exported();
    assert_eq!(Recording::read(&data("profile.jsonl.gz")).unwrap(), recordings);
    assert_eq!(as_exported(&recordings), recordings);
    let [recording] = &recordings[..] else { panic!("{recordings:?}") };
    assert_eq!(recording.device.backend, "cpu");
    let rows: usize = recording.measurements().map(|(_, rows)| rows.len()).sum();
    assert_eq!(rows, ROWS);
    let costs: Vec<_> = recording.division_costs().map(|(_, cost)| cost).collect();
    assert_eq!(costs, [DivisionCost::NEVER, DivisionCost { time: Nanos(4800), workspace: Bytes(139_520) }]);
}

/// Measurements in each of the files.
const ROWS: usize = 78;

#[test]
fn an_old_cache_opens_lists_and_exports_and_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = copied(folder.path());
    for read in [Cache::open_read_only(&path), Cache::open(&path), Cache::open(&path), Cache::open_read_only(&path)] {
        let cache = read.unwrap();
        assert_eq!(as_exported(&cache.recordings().unwrap()), exported());
        assert_eq!(cache.left_out().unwrap(), 0);
        let [summary] = &cache.summary().unwrap()[..] else { panic!("one device") };
        assert_eq!((summary.measurements, &summary.device), (ROWS, &exported()[0].device));
        let networks = cache.networks().unwrap();
        let owners: Vec<_> = networks.iter().map(|n| (n.name.as_str(), n.owner, n.layers.len())).collect();
        assert_eq!(owners, [("lenet", Owner::Network { batch: Some(4) }, 6), ("train.py", Owner::Program, 3)]);
        assert_eq!(networks[1].layers[1].0, "features.3");
    }
}

#[test]
fn an_old_cache_accepts_new_measurements() {
    let folder = tempfile::tempdir().unwrap();
    let path = copied(folder.path());
    let problem: Problem =
        exported()[0].measurements().map(|(shape, _)| format!("{shape} n4")).next().unwrap().parse().unwrap();
    let device = exported()[0].device.clone();
    let mark = Mark { problem, sizes: "fit".to_owned(), limit: Bytes::mib(1), admission: Admission::default() };
    // Read alone it has no table of marks.
    assert!(!Cache::open_read_only(&path).unwrap().is_surveyed(&device, &mark).unwrap());
    let cache = Cache::open(&path).unwrap();
    let rows = cache.measurements(&device, &problem).unwrap();
    let candidates: Vec<_> = rows.iter().map(|row| row.candidate()).collect();
    assert!(!candidates.is_empty());
    assert!(cache.mark_surveyed(&device, &mark, &candidates).unwrap());
    assert!(cache.is_surveyed(&device, &mark).unwrap());
    for recording in exported() {
        cache.import(&recording).unwrap();
    }
    assert_eq!(as_exported(&cache.recordings().unwrap()), exported());
}

#[test]
fn writes_by_old_programs_delete_stale_marks() {
    // Their statements, on a cache of today.
    let folder = tempfile::tempdir().unwrap();
    let path = copied(folder.path());
    let cache = Cache::open(&path).unwrap();
    let device = exported()[0].device.clone();
    let problem: Problem =
        exported()[0].measurements().map(|(shape, _)| format!("{shape} n4")).next().unwrap().parse().unwrap();
    let mark = Mark { problem, sizes: "fit".to_owned(), limit: Bytes::mib(1), admission: Admission::default() };
    for statement in [
        "DELETE FROM measurement WHERE device IN (SELECT id FROM device)",
        "UPDATE measurement SET workspace_bytes = 1",
    ] {
        let rows = exported()[0].of(&problem.shape());
        rows.iter().for_each(|row| cache.keep(&device, &problem, row).unwrap());
        let candidates: Vec<_> = rows.iter().map(|row| row.candidate()).collect();
        assert!(cache.mark_surveyed(&device, &mark, &candidates).unwrap());
        rusqlite::Connection::open(&path).unwrap().execute(statement, []).unwrap();
        assert!(!cache.is_surveyed(&device, &mark).unwrap(), "{statement}");
    }
}
