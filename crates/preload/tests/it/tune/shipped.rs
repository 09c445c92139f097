//! A program without a cache begins with the decisions of a read-only store, as a later process does with its cache's
//! decisions.

use std::fs;
use std::path::{Path, PathBuf};

use tightfit_profile::{Cache, Recording};

use super::*;

/// A run that tunes into a cache, and the exported cache.
fn exported(folder: &Path, arguments: &str, alone: &Run) -> (Run, PathBuf) {
    let (cache, file) = (folder.join("cache.db"), folder.join("export.jsonl"));
    let first = right(tuned(arguments, &[("CACHE", cache.to_str().unwrap())]), alone, arguments);
    Recording::write(&file, &Cache::open_read_only(&cache).unwrap().recordings().unwrap()).unwrap();
    (first, file)
}

#[test]
fn a_program_begins_with_a_shipped_decision() {
    for (arguments, decision) in
        [(format!("{REPLACED} {WATCHED}"), "replaced"), (format!("{DIVIDED} {WATCHED}"), "divided")]
    {
        let folder = tempfile::tempdir().unwrap();
        let alone = alone(&arguments);
        let (first, file) = exported(folder.path(), &arguments, &alone);
        assert_eq!(decisions(&first), [decision], "{}", first.errors);
        assert_eq!(total(&first, "shipped_hits"), 0);
        let (shipped, empty) = (file.to_str().unwrap(), folder.path().join("empty.db"));
        for variables in [
            [("SHIPPED", shipped), ("CACHE", "none")],
            [("SHIPPED", shipped), ("CACHE", empty.to_str().unwrap())],
            [("SHIPPED", shipped), ("TUNE", "cached")],
            [("SHIPPED", shipped), ("TUNE_BUDGET", "0")],
        ] {
            let after = format!("{arguments} {variables:?}");
            let again = right(tuned(&arguments, &variables), &alone, &after);
            assert_eq!(total(&again, "tuning_measurements"), 0, "{after}: {}", again.errors);
            assert_eq!(["cache_hits", "shipped_hits"].map(|name| total(&again, name)), [1, 1], "{after}");
            assert_eq!(again.kernels()[0]["ours"], first.kernels()[0]["ours"], "{after}");
            assert_eq!(again.kernels()[0]["framework"], first.kernels()[0]["framework"], "{after}");
            assert!(again.errors.contains("begins with a shipped decision"), "{after}: {}", again.errors);
            assert!(again.errors.contains(", 1 with a shipped decision"), "{after}: {}", again.errors);
        }
        // The store is only read: nothing of it is in the user's cache.
        assert_eq!(Cache::open_read_only(&empty).unwrap().recordings().unwrap(), []);
        // From the first execution on.
        let once = tuned(&arguments.replace("times=200", "times=1"), &[("SHIPPED", shipped)]).run();
        assert_eq!(once.kernels()[0]["ours"], first.kernels()[0]["ours"]);
    }
}

#[test]
fn the_cache_comes_before_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = format!("{DIVIDED} {WATCHED}");
    let alone = alone(&arguments);
    let (first, file) = exported(folder.path(), &arguments, &alone);
    assert_eq!(decisions(&first), ["divided"]);
    // The store says what the cache does not: to keep the own choice.
    let text = fs::read_to_string(&file).unwrap();
    let kept: String = text
        .lines()
        .map(|line| match line.split_once(",\"configuration\":") {
            Some((key, rest)) => {
                let rest = &rest[rest.find(",\"framework_ns\"").unwrap()..];
                format!("{key},\"configuration\":null{rest}\n")
            }
            None => format!("{line}\n"),
        })
        .collect();
    assert_ne!(kept, text);
    let store = folder.path().join("kept.jsonl");
    fs::write(&store, kept).unwrap();
    let shipped = ("SHIPPED", store.to_str().unwrap());
    let cache = folder.path().join("cache.db");
    let both = right(tuned(&arguments, &[shipped, ("CACHE", cache.to_str().unwrap())]), &alone, "both");
    assert_eq!((decisions(&both), total(&both, "shipped_hits")), (vec!["divided"], 0));
    let behind = right(tuned(&arguments, &[shipped]), &alone, "the store alone");
    assert_eq!((decisions(&behind), total(&behind, "shipped_hits")), (vec!["kept"], 1), "{}", behind.errors);
}

#[test]
fn a_store_that_cannot_be_used_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = format!("{DIVIDED} {WATCHED}");
    let alone = alone(&arguments);
    let (_, file) = exported(folder.path(), &arguments, &alone);
    let text = fs::read_to_string(&file).unwrap();
    let (_, rest) = text.split_once("\"library\":\"").unwrap();
    let version = rest.split([' ', '/', '"']).nth(1).unwrap();
    let bad = folder.path().join("bad.jsonl");
    let is_warned = "continuing without shipped recordings";
    for (name, changed, warning) in [
        ("none", None, ""),
        (bad.to_str().unwrap(), Some(text.replace(&format!("cudnn {version}"), "cudnn 1.2.3")), ""),
        (bad.to_str().unwrap(), Some(text.replace("\"backend\":\"cuda\"", "\"backend\":\"cpu\"")), ""),
        (bad.to_str().unwrap(), Some(text[..text.len() - 9].to_owned()), is_warned),
        (bad.to_str().unwrap(), Some("{}\n".to_owned()), is_warned),
        ("/missing/store.jsonl.gz", None, is_warned),
    ] {
        if let Some(changed) = &changed {
            assert_ne!(*changed, text);
            fs::write(&bad, changed).unwrap();
        }
        let run = right(tuned(&arguments, &[("SHIPPED", name)]), &alone, name);
        assert_eq!((decisions(&run), total(&run, "shipped_hits")), (vec!["divided"], 0), "{name}: {}", run.errors);
        assert!(total(&run, "tuning_measurements") > 0, "{name}");
        let warnings = run.errors.matches(is_warned).count();
        assert_eq!(warnings, usize::from(!warning.is_empty()), "{name}: {}", run.errors);
    }
}
