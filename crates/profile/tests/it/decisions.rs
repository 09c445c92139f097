//! Decisions about a program's convolutions in the cache: found again by all they depend on, and by nothing else.

use std::fs;
use std::path::Path;

use rusqlite::Connection;
use tightfit_conv::{Algorithm, Candidate, Configuration, Device, DivisionCost, Notes, Problem};
use tightfit_profile::{Admission, Cache, Decision, DecisionKey, Imported, Recording, Replay};
use tightfit_units::{Bytes, Nanos};

use crate::mixed::measurement;

fn device(name: &str) -> Device {
    Device { backend: "cuda".to_owned(), name: name.to_owned(), library: "cudnn 9.19.0".to_owned(), threads: 0 }
}

fn problem(batch: usize) -> Problem {
    format!("backward-filter n{batch} c3 h8 w8 k4 r3 s3 f16-f32").parse().unwrap()
}

pub fn key() -> DecisionKey {
    DecisionKey {
        problem: problem(6),
        chosen: Algorithm::new("engine1"),
        chosen_workspace: Bytes(4096),
        limit: Bytes(4096),
        sizes: "fit auto".to_owned(),
        admission: Admission { deterministic: false, class: None, without: Notes::TENSOR_CORE },
        factors: [1.0f32, 0.0].map(f32::to_bits),
        base: 16,
    }
}

fn part(micro_batch: usize, algorithm: &str) -> Candidate {
    Candidate { micro_batch, algorithm: Algorithm::new(algorithm), time: Nanos(70), workspace: Bytes(1024) }
}

/// A divided configuration that differs from every default.
fn decision() -> Decision {
    let cost = DivisionCost { time: Nanos(9), workspace: Bytes(512) };
    let parts = vec![part(4, "engine2:k25=1"), part(2, "legacy:algo-1")];
    Decision { configuration: Some(Configuration::new(parts, cost)), framework_time: Some(Nanos(300)), is_final: true }
}

fn open(path: &Path) -> Cache {
    Cache::open(path).unwrap()
}

fn alter(path: &Path, statement: &str, rows: usize) {
    assert_eq!(Connection::open(path).unwrap().execute(statement, []).unwrap(), rows, "{statement}");
}

fn import(cache: &Cache, recordings: &[Recording]) {
    for recording in recordings {
        cache.import(recording).unwrap();
    }
}

#[test]
fn a_decision_is_found_again_as_it_was_and_by_every_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.db");
    let kept = Decision { configuration: None, framework_time: None, is_final: false };
    for decision in [decision(), kept, Decision { is_final: false, ..decision() }] {
        // The latest counts.
        open(&path).keep_decision(&device("a"), &key(), &decision).unwrap();
        for cache in [open(&path), Cache::open_read_only(&path).unwrap()] {
            assert_eq!(cache.decision(&device("a"), &key()).unwrap(), Some(decision.clone()));
        }
    }
}

#[test]
fn another_question_finds_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(&folder.path().join("cache.db"));
    cache.keep_decision(&device("a"), &key(), &decision()).unwrap();
    let admission = key().admission;
    let others = [
        DecisionKey { problem: problem(7), ..key() },
        DecisionKey { chosen: Algorithm::new("engine1 4096"), ..key() },
        DecisionKey { chosen_workspace: Bytes(4352), ..key() },
        DecisionKey { limit: Bytes(4097), ..key() },
        DecisionKey { sizes: "fit".to_owned(), ..key() },
        DecisionKey { admission: Admission { deterministic: true, ..admission }, ..key() },
        DecisionKey { admission: Admission { class: Some(Notes::NONE.class()), ..admission }, ..key() },
        DecisionKey { admission: Admission { without: Notes::NONE, ..admission }, ..key() },
        DecisionKey { factors: [2.0f32, 0.0].map(f32::to_bits), ..key() },
        // A negative zero is another number.
        DecisionKey { factors: [1.0f32, -0.0].map(f32::to_bits), ..key() },
        DecisionKey { base: 4, ..key() },
    ];
    for other in others {
        assert_eq!(cache.decision(&device("a"), &other).unwrap(), None, "{other:?}");
    }
    let library = Device { library: "cudnn 9.20.0".to_owned(), ..device("a") };
    for other in [device("b"), library] {
        assert_eq!(cache.decision(&other, &key()).unwrap(), None, "{other}");
    }
    assert_eq!(cache.decision(&device("a"), &key()).unwrap(), Some(decision()));
}

#[test]
fn clearing_takes_decisions_too_by_device() {
    let folder = tempfile::tempdir().unwrap();
    let cache = open(&folder.path().join("cache.db"));
    let names = ["NVIDIA H200", "NVIDIA A100"];
    let measurement = measurement("gemm", 6, 1, 0);
    for name in names {
        cache.keep(&device(name), &problem(6), &measurement).unwrap();
        cache.keep_decision(&device(name), &key(), &decision()).unwrap();
    }
    let left = || names.map(|name| cache.decision(&device(name), &key()).unwrap().is_some());
    assert_eq!((cache.clear(Some("K80")).unwrap(), left()), (0, [true, true]));
    // Only the device's name matches, not its library's.
    assert_eq!((cache.clear(Some("cudnn")).unwrap(), left()), (0, [true, true]));
    assert_eq!((cache.clear(Some("H200")).unwrap(), left()), (1, [false, true]));
    assert_eq!((cache.clear(None).unwrap(), left()), (1, [false, false]));
}

#[test]
fn a_damaged_row_is_no_decision() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.db");
    let cache = open(&path);
    for damage in [
        "configuration = ''",
        "configuration = '{'",
        "configuration = '{}'",
        "configuration = '[1, 2]'",
        "configuration = '{\"parts\": 3}'",
        "configuration = replace(configuration, '4', '-4')",
        "configuration = replace(configuration, 'micro_batch', 'samples')",
        // Of fewer samples than the mini-batch.
        "configuration = replace(configuration, '\"micro_batch\":4', '\"micro_batch\":3')",
        "configuration = substr(configuration, 1, length(configuration) / 2)",
    ] {
        cache.keep_decision(&device("a"), &key(), &decision()).unwrap();
        alter(&path, &format!("UPDATE decision SET {damage}"), 1);
        assert_eq!(cache.decision(&device("a"), &key()).unwrap(), None, "{damage}");
    }
    // A rewritten row is whole again. Impossible times become `None`.
    cache.keep_decision(&device("a"), &key(), &decision()).unwrap();
    alter(&path, "UPDATE decision SET framework_ns = -5", 1);
    let timeless = Decision { framework_time: None, ..decision() };
    assert_eq!(cache.decision(&device("a"), &key()).unwrap(), Some(timeless));
}

#[test]
fn files_without_the_table_are_read_and_get_it_when_they_are_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.db");
    let old = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/f99b3c5/cache.db");
    fs::copy(&old, &path).unwrap();
    let read = Cache::open_read_only(&path).unwrap();
    assert_eq!(read.decision(&device("a"), &key()).unwrap(), None);
    assert!(read.keep_decision(&device("a"), &key(), &decision()).is_err(), "it is read-only");
    drop(read);
    let recordings = Cache::open_read_only(&path).unwrap().recordings().unwrap();
    let cache = open(&path);
    cache.keep_decision(&device("a"), &key(), &decision()).unwrap();
    assert_eq!(cache.recordings().unwrap()[..recordings.len()], recordings, "nothing is lost");
    drop(cache);
    assert_eq!(Cache::open_read_only(&path).unwrap().decision(&device("a"), &key()).unwrap(), Some(decision()));
    // An older program clears the file without knowing the table: no key of another keeps it from that.
    let version: i64 = Connection::open(&path).unwrap().query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(version, 1, "older programs open it");
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch("PRAGMA foreign_keys = ON; DELETE FROM measurement; DELETE FROM division;").unwrap();
    assert_eq!(open(&path).decision(&device("a"), &key()).unwrap(), Some(decision()));
}

#[test]
fn the_table_is_as_its_document_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.db");
    let cache = open(&path);
    let document =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/cache-format.md")).unwrap();
    let row = document.lines().find(|line| line.starts_with("| `decision` |")).unwrap();
    let columns: Vec<String> = Connection::open(&path)
        .unwrap()
        .prepare("SELECT name FROM pragma_table_info('decision')")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(row.split('|').nth(2).unwrap().trim(), columns.join(", "));
    // `null` for the program's own choice, and 0 where something is left to measure.
    let kept = Decision { configuration: None, framework_time: Some(Nanos(5)), is_final: false };
    cache.keep_decision(&device("a"), &key(), &kept).unwrap();
    let stored: (String, i64, i64) = Connection::open(&path)
        .unwrap()
        .query_row("SELECT configuration, framework_ns, is_final FROM decision", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .unwrap();
    assert_eq!(stored, ("null".to_owned(), 5, 0));
}

#[test]
fn decisions_travel_in_profile_files_in_one_order() {
    let folder = tempfile::tempdir().unwrap();
    let [from, to, file] = ["from.db", "to.db", "export.jsonl"].map(|name| folder.path().join(name));
    let devices = ["b", "a"].map(device);
    let keys: Vec<DecisionKey> = [9, 6, 7]
        .map(|batch| DecisionKey { problem: problem(batch), chosen_workspace: Bytes(batch as u64), ..key() })
        .into();
    let kept = Decision { configuration: None, framework_time: None, is_final: false };
    let of = |key: &DecisionKey| if *key == keys[1] { decision() } else { kept.clone() };
    let export = |order: &mut dyn Iterator<Item = &DecisionKey>| {
        fs::remove_file(&from).ok();
        let cache = open(&from);
        for key in order {
            devices.iter().for_each(|device| cache.keep_decision(device, key, &of(key)).unwrap());
        }
        Recording::write(&file, &cache.recordings().unwrap()).unwrap();
        fs::read_to_string(&file).unwrap()
    };
    let lines = export(&mut keys.iter());
    assert_eq!(lines, export(&mut keys.iter().rev()));
    let of_decisions: Vec<&str> = lines.lines().filter(|line| line.contains("\"decision\"")).collect();
    assert_eq!(of_decisions.len(), 6, "{lines}");
    assert!(of_decisions.chunks(3).all(<[&str]>::is_sorted), "{lines}");
    // Without measurements the cache has no other record of a device than its words.
    let read = Recording::read(&file).unwrap();
    assert_eq!(read, open(&from).recordings().unwrap());
    assert_eq!(read.iter().map(|recording| &recording.device).collect::<Vec<_>>(), [&devices[1], &devices[0]]);
    let cache = open(&to);
    import(&cache, &read);
    for (device, key) in devices.iter().flat_map(|device| keys.iter().map(move |key| (device, key))) {
        assert_eq!(cache.decision(device, key).unwrap(), Some(of(key)), "{device} {key:?}");
    }
    assert_eq!(cache.recordings().unwrap(), read);
    assert_eq!(Recording::from_bytes(&Recording::to_bytes(&read).unwrap()).unwrap(), read);
    assert!(Replay::of(read).is_err(), "nothing was measured");
}

#[test]
fn an_import_only_replaces_unfinished_decisions_by_finished_ones() {
    let folder = tempfile::tempdir().unwrap();
    let [from, to] = ["from.db", "to.db"].map(|name| folder.path().join(name));
    let kept = Decision { configuration: None, framework_time: Some(Nanos(5)), is_final: true };
    let unfinished = Decision { is_final: false, ..kept.clone() };
    let other = DecisionKey { problem: problem(7), ..key() };
    let theirs = open(&from);
    theirs.keep_decision(&device("a"), &key(), &decision()).unwrap();
    theirs.keep_decision(&device("a"), &other, &unfinished).unwrap();
    let recordings = theirs.recordings().unwrap();
    let cache = open(&to);
    cache.keep_decision(&device("a"), &key(), &kept).unwrap();
    let imported = || {
        let Imported { measurements, new, replaced, kept, unfinished } = cache.import(&recordings[0]).unwrap();
        assert_eq!(measurements, 0);
        [new, replaced, kept, unfinished]
    };
    assert_eq!(imported(), [1, 0, 1, 1]);
    assert_eq!(cache.decision(&device("a"), &key()).unwrap(), Some(kept.clone()), "the user's own stays");
    assert_eq!(cache.decision(&device("a"), &other).unwrap(), Some(unfinished.clone()), "what is new comes in");
    cache.keep_decision(&device("a"), &key(), &unfinished).unwrap();
    cache.keep_decision(&device("a"), &other, &kept).unwrap();
    assert_eq!(imported(), [0, 1, 1, 0]);
    assert_eq!(cache.decision(&device("a"), &key()).unwrap(), Some(decision()), "unfinished gives way to finished");
    assert_eq!(cache.decision(&device("a"), &other).unwrap(), Some(kept), "and not the other way");
    let [summary] = &cache.summary().unwrap()[..] else { panic!("one device without measurements") };
    assert_eq!((summary.problems, summary.decisions, summary.unfinished), (0, 2, 0));
    alter(&to, "UPDATE decision SET configuration = '{' WHERE problem LIKE '% n6 %'", 1);
    import(&cache, &recordings);
    assert_eq!(cache.decision(&device("a"), &key()).unwrap(), Some(decision()), "a damaged row is none");
}
