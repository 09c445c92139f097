//! Eight writers on one cache, of which some are killed. After every kill the file is whole, and every import that reported
//! success is there.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use tempfile::TempDir;

use super::child::{Setup, start};
use super::generator::Generator;

const WRITERS: u64 = 8;

/// Counts of the writers' work.
#[derive(Debug, Default)]
pub struct Count {
    pub processes: AtomicU64,
    pub kills: AtomicU64,
    pub imports: AtomicU64,
}

/// Lets the writers run `turns` processes each.
pub fn write(turns: u64) -> Count {
    let folder = tempfile::tempdir().unwrap();
    let (count, reported) = (Count::default(), Mutex::new(HashSet::new()));
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (folder, count, reported) = (&folder, &count, &reported);
            scope.spawn(move || {
                let mut random = Generator::of("writers", writer);
                (0..turns).for_each(|turn| take_turn(folder, writer, turn, &mut random, count, reported));
            });
        }
    });
    let there = measured(&folder.path().join("c.db"));
    let missing: Vec<String> = reported.into_inner().unwrap().difference(&there).cloned().collect();
    assert!(missing.is_empty(), "imports reported success and are not there: {missing:?}");
    count
}

/// One process, which is sometimes killed: an import of a new measurement, or now and then a reader or a merge.
fn take_turn(
    folder: &TempDir,
    writer: u64,
    turn: u64,
    random: &mut Generator,
    count: &Count,
    reported: &Mutex<HashSet<String>>,
) {
    let name = format!("a{writer}-{turn}");
    let profile = format!(
        r#"{{"format":"tightfit-profile","version":1}}
{{"device":{{"backend":"cpu","name":"writer {writer}","library":"none","threads":1}}}}
{{"problem":"forward c3 h8 w8 k4 r3 s3 f32","algorithm":"{name}","notes":0,"rows":[[4,1000,0,0.0,3,null]]}}
"#
    );
    let file = format!("{writer}.jsonl");
    fs::write(folder.path().join(&file), profile).unwrap();
    let arguments = match random.below(10) {
        0 if turn > 0 => "cache list --cache c.db".to_owned(),
        1 => format!("cache export {writer}.out --cache c.db"),
        2 => format!("cache merge c.db --cache copy-{writer}.db"),
        _ => format!("cache import {file} --cache c.db"),
    };
    let words: Vec<OsString> = arguments.split_whitespace().map(OsString::from).collect();
    let mut child = start(folder.path(), &words, &Setup::default());
    count.processes.fetch_add(1, Ordering::Relaxed);
    let is_killed = random.one_in(4);
    if is_killed {
        std::thread::sleep(Duration::from_micros(random.below(40_000) as u64));
        child.kill();
        count.kills.fetch_add(1, Ordering::Relaxed);
    }
    let ending = child.finish();
    let is_import = arguments.starts_with("cache import");
    // Readers may come before the cache is there, or while it has nothing in it.
    let is_well = is_killed || ending.succeeded() || (!is_import && ending.status.code() == Some(1));
    assert!(
        is_well && ending.trouble(true).is_none() || is_killed,
        "{arguments}: {:?} {}",
        ending.status,
        ending.stderr
    );
    if is_import && ending.succeeded() {
        count.imports.fetch_add(1, Ordering::Relaxed);
        reported.lock().unwrap().insert(name);
    }
    if is_killed {
        // The look must find every import that was reported before it, and may find later ones.
        let before = reported.lock().unwrap().clone();
        let cache = folder.path().join("c.db");
        let missing: Vec<String> = before.difference(&measured(&cache)).cloned().collect();
        assert!(missing.is_empty(), "{missing:?} are gone after a kill of {arguments}");
    }
}

/// The algorithms with measurements in a cache, after an integrity check. Empty if the cache does not exist yet.
fn measured(cache: &Path) -> HashSet<String> {
    let Ok(connection) = Connection::open_with_flags(cache, OpenFlags::SQLITE_OPEN_READ_WRITE) else {
        return HashSet::new();
    };
    connection.busy_timeout(Duration::from_secs(30)).unwrap();
    let integrity: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    assert_eq!(integrity, "ok");
    // A process that was killed early has made the file and not its tables.
    let Ok(mut statement) = connection.prepare("SELECT DISTINCT algorithm FROM measurement") else {
        return HashSet::new();
    };
    let names = statement.query_map([], |row| row.get(0)).unwrap();
    names.map(Result::unwrap).collect()
}
