//! Outputs that are not plain files, streams that cannot be written, disks that are full. Existing things keep their kind,
//! an old file stays whole, and no part of a new one is left.

use std::fs::{self, FileType};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::bench::LENET;
use super::case::Case;
use super::child::Setup;

const OLD: &str = "what was there before";
/// Files are no longer than 4 KiB; a write beyond is an error, as on a full disk.
const FULL: &str = "trap '' XFSZ; ulimit -f 8;";
const STREAMS: [&str; 6] = ["", ">&-", "2>&-", ">/dev/full", "2>/dev/full", ">/dev/full 2>/dev/full"];

pub fn attack(case: &mut Case) {
    let output = *case.random.pick(&[
        "plain",
        "new",
        "folder",
        "missing/new",
        "fifo",
        "read-fifo",
        "null",
        "full",
        "link",
        "dangling",
        "loop",
        "link-full",
    ]);
    make(case.folder(), output);
    let stream = *case.random.pick(&STREAMS);
    let mut setup = Setup::redirected(stream);
    if case.random.one_in(4) {
        setup.before = FULL.to_owned();
    }
    let reader = (output == "read-fifo").then(|| read(&case.folder().join(output)));
    let kind = kind(&case.folder().join(output));
    let command = command(case, output);
    let ending = case.run_with(&command, &setup);
    let path = case.folder().join(output);
    let told = format!("{command}, {setup_before}{redirect}", setup_before = setup.before, redirect = setup.redirect);
    if let Some(kind) = kind {
        case.expect(self::kind(&path) == Some(kind), || format!("{told}: {output} is no longer what it was"));
    }
    for (name, holder) in [("plain", "plain"), ("link", "target")] {
        if output != name {
            continue;
        }
        let now = case.read(holder);
        let good = if ending.succeeded() { now != OLD.as_bytes() && !now.is_empty() } else { !now.is_empty() };
        case.expect(good, || format!("{told}: exit {:?}, {holder} has {} bytes", ending.status.code(), now.len()));
    }
    let left = parts(case.folder());
    case.expect(left.is_empty(), || format!("{told}: {left:?} are left"));
    if let Some(mut reader) = reader {
        // Nobody may have written, in which case it would wait for ever.
        let _ = reader.kill();
        reader.wait().unwrap();
    }
}

/// A command that writes to `output`.
fn command(case: &mut Case, output: &str) -> String {
    let [lenet, digits, plan] = ["lenet.jsonl", "digits-net.jsonl", "plan-baseline.json"]
        .map(|name| case.bench.path(name).display().to_string());
    case.write("good.db", case.bench.bytes("good.db"));
    let commands = [
        format!("networks resnet18 --out {output}"),
        format!("{LENET} --backend replay:{lenet} --plot {output}"),
        format!("plan lenet --batch 3 --budget 16MiB --assume --html {output}"),
        format!("plan lenet --batch 3 --budget 16MiB --assume --trace {output}"),
        format!(
            "plan digits-net --batch 8 --budget 16MiB --sizes power-of-two --backend replay:{digits} --out {output}"
        ),
        format!("train digits-net --plan {plan} --data synthetic --steps 2 --backend cpu --trace {output}"),
        format!("cache export {output} --cache good.db"),
    ];
    case.random.pick(&commands).clone()
}

/// Creates the thing that `output` is named after in the folder. Devices are made here: a mistake must not cost the system
/// its own.
fn make(folder: &Path, output: &str) {
    let path = folder.join(output);
    let run = |program: &str, arguments: &[&str]| {
        // Who is not root makes no devices, and then it is a new file.
        let _ = Command::new(program).args(arguments).current_dir(folder).stderr(Stdio::null()).status();
    };
    match output {
        "plain" => fs::write(path, OLD).unwrap(),
        "folder" => fs::create_dir(path).unwrap(),
        "fifo" | "read-fifo" => run("mkfifo", &[output]),
        "null" => run("mknod", &[output, "c", "1", "3"]),
        "full" => run("mknod", &[output, "c", "1", "7"]),
        "link" => {
            fs::write(folder.join("target"), OLD).unwrap();
            symlink("target", path).unwrap();
        }
        "link-full" => {
            run("mknod", &["full", "c", "1", "7"]);
            symlink("full", path).unwrap();
        }
        "dangling" => symlink("target", path).unwrap(),
        "loop" => symlink("loop", path).unwrap(),
        _ => {}
    }
}

fn read(fifo: &Path) -> Child {
    Command::new("cat").arg(fifo).stdout(Stdio::null()).spawn().unwrap()
}

fn kind(path: &Path) -> Option<FileType> {
    Some(fs::symlink_metadata(path).ok()?.file_type())
}

/// Names of files that were not finished.
fn parts(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains(".part")).collect()
}
