//! Files that are no cache, or not any more: refused with the reason, and unchanged.

use std::fs;
use std::path::{Path, PathBuf};

use tightfit_profile::Cache;

use crate::cache::{device, folder, measurement, message, problem};

/// A cache file with some thousand rows, closed, so that everything is in the one file.
fn filled(folder: &Path) -> PathBuf {
    let path = folder.join("cache.db");
    let cache = Cache::open(&path).unwrap();
    let many: Vec<_> = (1..=2000).map(|size| measurement("gemm", size, 10)).collect();
    cache.keep_all(&device("a"), &problem(1).shape(), &many).unwrap();
    path
}

#[test]
fn a_damaged_file_is_refused_and_unchanged() {
    let folder = folder();
    let path = filled(folder.path());
    let whole = fs::read(&path).unwrap();
    let mut scribbled = whole.clone();
    scribbled[20_000..30_000].fill(0xA5);
    for (damage, bytes) in [("cut off", &whole[..whole.len() / 2]), ("scribbled on", &scribbled[..])] {
        fs::write(&path, bytes).unwrap();
        let text = message(Cache::open(&path));
        assert!(
            text.contains("cache.db") && text.contains("damaged") && text.contains("use another file"),
            "{damage}: {text}"
        );
        assert_eq!(fs::read(&path).unwrap(), bytes, "{damage}");
    }
}

#[test]
fn damage_of_a_large_file_is_found_where_it_is_read() {
    let folder = folder();
    let path = folder.path().join("cache.db");
    let many: Vec<_> = (1..=200_000).map(|size| measurement("an-algorithm-of-some-name", size, 10)).collect();
    let cache = Cache::open(&path).unwrap();
    cache.keep_all(&device("a"), &problem(1).shape(), &many).unwrap();
    drop(cache);
    let whole = fs::read(&path).unwrap();
    assert!(whole.len() > 8 << 20, "{} bytes are looked through at once", whole.len());
    assert_eq!(Cache::open(&path).unwrap().measurements(&device("a"), &problem(1)).unwrap().len(), many.len());
    let mut scribbled = whole.clone();
    scribbled[5_000_000..5_100_000].fill(0xA5);
    for (damage, bytes) in [("cut off", &whole[..whole.len() / 2]), ("scribbled on", &scribbled[..])] {
        fs::write(&path, bytes).unwrap();
        let text = message(Cache::open(&path).and_then(|cache| cache.measurements(&device("a"), &problem(1))));
        assert!(
            text.contains("cache.db") && text.contains("damaged") && text.contains("use another file"),
            "{damage}: {text}"
        );
    }
}

#[test]
fn a_file_that_is_not_a_cache_is_refused_and_unchanged() {
    let folder = folder();
    let text_file = folder.path().join("notes.txt");
    fs::write(&text_file, "not a database, but long enough to be looked at as one, or so it seems\n".repeat(20))
        .unwrap();
    let foreign = folder.path().join("photos.db");
    rusqlite::Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE photo (name TEXT)").unwrap();
    for (path, part) in [(&text_file, "is not a tightfit cache"), (&foreign, "not a tightfit cache")] {
        let before = fs::read(path).unwrap();
        for text in [message(Cache::open(path)), message(Cache::open_read_only(path))] {
            assert!(text.contains(part) && text.contains(path.to_str().unwrap()), "{text}");
        }
        assert_eq!(fs::read(path).unwrap(), before);
    }
}

#[test]
fn another_version_is_refused_and_unchanged() {
    let folder = folder();
    let path = filled(folder.path());
    rusqlite::Connection::open(&path).unwrap().execute_batch("PRAGMA user_version = 7").unwrap();
    let before = fs::read(&path).unwrap();
    let text = message(Cache::open(&path));
    assert!(text.contains("version 7") && text.contains("version 1"), "{text}");
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_folder_or_a_missing_file_is_an_error() {
    let folder = folder();
    assert!(message(Cache::open(folder.path())).contains("name another file"));
    assert!(message(Cache::open_read_only(&folder.path().join("none.db"))).contains("no such file"));
    let under_a_file = folder.path().join("file");
    fs::write(&under_a_file, "").unwrap();
    assert!(message(Cache::open(&under_a_file.join("cache.db"))).contains("name another file"));
}

/// The result of `look`. A call that takes a minute counts as hanging.
fn ended<T: Send + 'static>(look: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || drop(send.send(look())));
    receive.recv_timeout(std::time::Duration::from_secs(60)).expect("it waits and waits")
}

#[test]
fn a_pipe_or_a_device_is_refused_at_once() {
    let folder = folder();
    let made = |name: &str| {
        let path = folder.path().join(name);
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        path
    };
    let linked = folder.path().join("link.db");
    std::os::unix::fs::symlink(made("target"), &linked).unwrap();
    for path in [made("pipe.db"), linked, PathBuf::from("/dev/null"), PathBuf::from("/dev/zero")] {
        let (one, two) = (path.clone(), path.clone());
        for text in [ended(move || message(Cache::open(&one))), ended(move || message(Cache::open_read_only(&two)))] {
            assert!(text.contains("not a regular file") && text.contains("name another file"), "{text}");
        }
    }
    // Beside a cache as well: SQLite would read a journal.
    let path = filled(folder.path());
    for suffix in ["-journal", "-wal", "-shm"] {
        let beside = made(&format!("cache.db{suffix}"));
        let (one, two) = (path.clone(), path.clone());
        for text in [ended(move || message(Cache::open(&one))), ended(move || message(Cache::open_read_only(&two)))] {
            assert!(text.contains(suffix) && text.contains("not a regular file"), "{text}");
        }
        fs::remove_file(beside).unwrap();
    }
    assert!(Cache::open(&path).is_ok());
}

#[test]
fn names_that_mean_something_to_sqlite_are_names_of_files() {
    // The names are relative to the working folder of the process, so the test runs in a child with a separate one.
    if let Some(name) = std::env::var_os("CACHE_TEST_NAME") {
        let path = PathBuf::from(name);
        let cache = Cache::open(&path).unwrap();
        cache.keep(&device("a"), &problem(4), &measurement("gemm", 4, 100)).unwrap();
        drop(cache);
        assert_eq!(Cache::open_read_only(&path).unwrap().recordings().unwrap().len(), 1);
        return;
    }
    let folder = folder();
    for name in [":memory:", "file:x.db?mode=memory", "file:y.db", "a?b#c%41.db"] {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "refused::names_that_mean_something_to_sqlite_are_names_of_files"])
            .env("CACHE_TEST_NAME", name)
            .current_dir(folder.path())
            .status();
        assert!(status.unwrap().success(), "{name}");
        assert!(fs::metadata(folder.path().join(name)).unwrap().len() > 0, "{name}");
    }
}

#[test]
fn a_view_in_place_of_a_table_is_refused() {
    let folder = folder();
    let path = filled(folder.path());
    let endless =
        "DROP TABLE layer; CREATE VIEW layer AS WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r)
        SELECT x AS network, x AS position, '' AS name, x AS problem, x AS mini_batch FROM r";
    rusqlite::Connection::open(&path).unwrap().execute_batch(endless).unwrap();
    for look in [Cache::open, Cache::open_read_only] {
        let path = path.clone();
        let text = ended(move || message(look(&path)));
        assert!(text.contains("view `layer`") && text.contains("damaged"), "{text}");
    }
}
