//! Signals to commands at work: each ends soon, by the promised exit code, and leaves no part of a file.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::Duration;

use super::bench::Bench;
use super::child::{Running, Setup, Trouble, start};
use super::generator::Generator;
use super::outputs::parts;

/// The signals that ask to stop, with their numbers.
const ASK: [(&str, i32); 3] = [("HUP", 1), ("INT", 2), ("TERM", 15)];
const SIGQUIT: i32 = 3;

/// Sends signals to `turns` commands.
pub fn signal(bench: &Bench, turns: u64) {
    (0..turns).for_each(|turn| take_turn(bench, turn));
}

fn take_turn(bench: &Bench, turn: u64) {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Generator::of("signals", turn);
    let plan = bench.path("plan-baseline.json").display().to_string();
    std::fs::write(folder.path().join("good.db"), bench.bytes("good.db")).unwrap();
    let commands = [
        ("profile lenet --batch 512 --workspace 1MiB --sizes all --backend cpu --cache c.db".to_owned(), true),
        (
            "optimize lenet --batch 512 --workspace 1MiB --sizes all --backend cpu --plot plot.svg --cache c.db"
                .to_owned(),
            true,
        ),
        (
            format!("train digits-net --plan {plan} --data digits --steps 1000000000 --backend cpu --trace trace.json"),
            true,
        ),
        ("cache export all.jsonl --cache good.db".to_owned(), false),
        ("cache import {} --cache new.db".replace("{}", &bench.path("lenet.jsonl").display().to_string()), false),
    ];
    let (arguments, is_long) = &commands[turn as usize % commands.len()];
    let words: Vec<OsString> = arguments.split_whitespace().map(OsString::from).collect();
    let child = start(folder.path(), &words, &Setup::default());
    // A short command is met at any moment; a long one also when it is at work.
    let wait = if *is_long && random.one_in(2) { 400_000 } else { 30_000 };
    std::thread::sleep(Duration::from_micros(random.below(wait) as u64));
    let (name, number) = if random.one_in(8) { ("QUIT", SIGQUIT) } else { *random.pick(&ASK) };
    send(&child, name);
    let ending = child.finish();
    let told = format!("signals:{turn}: {arguments}: SIG{name}: {:?}, {}", ending.status, ending.stderr);
    let by_signal = ending.status.signal() == Some(number);
    let is_right = match ending.status.code() {
        // A short command may have been done before.
        Some(0) => !is_long,
        Some(130) => number != SIGQUIT,
        Some(code) => number != SIGQUIT && code == 128 + number,
        None => by_signal,
    };
    assert!(is_right, "{told}");
    // The code is judged above.
    let trouble = ending.trouble(true).filter(|trouble| !by_signal && *trouble != Trouble::Code);
    assert!(trouble.is_none(), "{told}: {trouble:?}");
    // The system ends a program that has no say in it, and then a part may be left.
    let left = parts(folder.path());
    assert!(left.is_empty() || number == SIGQUIT, "{told}: {left:?} are left");
}

fn send(child: &Running, signal: &str) {
    // It may have ended in between.
    let _ = Command::new("kill").args([format!("-{signal}"), child.id().to_string()]).output();
}
