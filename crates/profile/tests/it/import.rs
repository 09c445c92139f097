//! Data accepted by import can be read by list, export and merge. Inputs are generated and mutated lines, and caches that were altered by hand.

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use tightfit_conv::{Algorithm, Candidate, Configuration, Device, DivisionCost, Measurement, Notes, Problem};
use tightfit_network::Kernel;
use tightfit_profile::{Admission, Cache, Decision, DecisionKey, Owner, Recording};
use tightfit_units::{Bytes, Error, Nanos};

const SHAPE: &str = "forward c3 h8 w8 k4 r3 s3 f32";

fn device() -> Device {
    Device { backend: "cpu".to_owned(), name: "good".to_owned(), library: "1".to_owned(), threads: 2 }
}

fn problem() -> Problem {
    format!("{SHAPE} n4").parse().unwrap()
}

fn measurement(algorithm: &str, micro_batch: usize) -> Measurement {
    Measurement {
        algorithm: Algorithm::new(algorithm),
        micro_batch,
        time: Nanos(1000),
        single: Some(Nanos(1001)),
        workspace: Bytes(64),
        spread: 0.25,
        repeats: 3,
        notes: Notes::FFT,
    }
}

fn key() -> DecisionKey {
    DecisionKey {
        problem: problem(),
        chosen: Algorithm::new("gemm"),
        chosen_workspace: Bytes(64),
        limit: Bytes(64),
        sizes: "fit".to_owned(),
        admission: Admission::default(),
        factors: [1.0f32, 0.0].map(f32::to_bits),
        base: 16,
    }
}

fn decision() -> Decision {
    let part = |micro_batch| Candidate::new(Algorithm::new("fft"), micro_batch, Nanos(70), Bytes(32));
    let cost = DivisionCost { time: Nanos(9), workspace: Bytes(8) };
    let configuration = Configuration::new(vec![part(3), part(1)], cost);
    Decision { configuration: Some(configuration), framework_time: Some(Nanos(300)), is_final: true }
}

/// A cache with something of everything.
fn filled(path: &Path) -> Cache {
    let cache = Cache::open(path).unwrap();
    for size in [2, 4] {
        cache.keep(&device(), &problem(), &measurement("gemm", size)).unwrap();
    }
    let kernel = |layer: &str| Kernel { layer: layer.to_owned(), problem: problem() };
    cache.keep_network("tiny", Some(4), &[kernel("conv1"), kernel("conv2")]).unwrap();
    cache.keep_network("list", None, &[kernel("conv1")]).unwrap();
    cache.add_to_program("train.py", &[kernel("conv1")]).unwrap();
    cache.keep_division_cost(&device(), SHAPE, DivisionCost::NEVER).unwrap();
    cache.keep_decision(&device(), &key(), &decision()).unwrap();
    cache
}

/// Reads a cache in every way, exports it, and takes the export into another, which then holds the same.
fn holds_and_travels(cache: &Cache, folder: &Path) {
    let recordings = cache.recordings().unwrap();
    let rows: usize = recordings.iter().flat_map(Recording::measurements).map(|(_, rows)| rows.len()).sum();
    let listed: usize = cache.summary().unwrap().iter().map(|line| line.measurements).sum();
    assert_eq!(rows, listed);
    assert_eq!(cache.left_out().unwrap(), 0);
    let file = folder.join("export.jsonl.gz");
    Recording::write(&file, &recordings).unwrap();
    let read = Recording::read(&file).unwrap();
    let other = Cache::open(&folder.join("other.db")).unwrap();
    for recording in &read {
        other.import(recording).unwrap();
    }
    assert_eq!(other.recordings().unwrap(), read);
    assert_eq!(other.networks().unwrap(), cache.networks().unwrap());
    // Exact, where nothing was rounded for the file.
    let merged = Cache::open(&folder.join("merged.db")).unwrap();
    for recording in &recordings {
        merged.import(recording).unwrap();
    }
    assert_eq!(merged.recordings().unwrap(), recordings);
    let bytes = Recording::to_bytes(&recordings).unwrap();
    assert_eq!(Recording::from_bytes(&bytes).unwrap(), recordings);
}

/// Imports lines into a cache that holds something; none if they are refused.
fn import(lines: &[Value], folder: &Path) -> Result<Cache, Error> {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    import_text(&text, folder)
}

fn import_text(text: &str, folder: &Path) -> Result<Cache, Error> {
    let file = folder.join("profile.jsonl");
    fs::write(&file, text).unwrap();
    let recordings = Recording::read(&file)?;
    let cache = filled(&folder.join("cache.db"));
    for recording in &recordings {
        cache.import(recording).unwrap();
    }
    Ok(cache)
}

fn profile() -> Vec<Value> {
    vec![
        json!({"format": "tightfit-profile", "version": 1}),
        json!({"network": {"name": "n", "batch": 4, "layers": [["conv1", SHAPE, 4]]}}),
        json!({"network": {"name": "p", "batch": 0, "layers": [["", SHAPE, 4], ["conv1", SHAPE, 8]]}}),
        json!({"device": {"backend": "cpu", "name": "X", "library": "y", "threads": 1}}),
        json!({"division": SHAPE, "time_ns": 10, "workspace_bytes": 20}),
        json!({"problem": SHAPE, "algorithm": "direct", "notes": 0, "rows": [[4, 1000, 0, 0.125, 3, null]]}),
        json!({"problem": "step tiny f32", "algorithm": "s", "notes": 0, "rows": [[2, 9, 0, 0.0, 1, 7], [3, null, 5, 0.0, 1, null]]}),
        json!({
            "decision": "forward n4 c3 h8 w8 k4 r3 s3 f32", "question": "gemm 64 limit 64", "framework_ns": 300, "is_final": true,
            "configuration": {
                "parts": [
                    {"micro_batch": 3, "algorithm": "fft", "time": 70, "workspace": 32},
                    {"micro_batch": 1, "algorithm": "fft", "time": 70, "workspace": 32},
                ],
                "cost": {"time": 9, "workspace": 8},
            },
        }),
    ]
}

/// Values where something ends.
fn values() -> Vec<Value> {
    let mut values: Vec<Value> = vec![
        json!(null),
        json!(-1),
        json!(0.5),
        json!(1e308),
        json!(1e-310),
        json!("text"),
        json!([]),
        json!(""),
        json!("step x f32"),
        json!("rubbish shape"),
        json!("forward c3 h8 w8 k4 r3 s3 f16"),
        json!("forward c3 h8 w8 k4 r3 s3 f32 n4"),
        json!("\u{0}\u{fffd}\n"),
        json!("list"),
    ];
    for number in [0, 1, 4, 1 << 20, (1 << 20) + 1, 1 << 53, (1 << 53) + 1, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX] {
        values.push(json!(number));
    }
    values
}

/// Places of the values in a document, as pointers.
fn places(value: &Value, here: String, found: &mut Vec<String>) {
    match value {
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(place, value)| places(value, format!("{here}/{place}"), found));
        }
        Value::Object(values) => {
            values.iter().for_each(|(name, value)| places(value, format!("{here}/{name}"), found));
        }
        _ => {}
    }
    found.push(here);
}

#[test]
fn a_line_that_could_not_be_read_back_is_refused_with_its_number_and_field() {
    let folder = tempfile::tempdir().unwrap();
    let most = u64::MAX;
    for (line, pointer, value, field) in [
        (1, "/network/batch", json!(most), "batch"),
        (1, "/network/batch", json!((1 << 20) + 1), "batch"),
        (1, "/network/layers/0/1", json!("rubbish shape"), "rubbish"),
        (1, "/network/layers/0/2", json!(0), "mini_batch"),
        (1, "/network/layers/0/2", json!(most), "mini_batch"),
        (1, "/network/layers/0/1", json!("step tiny f32"), "conv1"),
        (3, "/device/threads", json!(1_u64 << 63), "threads"),
        (5, "/rows/0/0", json!(0), "micro_batch"),
        (5, "/rows/0/0", json!(i64::MAX), "micro_batch"),
        (5, "/rows/0/1", json!(0), "time_ns"),
        (5, "/rows/0/1", json!(i64::MAX), "time_ns"),
        (5, "/rows/0/2", json!(most), "workspace_bytes"),
        (5, "/rows/0/3", json!(1e308), "spread"),
        (5, "/rows/0/3", json!(-0.5), "spread"),
        (5, "/rows/0/5", json!(0), "single_ns"),
        (6, "/rows/1/2", json!(most), "workspace_bytes"),
        (7, "/decision", json!(SHAPE), "decision"),
        (7, "/decision", json!("step tiny f32"), "decision"),
        (7, "/question", json!(""), "question has 0 bytes"),
        (7, "/question", json!("a".repeat(4097)), "question has 4097 bytes"),
        (7, "/framework_ns", json!((1_u64 << 53) + 1), "framework_ns"),
        // Not the samples of the mini-batch, and more than can be added.
        (7, "/configuration/parts/0/micro_batch", json!(2), "add up to 3, not to the mini-batch of 4"),
        (7, "/configuration/parts", json!([]), "add up to 0"),
        (7, "/configuration/parts/0/micro_batch", json!(0), "micro_batch is 0"),
        (7, "/configuration/parts/0/micro_batch", json!(most), "samples"),
        (7, "/configuration/parts/0/time", json!((1_u64 << 53) + 1), "time"),
        (7, "/configuration/parts/0/workspace", json!((1_u64 << 53) + 1), "workspace"),
        (7, "/configuration/cost/time", json!((1_u64 << 53) + 1), "cost.time"),
        (7, "/configuration/cost/workspace", json!((1_u64 << 53) + 1), "cost.workspace"),
    ] {
        let mut lines = profile();
        *lines[line].pointer_mut(pointer).unwrap() = value.clone();
        let error = import(&lines, folder.path()).map(drop).unwrap_err().chain();
        let number = format!("line {}", line + 1);
        assert!(error.contains(&number) && error.contains(field), "{pointer} {value}: {error}");
    }
    assert!(import(&profile(), folder.path()).is_ok());
}

#[test]
fn a_line_of_two_kinds_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (line, field, value) in [
        (3, "lines", json!(4)),
        (5, "time_ns", json!(4)),
        (4, "notes", json!(0)),
        (0, "rows", json!([])),
        (5, "is_final", json!(true)),
        (3, "configuration", json!(null)),
        (7, "time_ns", json!(4)),
    ] {
        let mut lines = profile();
        lines[line][field] = value;
        let error = import(&lines, folder.path()).map(drop).unwrap_err().to_string();
        assert!(error.contains(&format!("line {} is not a line", line + 1)), "{field}: {error}");
    }
}

#[test]
fn a_decision_without_one_of_its_fields_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for field in ["decision", "question", "configuration", "is_final"] {
        let mut lines = profile();
        lines[7].as_object_mut().unwrap().remove(field).unwrap();
        let error = import(&lines, folder.path()).map(drop).unwrap_err().to_string();
        assert!(error.contains("line 8 is not a line"), "{field}: {error}");
    }
    // Null is the program's own choice, and its time may be unknown.
    let mut lines = profile();
    lines[7]["configuration"] = json!(null);
    lines[7].as_object_mut().unwrap().remove("framework_ns").unwrap();
    let cache = import(&lines, folder.path()).unwrap();
    let recordings = cache.recordings().unwrap();
    let (.., kept) = recordings[1].decisions().next().unwrap();
    assert_eq!(*kept, Decision { configuration: None, framework_time: None, is_final: true });
}

#[test]
fn endless_and_unpacked_lines_end_at_a_bound() {
    let folder = tempfile::tempdir().unwrap();
    if Path::new("/dev/zero").exists() {
        let error = Recording::read(Path::new("/dev/zero")).unwrap_err().chain();
        assert!(error.contains("line 1") && error.contains("longer than 64 MiB"), "{error}");
    }
    // 65 MiB of blanks in a few kilobytes.
    let file = folder.path().join("blanks.jsonl.gz");
    let mut packed = flate2::write::GzEncoder::new(fs::File::create(&file).unwrap(), flate2::Compression::fast());
    std::io::copy(&mut std::io::Read::take(std::io::repeat(b' '), 65 << 20), &mut packed).unwrap();
    packed.finish().unwrap();
    let error = Recording::read(&file).unwrap_err().chain();
    assert!(error.contains("line 1") && error.contains("longer than 64 MiB"), "{error}");
}

#[test]
fn the_cache_refuses_values_that_a_file_could_not_hold() {
    let folder = tempfile::tempdir().unwrap();
    let cache = filled(&folder.path().join("cache.db"));
    let good = measurement("gemm", 4);
    for bad in [
        Measurement { micro_batch: 0, ..good.clone() },
        Measurement { micro_batch: usize::MAX, ..good.clone() },
        Measurement { time: Nanos(0), ..good.clone() },
        Measurement { time: Nanos(u64::MAX), ..good.clone() },
        Measurement { single: Some(Nanos(u64::MAX)), ..good.clone() },
        Measurement { workspace: Bytes::UNLIMITED, ..good.clone() },
        Measurement { spread: f64::NAN, ..good.clone() },
        Measurement { spread: f64::INFINITY, ..good.clone() },
    ] {
        assert!(matches!(cache.keep(&device(), &problem(), &bad), Err(Error::BadOption { .. })), "{bad:?}");
        assert!(cache.keep_all(&device(), SHAPE, std::slice::from_ref(&bad)).is_err(), "{bad:?}");
    }
    assert!(cache.keep_all(&device(), "rubbish shape", std::slice::from_ref(&good)).is_err());
    assert!(cache.keep_all(&Device { threads: usize::MAX, ..device() }, SHAPE, &[good]).is_err());
    assert!(cache.keep_division_cost(&device(), "rubbish shape", DivisionCost::default()).is_err());
    holds_and_travels(&cache, folder.path());
}

#[test]
fn a_list_and_a_program_of_one_name_stay_apart() {
    let folder = tempfile::tempdir().unwrap();
    let cache = filled(&folder.path().join("cache.db"));
    let kernel = |layer: &str| Kernel { layer: layer.to_owned(), problem: problem() };
    cache.add_to_program("list", &[kernel("a")]).unwrap();
    cache.keep_network("list", None, &[kernel("b")]).unwrap();
    cache.add_to_program("list", &[kernel("c")]).unwrap();
    let networks = cache.networks().unwrap();
    let layers = |owner: Owner| -> Vec<&str> {
        let network = networks.iter().find(|network| network.name == "list" && network.owner == owner).unwrap();
        network.layers.iter().map(|(layer, ..)| layer.as_str()).collect()
    };
    assert_eq!(layers(Owner::Program), ["a", "c"]);
    assert_eq!(layers(Owner::Network { batch: None }), ["b"]);
    holds_and_travels(&cache, folder.path());
}

#[test]
fn invalid_rows_are_ignored_counted_and_cleared() {
    for (alteration, left_out) in [
        ("UPDATE measurement SET micro_batch = 0 WHERE micro_batch = 2", 1),
        ("UPDATE measurement SET micro_batch = 9223372036854775807 WHERE micro_batch = 2", 1),
        ("UPDATE measurement SET micro_batch = -1 WHERE micro_batch = 2", 1),
        ("UPDATE measurement SET time_ns = 0 WHERE micro_batch = 2", 1),
        ("UPDATE measurement SET time_ns = 9223372036854775807 WHERE micro_batch = 2", 1),
        ("UPDATE measurement SET single_ns = -5 WHERE micro_batch = 2", 1),
        ("UPDATE measurement SET workspace_bytes = -5 WHERE micro_batch = 2", 1),
        ("UPDATE measurement SET spread = 1e308 WHERE micro_batch = 2", 1),
        ("UPDATE measurement SET spread = -9e999 WHERE micro_batch = 2", 1),
        ("UPDATE measurement SET repeats = -1 WHERE micro_batch = 2", 1),
        ("UPDATE measurement SET notes = 4294967296 WHERE micro_batch = 2", 1),
        ("UPDATE network SET batch = -1 WHERE name = 'tiny'", 2),
        ("UPDATE network SET batch = 4000000000 WHERE name = 'tiny'", 2),
        ("UPDATE layer SET mini_batch = 0 WHERE name = 'conv2'", 1),
        ("UPDATE layer SET mini_batch = -1 WHERE name = 'conv2'", 1),
        ("UPDATE decision SET configuration = '{}'", 1),
        ("UPDATE decision SET configuration = replace(configuration, '\"micro_batch\":3', '\"micro_batch\":2')", 1),
        ("UPDATE decision SET problem = 'rubbish'", 1),
        ("UPDATE decision SET question = ''", 1),
        (
            "INSERT INTO device VALUES (9, 'b', 'n', 'l', -1);
          INSERT INTO measurement SELECT 9, problem, algorithm, micro_batch, 1, 1, 1, 0.0, 1, 0 FROM measurement",
            2,
        ),
        (
            "INSERT INTO problem VALUES (9, 'rubbish');
          INSERT INTO measurement SELECT device, 9, algorithm, micro_batch, 1, 1, 1, 0.0, 1, 0 FROM measurement;
          INSERT INTO division SELECT device, 9, 0, 0 FROM division;
          UPDATE layer SET problem = 9 WHERE name = 'conv2'",
            4,
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache.db");
        drop(filled(&path));
        rusqlite::Connection::open(&path).unwrap().execute_batch(alteration).unwrap();
        for cache in [Cache::open_read_only(&path).unwrap(), Cache::open(&path).unwrap()] {
            assert_eq!(cache.left_out().unwrap(), left_out, "{alteration}");
            // The other rows are present, and every row read can be written and read again.
            let recordings = cache.recordings().unwrap();
            assert_eq!(recordings.iter().filter(|recording| recording.device == device()).count(), 1, "{alteration}");
            assert!(!recordings[0].of(SHAPE).is_empty(), "{alteration}");
            assert!(cache.networks().unwrap().iter().any(|network| network.name == "train.py"), "{alteration}");
            assert!(!cache.measurements(&device(), &problem()).unwrap().is_empty(), "{alteration}");
            assert_eq!(cache.summary().unwrap().len(), 1, "{alteration}");
            let file = folder.path().join("export.jsonl");
            Recording::write(&file, &recordings).unwrap();
            assert_eq!(Recording::read(&file).unwrap(), recordings, "{alteration}");
        }
        let cache = Cache::open(&path).unwrap();
        cache.clear(Some("no device has this name")).unwrap();
        assert_eq!(cache.left_out().unwrap(), 0, "{alteration}");
        holds_and_travels(&cache, folder.path());
    }
}

#[test]
fn an_invalid_row_is_measured_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.db");
    drop(filled(&path));
    let connection = rusqlite::Connection::open(&path).unwrap();
    connection.execute_batch("UPDATE measurement SET time_ns = 0, repeats = 900").unwrap();
    let cache = Cache::open(&path).unwrap();
    assert_eq!(cache.measurements(&device(), &problem()).unwrap(), []);
    cache.keep(&device(), &problem(), &measurement("gemm", 4)).unwrap();
    assert_eq!(cache.measurements(&device(), &problem()).unwrap(), [measurement("gemm", 4)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn imported_recordings_can_be_listed_exported_and_merged(
        mutations in proptest::collection::vec((0..8usize, any::<prop::sample::Index>(), prop::sample::select(values())), 1..4),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut lines = profile();
        for (line, place, value) in mutations {
            let mut found = Vec::new();
            places(&lines[line], String::new(), &mut found);
            let place: &String = place.get(found.as_slice());
            *lines[line].pointer_mut(place).unwrap() = value;
        }
        if let Ok(cache) = import(&lines, folder.path()) {
            holds_and_travels(&cache, folder.path());
        }
    }

    #[test]
    fn an_edited_profile_is_refused_or_survives_a_round_trip(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), prop::sample::select(br#"0159-.eE,:"[]{}nfx \"#.to_vec())), 1..4),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let mut text: Vec<u8> = profile().iter().flat_map(|line| format!("{line}\n").into_bytes()).collect();
        for (place, byte) in changes {
            let place = place.index(text.len());
            text[place] = byte;
        }
        if let Ok(cache) = import_text(&String::from_utf8(text).unwrap(), folder.path()) {
            holds_and_travels(&cache, folder.path());
        }
    }
}
