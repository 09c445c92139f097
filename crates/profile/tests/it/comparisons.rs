//! Comparisons in the cache are found again regardless of the configuration's time, but only for the same question.

use std::fs;
use std::path::Path;

use rusqlite::Connection;
use tightfit_conv::{Algorithm, Candidate, Configuration, Device, DivisionCost};
use tightfit_profile::{Cache, Comparison, ComparisonKey};
use tightfit_units::{Bytes, Nanos};

fn device(name: &str) -> Device {
    Device { backend: "cuda".to_owned(), name: name.to_owned(), library: "cudnn 9.19.0".to_owned(), threads: 0 }
}

fn key(batch: usize) -> ComparisonKey {
    let problem = format!("backward-filter n{batch} c3 h8 w8 k4 r3 s3 f16-f32").parse().unwrap();
    ComparisonKey { problem, factors: [0x3f80_0000, 0], base: 16 }
}

fn configuration(time: u64, workspace: u64) -> Configuration {
    let part = |micro_batch, algorithm: &str| {
        Candidate::new(Algorithm::new(algorithm), micro_batch, Nanos(time), Bytes(workspace))
    };
    let cost = DivisionCost { time: Nanos(time), workspace: Bytes(512) };
    Configuration::new(vec![part(4, "engine2:k25=1"), part(2, "legacy:algo-1")], cost)
}

/// A comparison that includes the program's own choice.
fn compared(time: u64, workspace: u64, error: f64) -> Comparison {
    let own = Some((Algorithm::new("engine9"), 1e-8));
    Comparison { configuration: configuration(time, workspace), error, own }
}

fn alter(path: &Path, statement: &str) {
    assert_eq!(Connection::open(path).unwrap().execute(statement, []).unwrap(), 1, "{statement}");
}

#[test]
fn a_comparison_is_found_regardless_of_times() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.db");
    for (time, error) in [(70, 1e-7), (90, 0.0), (70, 0.25)] {
        // The latest counts.
        let cache = Cache::open(&path).unwrap();
        cache.keep_comparisons(&device("a"), &key(6), &[compared(time, 1024, error)]).unwrap();
        for cache in [cache, Cache::open_read_only(&path).unwrap()] {
            assert_eq!(cache.comparisons(&device("a"), &key(6)).unwrap(), [compared(0, 1024, error)]);
            assert_eq!(cache.comparisons(&device("b"), &key(6)).unwrap(), []);
            // Each part of the question counts.
            let others = [
                key(7),
                ComparisonKey { factors: [0x3f80_0000, 0x3f80_0000], ..key(6) },
                ComparisonKey { base: 4, ..key(6) },
            ];
            others.iter().for_each(|other| assert_eq!(cache.comparisons(&device("a"), other).unwrap(), []));
        }
    }
    // Another workspace is another library's, and the own choice may have had no room.
    let cache = Cache::open(&path).unwrap();
    for endless in [f64::INFINITY, f64::NAN] {
        let alone = |time, error| Comparison { own: None, ..compared(time, 2048, error) };
        cache.keep_comparisons(&device("a"), &key(6), &[alone(70, endless)]).unwrap();
        assert_eq!(cache.comparisons(&device("a"), &key(6)).unwrap(), [compared(0, 1024, 0.25), alone(0, 1e9)]);
    }
    // Sizes that do not add up and negative errors are refused.
    let wrong_own = Comparison { own: Some((Algorithm::new("engine9"), -1.0)), ..compared(70, 1, 0.5) };
    for (key, new) in [(key(7), compared(70, 1, 0.5)), (key(6), compared(70, 1, -1.0)), (key(6), wrong_own)] {
        let kept = cache.keep_comparisons(&device("a"), &key, std::slice::from_ref(&new));
        assert!(kept.is_err_and(|error| error.to_string().contains("a comparison")), "{new:?}");
    }
}

#[test]
fn a_damaged_row_is_left_out_counted_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.db");
    let cache = Cache::open(&path).unwrap();
    for damage in [
        "configuration = ''",
        "configuration = 'null'",
        "configuration = replace(configuration, '\"micro_batch\":4', '\"micro_batch\":3')",
        "problem = 'forward'",
        "error = -1",
        "error = 1e10",
        "own = NULL",
        "own = CAST(x'ff' AS TEXT), own_error = NULL",
        "own_error = 1e10",
    ] {
        cache.keep_comparisons(&device("a"), &key(6), &[compared(70, 1024, 0.5)]).unwrap();
        assert_eq!(cache.left_out().unwrap(), 0);
        alter(&path, &format!("UPDATE comparison SET {damage}"));
        assert_eq!(cache.comparisons(&device("a"), &key(6)).unwrap(), [], "{damage}");
        assert_eq!(cache.left_out().unwrap(), 1, "{damage}");
        cache.clear(Some("no such device")).unwrap();
        assert_eq!(cache.left_out().unwrap(), 0, "{damage}");
    }
    for name in ["a", "b"] {
        cache.keep_comparisons(&device(name), &key(6), &[compared(70, 1024, 0.5)]).unwrap();
    }
    cache.clear(Some("a")).unwrap();
    assert_eq!(["a", "b"].map(|name| cache.comparisons(&device(name), &key(6)).unwrap().len()), [0, 1]);
}

#[test]
fn files_without_the_table_are_read_and_get_it_when_they_are_written_to() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.db");
    let data = Path::new(env!("CARGO_MANIFEST_DIR"));
    fs::copy(data.join("tests/data/f99b3c5/cache.db"), &path).unwrap();
    let new = [compared(70, 1024, 0.5)];
    let read = Cache::open_read_only(&path).unwrap();
    assert_eq!(read.comparisons(&device("a"), &key(6)).unwrap(), []);
    assert_eq!(read.left_out().unwrap(), 0);
    assert!(read.keep_comparisons(&device("a"), &key(6), &new).is_err(), "it is read-only");
    let recordings = read.recordings().unwrap();
    drop(read);
    let cache = Cache::open(&path).unwrap();
    cache.keep_comparisons(&device("a"), &key(6), &new).unwrap();
    assert_eq!(cache.recordings().unwrap(), recordings, "nothing is lost");
    let connection = Connection::open(&path).unwrap();
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(version, 1, "older programs open it");
    connection.execute_batch("PRAGMA foreign_keys = ON; DELETE FROM measurement; DELETE FROM division;").unwrap();
    assert_eq!(cache.comparisons(&device("a"), &key(6)).unwrap().len(), 1);
    // The document has its columns.
    let document = fs::read_to_string(data.join("../../docs/cache-format.md")).unwrap();
    let row = document.lines().find(|line| line.starts_with("| `comparison` |")).unwrap();
    let mut columns = connection.prepare("SELECT name FROM pragma_table_info('comparison')").unwrap();
    let columns: Vec<String> = columns.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(row.split('|').nth(2).unwrap().trim(), columns.join(", "));
}
