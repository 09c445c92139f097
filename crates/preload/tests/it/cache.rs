//! The cache under a program: whatever lies in its place or next to it, the program gets its results, and nobody's files
//! are harmed.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use tightfit_profile::Cache;
use tightfit_test_support::client::{Client, Form, Run};

/// Runs the client on engine 2, which needs more than the limit, with few channels, because measuring computes. One that takes four minutes hangs.
fn run(cache: &Path, tune: &str, policy: &str) -> Run {
    let cache = cache.to_str().unwrap();
    let variables = [("WORKSPACE", "64KiB"), ("TUNE", tune), ("POLICY", policy), ("CACHE", cache)];
    let client = Client::new(Form::Linked, "engine=2 c=4 k=4").preloaded(&variables);
    let (send, receive) = channel();
    std::thread::spawn(move || drop(send.send(client.run())));
    let run = receive.recv_timeout(Duration::from_secs(240)).expect("the program hangs");
    assert_eq!((run.code, run.status()), (Some(0), "0"), "{}{}", run.words, run.errors);
    run
}

fn measure(cache: &Path) -> Run {
    run(cache, "first", "undivided")
}

fn measurements(run: &Run) -> u64 {
    run.report.as_ref().unwrap()["totals"]["tuning_measurements"].as_u64().unwrap()
}

fn pipe(path: PathBuf) -> PathBuf {
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    path
}

fn alter(cache: &Path, statements: &str) {
    rusqlite::Connection::open(cache).unwrap().execute_batch(statements).unwrap();
}

#[test]
fn the_turn_lock_damages_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("thesis.txt"), "three years").unwrap();
    std::os::unix::fs::symlink(path("thesis.txt"), path("linked.db.turn")).unwrap();
    fs::write(path("notes.db.turn"), "mine").unwrap();
    pipe(path("piped.db.turn"));
    fs::create_dir(path("folder.db.turn")).unwrap();
    for cache in ["linked.db", "notes.db", "piped.db", "folder.db"] {
        assert!(measurements(&measure(&path(cache))) > 0, "{cache}");
        assert_eq!(measurements(&measure(&path(cache))), 0, "{cache}: what was measured is kept");
    }
    assert_eq!(fs::read(path("thesis.txt")).unwrap(), b"three years");
    assert_eq!(fs::read(path("notes.db.turn")).unwrap(), b"mine");
}

#[test]
fn a_cache_of_any_name_stays_a_cache() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["k.turn", "m.surveyed", "plain"] {
        let cache = folder.path().join(name);
        assert!(measurements(&measure(&cache)) > 0, "{name}");
        assert_eq!(measurements(&measure(&cache)), 0, "{name}");
        assert!(!Cache::open_read_only(&cache).unwrap().recordings().unwrap().is_empty(), "{name}");
    }
}

#[test]
fn measurements_with_outdated_workspaces_are_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache.db");
    let first = measure(&cache);
    for change in ["workspace_bytes + 65537", "workspace_bytes / 2 + 1"] {
        let alteration = format!("UPDATE measurement SET workspace_bytes = {change}");
        alter(&cache, &alteration);
        let again = measure(&cache);
        assert!(measurements(&again) > 0, "{change}");
        assert_eq!(again.workspace(), first.workspace(), "{change}");
        // Here only the choice reveals the change, since the mark is still there.
        alter(&cache, &format!("DROP TRIGGER measurement_changed; {alteration}"));
        let marked = measure(&cache);
        assert!(measurements(&marked) > 0, "{change}, still marked");
        assert_eq!(marked.workspace(), first.workspace(), "{change}, still marked");
        assert_eq!(measurements(&measure(&cache)), 0, "{change}: once");
    }
    alter(&cache, "UPDATE measurement SET workspace_bytes = workspace_bytes / 2 + 1");
    let cached = run(&cache, "cached", "undivided");
    assert!(cached.workspace() <= 64 << 10, "{}", cached.errors);
}
