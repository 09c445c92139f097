//! Environment variables that are empty, huge, not UTF-8, or nonsense.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use super::bench::LENET;
use super::case::Case;
use super::child::Setup;
use super::mutate::{NUMBERS, WORDS};

const VARIABLES: [&str; 31] = [
    "TIGHTFIT_BACKEND",
    "TIGHTFIT_BATCH",
    "TIGHTFIT_BUDGET",
    "TIGHTFIT_CACHE",
    "TIGHTFIT_CUBLAS",
    "TIGHTFIT_CUDA",
    "TIGHTFIT_CUDNN",
    "TIGHTFIT_DEVICES",
    "TIGHTFIT_EXACT_CLASS",
    "TIGHTFIT_FORMAT",
    "TIGHTFIT_HOST_BUDGET",
    "TIGHTFIT_LAYOUT",
    "TIGHTFIT_LOG",
    "TIGHTFIT_OFF",
    "TIGHTFIT_ONE_WORKSPACE",
    "TIGHTFIT_POLICY",
    "TIGHTFIT_SIZES",
    "TIGHTFIT_REPORT",
    "TIGHTFIT_SEED",
    "TIGHTFIT_THREADS",
    "TIGHTFIT_TOTAL_WORKSPACE",
    "TIGHTFIT_TUNE",
    "TIGHTFIT_TYPES",
    "TIGHTFIT_WORKSPACE",
    "HOME",
    "XDG_CACHE_HOME",
    "COLUMNS",
    "TERM",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "PATH",
];

pub fn attack(case: &mut Case) {
    let mut setup = Setup::default();
    for _ in 0..=case.random.below(3) {
        let name = *case.random.pick(&VARIABLES);
        // A value that is not an option names a file or folder in the case's own folder.
        setup = setup.with(name, value(case));
    }
    let recorded = case.bench.path("lenet.jsonl").display().to_string();
    let plan = case.bench.path("plan-baseline.json").display().to_string();
    let commands = [
        "networks lenet".to_owned(),
        "doctor".to_owned(),
        "doctor --preload".to_owned(),
        "cache list".to_owned(),
        format!("cache import {recorded}"),
        format!("{LENET} --backend replay:{recorded}"),
        "optimize lenet --batch 1 --sizes undivided --layers conv1 --operations forward".to_owned(),
        "plan lenet --batch 3 --budget 16MiB --assume".to_owned(),
        format!("train digits-net --plan {plan} --data digits --steps 1"),
        "run -- true".to_owned(),
        format!("split --network lenet --batch 3 --devices tightfit-cpu --backend replay:{recorded}"),
    ];
    let command = case.random.pick(&commands).clone();
    case.run_with(&command, &setup);
}

fn value(case: &mut Case) -> OsString {
    match case.random.below(8) {
        0 => "".into(),
        1 => "9".repeat(100_000).into(),
        2 => OsString::from_vec(vec![b'x', 0xff, 0xfe, b'/', 0x80]),
        3 => "x,".repeat(10_000).into(),
        4..=5 => (*case.random.pick(&NUMBERS)).into(),
        6 => (*case.random.pick(&["cpu", "f16", "fit", "json", "trace", "1", "16MiB", "/dev/null/x", "."])).into(),
        // No variable can hold a byte of 0.
        _ => case.random.pick(&WORDS).replace('\0', "0").into(),
    }
}
