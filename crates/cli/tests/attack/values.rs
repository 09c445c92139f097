//! Values of options: absurd sizes, batches, names, devices, and files that are no files.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::process::Command;

use super::case::Case;
use super::child::Setup;
use super::mutate::{NUMBERS, WORDS};

const SIZES: [&str; 14] = [
    "0",
    "1",
    "1B",
    "256",
    "15EiB",
    "16EiB",
    "1e30GiB",
    "-1MiB",
    "unlimited",
    "1.5MiB",
    "MiB",
    "1 MiB",
    "9999999999999999999TiB",
    "0x10KiB",
];
const LISTS: [&str; 8] = ["", ",", "K80,", "0,0", "K80,K80,K20Xm,K80", "forward,forward", "conv1,,conv2", "-1"];

/// The kind of value of an option.
#[derive(Clone, Copy)]
enum Kind {
    Number,
    Size,
    Word,
    List,
    Input,
    Cache,
}

/// A command that succeeds, and its options with their kinds of values. `{name}` is a good file.
const COMMANDS: [(&str, &[(&str, Kind)]); 12] = [
    ("networks lenet", &[("", Kind::Input), ("--format", Kind::Word)]),
    (
        "optimize lenet --batch 3 --workspace 64KiB --operations forward --backend replay:{lenet.jsonl}",
        &[
            ("", Kind::Input),
            ("--batch", Kind::Number),
            ("--workspace", Kind::Size),
            ("--operations", Kind::List),
            ("--layers", Kind::List),
            ("--policy", Kind::Word),
            ("--types", Kind::Word),
            ("--layout", Kind::Word),
            ("--backend", Kind::Word),
            ("--backend replay:", Kind::Input),
            ("--total-workspace", Kind::Size),
            ("--one-workspace", Kind::Size),
        ],
    ),
    (
        "plan lenet --batch 3 --budget 16MiB --assume",
        &[
            ("", Kind::Input),
            ("--batch", Kind::Number),
            ("--budget", Kind::Size),
            ("--host-budget", Kind::Size),
            ("--policy", Kind::Word),
            ("--sizes", Kind::Word),
            ("--costs", Kind::Word),
            ("--divide", Kind::Word),
            ("--algorithms", Kind::Word),
        ],
    ),
    (
        "plan lenet --batch 3 --budget 16MiB --backend replay:{lenet.jsonl}",
        &[("--batch", Kind::Number), ("--budget", Kind::Size), ("--host-budget", Kind::Size), ("--types", Kind::Word)],
    ),
    (
        "train digits-net --plan {plan-baseline.json} --data digits --steps 2 --backend cpu",
        &[
            ("", Kind::Input),
            ("--plan", Kind::Input),
            ("--data", Kind::Input),
            ("--learning-rate", Kind::Number),
            ("--momentum", Kind::Number),
            ("--weight-decay", Kind::Number),
            ("--loss-scale", Kind::Number),
            ("--seed", Kind::Number),
            ("--threads", Kind::Number),
            ("--cudnn", Kind::Input),
        ],
    ),
    (
        "split --network resnet18 --batch 32 --devices K80,K20Xm --backend replay:{synthetic-mixed-cluster.jsonl}",
        &[
            ("--network", Kind::Input),
            ("--batch", Kind::Number),
            ("--devices", Kind::List),
            ("--workspace", Kind::Size),
            ("--rest", Kind::Number),
            ("--multiple-of", Kind::Number),
            ("--memory", Kind::Size),
            ("--policy", Kind::Word),
        ],
    ),
    (
        "verify lenet --batch 2 --workspace 64KiB --layers conv1 --operations forward --sizes undivided --backend cpu",
        &[
            ("--values", Kind::Word),
            ("--alpha", Kind::Number),
            ("--beta", Kind::Number),
            ("--seed", Kind::Number),
            ("--workspace", Kind::Size),
            ("--threads", Kind::Number),
        ],
    ),
    (
        "profile lenet --batch 1 --layers conv1 --operations forward --sizes undivided --backend cpu --cache new.db",
        &[("--workspace", Kind::Size), ("--layers", Kind::List), ("--threads", Kind::Number), ("--cache", Kind::Cache)],
    ),
    ("cache list --cache good.db", &[("--cache", Kind::Cache), ("--format", Kind::Word)]),
    ("cache import {lenet.jsonl} --cache new.db", &[("", Kind::Input), ("--cache", Kind::Cache)]),
    ("cache merge good.db --cache new.db", &[("", Kind::Input), ("--cache", Kind::Cache)]),
    ("doctor --preload", &[("--python", Kind::Input), ("--cudnn", Kind::Input), ("--devices", Kind::List)]),
];

pub fn attack(case: &mut Case) {
    case.write("good.db", case.bench.bytes("good.db"));
    let (command, options) = *case.random.pick(&COMMANDS);
    let mut words: Vec<OsString> = command.split_whitespace().map(|word| good(case, word).into()).collect();
    for _ in 0..=case.random.below(2) {
        let (option, kind) = *case.random.pick(options);
        set(&mut words, option, value(case, kind));
    }
    case.run_words(&words, &Setup::default());
}

/// A word with the path of the good file that it names.
fn good(case: &Case, word: &str) -> String {
    match word.split_once('{') {
        Some((before, name)) => format!("{before}{}", case.bench.path(name.trim_end_matches('}')).display()),
        None => word.to_owned(),
    }
}

/// Sets an option to this value, in place of its old one. An option without a name is the command's last plain word, and
/// `--backend replay:` is the file of a replay.
fn set(words: &mut Vec<OsString>, option: &str, value: OsString) {
    let (name, mut whole) = match option.split_once(' ') {
        Some((name, prefix)) => (name, OsString::from(prefix)),
        None => (option, OsString::new()),
    };
    whole.push(value);
    if name.is_empty() {
        let is_option = |word: &OsString| word.to_string_lossy().starts_with("--");
        let at = words.iter().position(is_option).unwrap_or(words.len()) - 1;
        words[at] = whole;
        return;
    }
    match words.iter().position(|word| word == name) {
        Some(at) if at + 1 < words.len() => words[at + 1] = whole,
        _ => words.extend([name.into(), whole]),
    }
}

fn value(case: &mut Case, kind: Kind) -> OsString {
    if case.random.one_in(10) {
        return match case.random.below(4) {
            0 => "9".repeat(100_000).into(),
            1 => "K80,".repeat(20_000).into(),
            2 => OsString::from_vec(vec![b'n', 0xff, 0xfe]),
            _ => "".into(),
        };
    }
    match kind {
        Kind::Number => (*case.random.pick(&NUMBERS)).into(),
        Kind::Size => (*case.random.pick(&SIZES)).into(),
        Kind::List => (*case.random.pick(&LISTS)).into(),
        // An argument cannot hold a byte of 0.
        Kind::Word => case.random.pick(&WORDS).replace('\0', "0").into(),
        Kind::Input => file(case, &["/dev/zero", "/dev/null"]),
        Kind::Cache => file(case, &["none"]),
    }
}

/// The name of an unexpected thing in the case's folder, or of one of `others`.
fn file(case: &mut Case, others: &[&str]) -> OsString {
    let folder = case.folder().to_owned();
    let at = |name: &str| folder.join(name);
    match case.random.below(14) {
        0 => drop(Command::new("mkfifo").arg(at("strange")).output()),
        1 => drop(fs::create_dir(at("strange"))),
        2 => drop(symlink("strange", at("strange"))),
        3 => drop(symlink("nowhere", at("strange"))),
        4 => drop(symlink("good.db", at("strange"))),
        5 => drop(fs::write(at("strange"), b"")),
        6 => drop(fs::write(at("strange"), vec![b' '; 1 << 20])),
        7 => drop(fs::write(at("strange"), vec![0xff; 5000])),
        8 => {
            let name = "x".repeat(250);
            let _ = fs::copy(at("good.db"), at(&name));
            return name.into();
        }
        9 => return ["x/"; 3000].concat().into(),
        10 => return ":memory:".into(),
        11 => return "file:x.db?mode=memory".into(),
        12 => {
            let other = *case.random.pick(&["lenet.jsonl", "lenet.json", "plan.json.gz"]);
            return case.bench.path(other).into();
        }
        _ => return (*case.random.pick(others)).into(),
    }
    "strange".into()
}
