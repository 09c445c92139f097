//! The cache keeps results from one command to the next, and a damaged one is reported.

use std::fs;

use crate::folder::{Folder, json, text};

#[test]
fn a_second_run_measures_nothing() {
    let folder = Folder::new();
    let arguments = "profile lenet --batch 4 --workspace 1MiB --sizes power-of-two --format json";
    let figures = |text: &str| {
        let object = json(text);
        (object["measured"].as_u64().unwrap(), object["cached"].as_u64().unwrap())
    };
    let (measured, cached) = figures(&folder.succeed(arguments));
    assert!(measured > 0 && cached == 0);
    assert_eq!(figures(&folder.succeed(arguments)), (0, measured));
    // Another limit uses the same measurements, filtered.
    let smaller = folder.succeed("optimize lenet --batch 4 --workspace 10KiB --sizes power-of-two --format json");
    assert!(
        json(&smaller)["kernels"]
            .as_array()
            .unwrap()
            .iter()
            .all(|k| k["workspace_bytes"].as_u64().unwrap() <= 10 << 10)
    );
    // Other threads are another device.
    assert_eq!(figures(&folder.succeed(&format!("{arguments} --threads 2"))), (measured, 0));
}

#[test]
fn optimizing_part_of_a_network_keeps_all_its_cached_layers() {
    let folder = Folder::new();
    let layers = || {
        let file = folder.path().join("out.jsonl");
        folder.succeed(&format!("cache export {}", file.display()));
        let network = fs::read_to_string(&file).unwrap().lines().nth(1).unwrap().to_owned();
        json(&network)["network"]["layers"].as_array().unwrap().len()
    };
    folder.succeed("profile lenet --batch 2 --workspace 1MiB --sizes undivided");
    assert_eq!(layers(), 6);
    folder.succeed("optimize lenet --batch 2 --workspace 1MiB --layers conv2 --operations forward");
    assert_eq!(layers(), 6);
}

#[test]
fn caches_can_be_exported_imported_and_merged() {
    let one = Folder::new();
    let two = Folder::new();
    one.succeed("profile lenet --batch 4 --workspace 1MiB --sizes all");
    let file = one.path().join("lenet.jsonl.gz");
    one.succeed(&format!("cache export {}", file.display()));
    two.succeed(&format!("cache import {}", file.display()));
    assert_eq!(two.measurements(), one.measurements());
    let replay = format!(
        "optimize lenet --batch 4 --workspace 1MiB --sizes all --format csv --backend replay:{}",
        file.display()
    );
    let here = one.succeed("optimize lenet --batch 4 --workspace 1MiB --sizes all --format csv");
    assert_eq!(two.succeed(&replay), here);
    let merged = Folder::new();
    merged.succeed(&format!(
        "cache merge {} {}",
        one.path().join("cache.db").display(),
        two.path().join("cache.db").display()
    ));
    assert_eq!(merged.measurements(), one.measurements());
    // Files next to a cache are not part of it.
    let beside = ["cache.surveyed", "cache.turn"].map(|name| merged.path().join(name));
    beside.iter().for_each(|file| fs::write(file, "one").unwrap());
    let message = merged.fail("cache clear", 2);
    assert!(message.contains("this deletes all ") && message.contains("--yes"), "{message}");
    assert!(merged.succeed("cache clear --yes").contains("deleted"));
    assert_eq!(merged.succeed("cache clear"), "deleted 0 measurements\n", "nothing is asked of an empty cache");
    assert!(beside.iter().all(|file| fs::read(file).unwrap() == b"one"));
    assert_eq!(merged.measurements(), 0);
}

#[test]
fn invalid_cache_rows_are_reported_and_cleared() {
    let folder = Folder::new();
    folder.succeed("profile lenet --batch 2 --workspace 1MiB --sizes undivided");
    let database = rusqlite::Connection::open(folder.path().join("cache.db")).unwrap();
    database.execute_batch("UPDATE measurement SET time_ns = 0; UPDATE network SET batch = -1").unwrap();
    drop(database);
    for arguments in ["cache list", "cache list --layers"] {
        let listed = folder.run(arguments);
        let message = text(&listed.stderr);
        assert!(
            listed.status.success() && message.contains("ignoring") && message.contains("cache clear"),
            "{message}"
        );
    }
    folder.succeed("cache clear --yes");
    let listed = folder.run("cache list --layers");
    assert!(listed.status.success() && listed.stderr.is_empty(), "{}", text(&listed.stderr));
}

#[test]
fn clearing_takes_a_name_and_a_cache_that_exists() {
    let folder = Folder::new();
    folder.succeed("profile lenet --batch 2 --workspace 1MiB --sizes undivided");
    let before = folder.measurements();
    for text in ["", " "] {
        let output = folder.tightfit("cache clear --device").arg(text).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && message.contains("--device"), "{message}");
    }
    for command in
        ["cache clear --yes --cache typo.db", "cache merge typo.db --cache new.db", "cache import typo --cache new.db"]
    {
        let message = folder.fail(command, 1);
        assert!(message.contains("typo"), "{message}");
        assert!(["typo.db", "new.db"].iter().all(|file| !folder.path().join(file).exists()), "{command}");
    }
    assert_eq!(folder.measurements(), before);
    let name = folder.json("cache list")[0]["device"].as_str().unwrap().to_owned();
    assert!(folder.tightfit("cache clear --device").arg(&name[1..]).status().unwrap().success());
    assert_eq!(folder.measurements(), 0);
}

#[test]
fn a_replay_of_several_devices_asks_for_one() {
    let folder = Folder::new();
    for threads in [1, 2] {
        folder.succeed(&format!("profile lenet --batch 2 --workspace 1MiB --sizes undivided --threads {threads}"));
    }
    let replay = "optimize lenet --batch 2 --workspace 1MiB --sizes undivided --backend replay";
    let message = folder.fail(replay, 2);
    assert!(message.contains("2 threads") && message.contains("--devices NAME"), "{message}");
    let output = folder.tightfit(replay).args(["--devices", "2 threads"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn a_folder_that_cannot_have_a_cache_is_named() {
    let message = Folder::new().fail("optimize lenet --batch 2 --workspace 1MiB --backend cpu --cache /sys/new.db", 1);
    assert!(message.contains("cannot be created in the folder /sys") && !message.contains("read-only"), "{message}");
}
