//! Caches: damaged bytes, journals of other caches, changed tables. A refused cache stays as it is, and a good one is not
//! harmed by merging a bad one.

use rusqlite::Connection;

use super::bench::LENET;
use super::case::Case;
use super::mutate;
use super::recordings::measurements;

/// Changes that another program, or a person, may make to the tables.
const SQL: [&str; 40] = [
    "UPDATE measurement SET time_ns = 0",
    "UPDATE measurement SET time_ns = -1",
    "UPDATE measurement SET time_ns = 9223372036854775807",
    "UPDATE measurement SET workspace_bytes = 64",
    "UPDATE measurement SET workspace_bytes = workspace_bytes + 65537",
    "UPDATE measurement SET workspace_bytes = -9223372036854775808",
    "UPDATE measurement SET micro_batch = -micro_batch",
    "UPDATE measurement SET micro_batch = micro_batch - 1",
    "UPDATE measurement SET micro_batch = 9223372036854775800 + micro_batch",
    "UPDATE measurement SET spread = 1e308",
    "UPDATE measurement SET spread = 9e999",
    "UPDATE measurement SET spread = -1.0, repeats = -1, notes = -1",
    "UPDATE measurement SET repeats = 4294967296, notes = 4294967296",
    "UPDATE measurement SET algorithm = algorithm || char(10, 0, 27) || micro_batch",
    "UPDATE measurement SET algorithm = printf('%.100000c', 'x') WHERE micro_batch = 1",
    "DELETE FROM measurement WHERE micro_batch = 1",
    "DELETE FROM measurement",
    "UPDATE device SET threads = -1",
    "UPDATE device SET threads = 9223372036854775807",
    "UPDATE device SET name = '', library = '', backend = ''  WHERE id = 1",
    "UPDATE device SET name = printf('%.100000c', 'x') || id",
    "UPDATE problem SET shape = 'rubbish ' || id",
    "UPDATE problem SET shape = replace(shape, 'c', 'c1844674407370955161')",
    "UPDATE problem SET shape = ''  WHERE id = 1",
    "UPDATE network SET batch = -batch",
    "UPDATE network SET batch = 9223372036854775807, name = char(0)  WHERE id = 1",
    "UPDATE layer SET mini_batch = -1",
    "UPDATE layer SET position = -position, name = ''",
    "UPDATE layer SET problem = problem + 1000",
    "PRAGMA foreign_keys = OFF; DELETE FROM device",
    "PRAGMA foreign_keys = OFF; DELETE FROM problem",
    "DROP TABLE layer",
    "DROP TABLE measurement",
    "DROP TABLE measurement; CREATE TABLE measurement (device, problem, algorithm, micro_batch, time_ns, single_ns, \
     workspace_bytes, spread, repeats, notes); INSERT INTO measurement VALUES (1, 1, x'ff', 'two', 3.5, '', null, 'x', x'00', '')",
    "PRAGMA foreign_keys = OFF; ALTER TABLE measurement RENAME TO kept; CREATE VIEW measurement AS WITH RECURSIVE \
     more(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM more) SELECT 1 device, 1 problem, 'direct' algorithm, n micro_batch, \
     1 time_ns, 1 single_ns, 0 workspace_bytes, 0.0 spread, 3 repeats, 0 notes FROM more",
    "PRAGMA foreign_keys = OFF; ALTER TABLE device RENAME TO kept; CREATE VIEW device AS WITH RECURSIVE \
     more(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM more) SELECT n id, 'cpu' backend, 'x' name, 'y' library, 1 threads FROM more",
    "CREATE TRIGGER more AFTER INSERT ON measurement BEGIN DELETE FROM measurement; END",
    "CREATE TABLE big AS WITH RECURSIVE more(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM more LIMIT 20000) \
     SELECT n, hex(randomblob(200)) FROM more",
    "PRAGMA user_version = 2147483647",
    "PRAGMA application_id = 0",
];

pub fn attack(case: &mut Case) {
    let has_journal = damage(case);
    let as_it_was = case.read("m.db");
    for action in ["list", "list --layers", "export out.jsonl"] {
        case.run(&format!("cache {action} --cache m.db"));
    }
    case.write("good.db", case.bench.bytes("good.db"));
    let before = measurements(case, "good.db");
    case.run("cache merge m.db --cache good.db");
    if !has_journal {
        let now = case.read("m.db");
        case.expect(now == as_it_was, || "reading a cache changed it".to_owned());
    }
    let after = measurements(case, "good.db");
    case.expect(after >= before, || format!("merging made {before:?} measurements {after:?}"));
    let kept = case.run("cache export kept.jsonl --cache good.db");
    case.expect(kept.succeeded(), || format!("merging made a good cache unreadable: {}", kept.stderr));
    case.run(&format!("{LENET} --layers conv1 --backend cpu --cache m.db"));
    let good = case.bench.path("lenet.jsonl").display().to_string();
    case.run(&format!("cache import {good} --cache m.db"));
    case.run("cache clear --device nothing --cache m.db");
}

/// Makes `m.db`. Returns whether it comes with a journal.
fn damage(case: &mut Case) -> bool {
    let mut bytes = case.bench.bytes("good.db");
    // The first inputs have each statement once.
    if let Some(sql) = SQL.get(case.number as usize) {
        case.write("m.db", bytes);
        change(case, sql);
        return false;
    }
    match case.random.below(8) {
        0..=3 => {
            case.write("m.db", bytes);
            for _ in 0..case.random.few() {
                let sql = *case.random.pick(&SQL);
                change(case, sql);
            }
            false
        }
        4 => {
            let (name, journal) = journal(case);
            case.write("m.db", bytes);
            case.write(name, journal);
            true
        }
        5 => {
            let others = ["lenet.jsonl", "good.jsonl.gz", "plan.json.gz", "other.db"];
            let other = *case.random.pick(&others);
            let mut other = case.bench.bytes(other);
            other.truncate(other.len() - case.random.below(8));
            case.write("m.db", other);
            false
        }
        _ => {
            for _ in 0..=case.random.below(3) {
                mutate::bytes(&mut bytes, &mut case.random);
            }
            case.write("m.db", bytes);
            false
        }
    }
}

/// Runs a statement on the tables of `m.db`. A refused statement leaves the file unchanged, which is an input too.
fn change(case: &Case, sql: &str) {
    let connection = Connection::open(case.folder().join("m.db")).unwrap();
    let _ = connection.execute_batch(sql);
    // Otherwise the journal would hold the changes until another connection comes.
    let _ = connection.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(()));
}

/// A journal that is not this cache's, by the name under which SQLite looks for one.
fn journal(case: &mut Case) -> (&'static str, Vec<u8>) {
    let name = *case.random.pick(&["m.db-wal", "m.db-journal", "m.db-shm"]);
    if case.random.one_in(3) {
        return (name, case.bench.bytes("lenet.jsonl"));
    }
    case.write("x.db", case.bench.bytes("other.db"));
    let connection = Connection::open(case.folder().join("x.db")).unwrap();
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(())).unwrap();
    connection.execute_batch("UPDATE measurement SET time_ns = time_ns + 1").unwrap();
    let mut bytes = case.read(&name.replace("m.db", "x.db"));
    if bytes.is_empty() {
        bytes = case.read("x.db-wal");
    }
    mutate::bytes(&mut bytes, &mut case.random);
    (name, bytes)
}
