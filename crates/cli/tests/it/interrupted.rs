//! Measurements survive kills, signals, full disks, and other processes on the same cache.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::folder::{Folder, text};

/// A long profile in the background, once it has kept `count` measurements.
fn profiling(folder: &Folder, count: u64) -> Child {
    let mut child = folder
        .tightfit("profile vgg16 --batch 2 --workspace 64MiB --sizes all")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let started = Instant::now();
    while folder.measurements() < count {
        assert!(started.elapsed() < Duration::from_secs(120), "nothing was kept");
        assert!(child.try_wait().unwrap().is_none(), "it ended early");
        std::thread::sleep(Duration::from_millis(50));
    }
    child
}

#[test]
fn killed_profile_keeps_its_measurements() {
    let folder = Folder::new();
    let mut child = profiling(&folder, 3);
    child.kill().unwrap();
    child.wait().unwrap();
    let kept = folder.measurements();
    assert!(kept >= 3);
    folder.succeed("profile lenet --batch 2 --workspace 1MiB --sizes undivided");
    assert!(folder.measurements() > kept);
}

#[test]
fn a_full_disk_loses_nothing() {
    let folder = Folder::new();
    folder.succeed("profile lenet --batch 2 --workspace 1MiB --sizes undivided");
    let before = folder.measurements();
    // Files may not grow past 60 KiB, which a program sees as a full disk.
    let limited = |arguments: &str| {
        let script = format!("trap '' XFSZ; ulimit -f 60; exec \"$tightfit\" {arguments}");
        folder.shell(&script).output().unwrap()
    };
    let profile = limited("profile lenet --batch 6 --workspace 4MiB --sizes all");
    let message = text(&profile.stderr);
    assert_eq!(profile.status.code(), Some(1), "{message}");
    assert!(message.contains("cache.db") && message.contains("disk is full"), "{message}");
    assert!(text(&profile.stdout).contains("measurements"), "the result is shown all the same");
    // The optimizer needs no disk: it warns, and answers.
    let optimize = limited("optimize lenet --batch 6 --workspace 4MiB --sizes all");
    assert!(optimize.status.success(), "{}", text(&optimize.stderr));
    assert!(text(&optimize.stderr).contains("warning") && text(&optimize.stdout).contains("conv2"));
    assert!(folder.measurements() >= before);
}
