//! Outputs that are not plain files, outputs that fail, and readers that stop reading.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::folder::{Folder, RECORDED, text};

/// Long after everything here has ended.
const MAX_WAIT: Duration = Duration::from_secs(120);

/// A folder whose cache holds the recorded profile.
fn imported() -> Folder {
    let folder = Folder::new();
    folder.succeed(&format!("cache import {RECORDED}"));
    folder
}

fn parts(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".part")).collect()
}

/// Waits until `reached`, which a process that goes wrong would never be.
fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !reached() {
        assert!(begun.elapsed() < MAX_WAIT, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn send(signal: &str, child: &Child) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

/// A pipe of a shell whose reader has gone before the command begins to write.
fn closed_pipe() -> Stdio {
    let mut reader = Command::new("true").stdin(Stdio::piped()).spawn().unwrap();
    let pipe = reader.stdin.take().unwrap();
    reader.wait().unwrap();
    pipe.into()
}

#[test]
fn exporting_to_standard_output_writes_only_the_profile() {
    let folder = imported();
    let script = "echo before > out.jsonl; \"$tightfit\" cache export /dev/stdout >> out.jsonl; echo after >> out.jsonl
                  \"$tightfit\" cache export /dev/stdout | cat > piped.jsonl
                  \"$tightfit\" cache export plain.jsonl > said";
    let output = folder.shell(script).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let read = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!(read("said"), "wrote 1 device to plain.jsonl\n");
    assert_eq!(read("piped.jsonl"), read("plain.jsonl"));
    assert_eq!(read("out.jsonl"), format!("before\n{}after\n", read("plain.jsonl")));
    // A reader that goes away ends it quietly.
    let output = folder.shell("\"$tightfit\" cache export /dev/stdout | true; exit ${PIPESTATUS[0]}").output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
}

#[test]
fn full_disk_does_not_hide_the_cache() {
    let folder = imported();
    let list = |before: &str| {
        let output = folder.shell(&format!("{before} exec \"$tightfit\" cache list")).output().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let expected = list("");
    assert_eq!(expected.0, Some(0), "{}", expected.2);
    assert_eq!(list("trap '' XFSZ; ulimit -f 0;"), expected);
}

#[test]
fn full_disk_costs_training_only_its_trace() {
    let folder = Folder::new();
    let train =
        "train digits-net --batch 8 --budget 16MiB --backend cpu --data digits --steps 30 --cache none --trace t.json";
    let output = folder.shell(&format!("trap '' XFSZ; ulimit -f 4; exec \"$tightfit\" {train}")).output().unwrap();
    let (table, message) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("t.json: cannot be written: a file of"), "{message}");
    assert!(table.contains("30 steps") && table.contains("test accuracy"), "{table}");
    assert_eq!(parts(folder.path()), [""; 0]);
    // The other way round: results that cannot be shown do not cost the trace.
    let shown = folder.shell(&format!("exec \"$tightfit\" {train} > /dev/full")).output().unwrap();
    assert_eq!(shown.status.code(), Some(1), "{}", text(&shown.stderr));
    assert!(fs::read_to_string(folder.path().join("t.json")).unwrap().contains("traceEvents"));
}

#[test]
fn stopped_command_leaves_no_partial_file() {
    let folder = imported();
    for signal in ["-INT", "-TERM", "-HUP"] {
        // Packing takes long enough to be met in the middle of it.
        let mut command = folder.tightfit("cache export out.jsonl.gz");
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        wait_until("a part is made", || !parts(folder.path()).is_empty());
        send("-STOP", &child);
        assert_eq!(parts(folder.path()).len(), 1, "it was stopped in the middle");
        send(signal, &child);
        send("-CONT", &child);
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), text(&output.stderr).trim()), (Some(130), "interrupted"), "{signal}");
        assert_eq!(parts(folder.path()), [""; 0], "{signal}");
        assert!(!folder.path().join("out.jsonl.gz").exists());
    }
}

/// The exit codes of `arguments` with standard error full, and closed at its other end.
fn codes_unheard(folder: &Folder, arguments: &str) -> [Option<i32>; 2] {
    let full = File::options().write(true).open("/dev/full").unwrap();
    [full.into(), closed_pipe()]
        .map(|stderr| folder.tightfit(arguments).stdout(Stdio::null()).stderr(stderr).status().unwrap().code())
}

#[test]
fn exit_codes_do_not_depend_on_standard_error() {
    let folder = Folder::new();
    for (arguments, code) in [
        ("optimize nosuch --batch 3 --workspace 1MiB", 2),
        ("optimize lenet", 2),
        ("cache list --cache /nowhere/x", 1),
        ("plan lenet --batch 4 --budget 1KiB --assume", 3),
        ("optimize lenet --batch 1 --workspace 1MiB --sizes undivided --layers conv1 --operations forward -vvv", 0),
        ("train digits-net --batch 8 --budget 16MiB --backend cpu --data digits --steps 2 --cache none -vvv", 0),
    ] {
        assert_eq!(codes_unheard(&folder, arguments), [Some(code); 2], "{arguments}");
    }
}

#[test]
fn closing_the_terminal_stops_work_like_ctrl_c() {
    for signal in ["-HUP", "-INT"] {
        let folder = Folder::new();
        let mut child = folder.tightfit("profile vgg16 --batch 2 --workspace 64MiB --sizes all");
        let mut child = child.stdout(Stdio::null()).stderr(closed_pipe()).spawn().unwrap();
        let kept = || folder.run("cache list --format csv").stdout.iter().filter(|byte| **byte == b'\n').count();
        wait_until("something is kept", || kept() > 1);
        send(signal, &child);
        assert_eq!(child.wait().unwrap().code(), Some(130), "{signal}");
    }
}

#[test]
fn interrupt_message_tells_whether_measurements_are_saved() {
    let folder = Folder::new();
    for (cache, said) in [("none", "nothing was saved"), ("cache.db", "measurements are saved")] {
        // A signal before the measuring begins ends the command without a word; then it comes too early.
        let interrupted = |after: u64| {
            let profile = format!("profile vgg16 --batch 2 --workspace 64MiB --sizes all --cache {cache}");
            let child = folder.tightfit(&profile).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(after));
            send("-INT", &child);
            text(&child.wait_with_output().unwrap().stderr)
        };
        let message =
            [300, 1000, 3000, 10_000].into_iter().map(interrupted).find(|message| message.contains("finishing"));
        let message = message.unwrap();
        assert!(message.contains(&format!("interrupted; {said}")), "{cache}: {message}");
        assert!(cache != "none" || !message.contains("measurements are saved"), "{message}");
    }
}

#[test]
fn missing_gpu_is_reported_once_in_plain_words() {
    let folder = Folder::new();
    let nowhere = folder.path().join("libcuda.so.1");
    let command = |arguments: &str| {
        let output = folder.tightfit(arguments).env("TIGHTFIT_CUDA", &nowhere).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let optimize = "optimize lenet --batch 1 --workspace 1MiB --sizes undivided --layers conv1 --operations forward";
    let (code, message) = command(&format!("{optimize} --backend cuda"));
    assert_eq!(code, Some(1), "{message}");
    assert_eq!(message.matches("was not found").count(), 1, "{message}");
    assert_eq!(message.matches(&nowhere.display().to_string()).count(), 1, "{message}");
    let (code, message) = command(&format!("{optimize} -v"));
    assert_eq!(code, Some(0), "{message}");
    assert!(message.contains("no CUDA device: cuda: opening device 0: "), "{message}");
    assert!(!message.contains("Error(") && !message.contains("source: "), "{message}");
}
