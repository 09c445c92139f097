//! The command as a person or a script meets it: words, exit codes, messages, and what survives bad luck.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

const TIGHTFIT: &str = env!("CARGO_BIN_EXE_tightfit");
const RECORDED: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/recorded/h200-legacy-alexnet-1col-all.jsonl.gz");

/// The command with nothing of this machine's settings, its cache in `folder`.
fn tightfit(folder: &Path) -> Command {
    let mut command = Command::new(TIGHTFIT);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TIGHTFIT_")) {
        command.env_remove(name);
    }
    command.env("TIGHTFIT_CACHE", folder.join("cache.db")).env("TIGHTFIT_THREADS", "1").stdin(Stdio::null());
    command
}

fn run(folder: &Path, arguments: &str) -> Output {
    tightfit(folder).args(arguments.split_whitespace()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Standard output of a command that must succeed.
fn succeed(folder: &Path, arguments: &str) -> String {
    let output = run(folder, arguments);
    assert!(output.status.success(), "{arguments}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Standard error of a command that must fail with `code`; never a panic.
fn fail(folder: &Path, arguments: &str, code: i32) -> String {
    let output = run(folder, arguments);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments}: {message}");
    assert!(!message.contains("panicked"), "{arguments}: {message}");
    message
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn command_line_overrides_the_environment() {
    let folder = folder();
    let replay =
        format!("--backend replay:{RECORDED} --format json --batch 256 --operations forward --sizes undivided");
    let limits = |variables: &[(&str, &str)], arguments: &str| {
        let mut command = tightfit(folder.path());
        command.envs(variables.iter().copied());
        let output =
            command.args(format!("optimize alexnet-1col {arguments} {replay}").split_whitespace()).output().unwrap();
        let keys = ["workspace_limit_bytes", "total_workspace_bytes", "one_workspace_bytes"];
        let found = output.status.success().then(|| json(&text(&output.stdout)));
        (output.status.code(), keys.map(|key| found.as_ref().and_then(|found| found.get(key)?.as_u64())))
    };
    let workspace = ("TIGHTFIT_WORKSPACE", "1GiB");
    let total = ("TIGHTFIT_TOTAL_WORKSPACE", "2GiB");
    const GIB: u64 = 1 << 30;
    assert_eq!(limits(&[workspace], ""), (Some(0), [Some(GIB), None, None]));
    assert_eq!(limits(&[workspace], "--total-workspace 3GiB"), (Some(0), [None, Some(3 * GIB), None]));
    assert_eq!(limits(&[total], "--one-workspace 1GiB"), (Some(0), [None, None, Some(GIB)]));
    assert_eq!(limits(&[workspace, total], ""), (Some(2), [None; 3]));
    assert_eq!(limits(&[("TIGHTFIT_WORKSPACE", "much")], ""), (Some(2), [None; 3]));
    assert_eq!(limits(&[("TIGHTFIT_WORKSPACE", "much")], "--workspace 1GiB"), (Some(0), [Some(GIB), None, None]));
}

#[test]
fn unknown_words_are_listed_with_valid_ones() {
    let folder = folder();
    for (arguments, parts) in [
        ("optimize alexnett --batch 4 --workspace 1MiB", &["alexnett", "alexnet"][..]),
        ("optimize lenet --batch 4 --workspace 1Mi", &["1Mi", "64MiB"]),
        ("optimize lenet --batch 4", &["--workspace", "--total-workspace"]),
        ("optimize lenet --batch 4 --workspace 1MiB --total-workspace 1MiB", &["cannot be used with"]),
        ("optimize lenet --batch 4 --workspace 1MiB --sizes best", &["best", "power-of-two"]),
        ("optimize lenet --batch 4 --workspace 1MiB --layers conv9", &["conv9", "conv1"]),
        ("optimize lenet --batch 4 --workspace 1MiB --types f64", &["f64", "tf32"]),
        ("optimize lenet --batch 4 --workspace 1MiB --backend abacus", &["abacus", "cpu"]),
        ("optimize lenet --batch 0 --workspace 1MiB", &["0 is not in 1..=1048576"]),
        ("optimize lenet --batch 99999999999999 --workspace 1MiB", &["99999999999999", "1048576"]),
        ("optimize lenet --batch 4 --workspace 1MiB --threads 100000", &["100000", "1024"]),
        ("divide lenet", &["divide"]),
    ] {
        let message = fail(folder.path(), arguments, 2);
        for part in parts {
            assert!(message.contains(part), "{arguments}: {message}");
        }
    }
    assert!(!folder.path().join("cache.db").exists(), "nothing was measured");
}

#[test]
fn old_names_of_sizes_still_work_with_a_warning() {
    let folder = folder();
    let common =
        format!("optimize alexnet-1col --batch 256 --workspace 64MiB --backend replay:{RECORDED} --format json");
    let with = |option: &str, variables: &[(&str, &str)]| {
        let mut command = tightfit(folder.path());
        let output = command
            .args(format!("{common} {option}").split_whitespace())
            .envs(variables.iter().copied())
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(output.stdout), text(output.stderr))
    };
    let (undivided, quiet) = with("--sizes undivided", &[]);
    assert!(!quiet.contains("is now called"), "{quiet}");
    for (option, variables, warning) in [
        ("--policy undivided", &[][..], "--policy is now called --sizes"),
        ("", &[("TIGHTFIT_POLICY", "undivided")], "TIGHTFIT_POLICY is now called TIGHTFIT_SIZES"),
        ("", &[("TIGHTFIT_SIZES", "undivided"), ("TIGHTFIT_POLICY", "all")], ""),
        ("--sizes undivided", &[("TIGHTFIT_SIZES", "all")], ""),
    ] {
        let (found, said) = with(option, variables);
        assert_eq!(found, undivided, "{option} {variables:?}");
        assert!(said.contains(warning) && (!warning.is_empty() || !said.contains("is now called")), "{said}");
    }
    let both = fail(folder.path(), &format!("{common} --sizes all --policy all"), 2);
    assert!(both.contains("cannot be used with"), "{both}");
}

#[test]
fn impossible_requests_explain_why() {
    let folder = folder();
    for (arguments, parts) in [
        ("optimize lenet --workspace 1MiB", &["conv1", "mini-batch"][..]),
        ("optimize missing.txt --batch 4 --workspace 1MiB", &["missing.txt"]),
        ("optimize lenet --batch 4 --workspace 1MiB --backend replay:missing.gz", &["missing.gz"]),
        ("optimize lenet --batch 2 --workspace 1MiB --plot no/such/folder.svg", &["folder.svg"]),
    ] {
        let message = fail(folder.path(), arguments, 1);
        for part in parts {
            assert!(message.contains(part), "{arguments}: {message}");
        }
    }
    let verify = format!("verify alexnet-1col --batch 256 --workspace 64MiB --backend replay:{RECORDED}");
    assert!(fail(folder.path(), &verify, 1).contains("cannot run anything"));
}

#[test]
fn too_small_a_limit_exits_with_3_and_names_the_smallest_that_works() {
    let folder = folder();
    let list = folder.path().join("wide.txt");
    fs::write(&list, "only c64 h27 w27 k192 r5 s5 pad2\n").unwrap();
    let profile = folder.path().join("fft.jsonl");
    fs::write(
        &profile,
        r#"{"format":"tightfit-profile","version":1}
{"device":{"backend":"cuda","name":"X","library":"1","threads":0}}
{"problem":"forward c64 h27 w27 k192 r5 s5 pad2 f32","algorithm":"fft","notes":8,"rows":[[1,1000,1000,0.0,3,null],[2,1500,2000,0.0,3,null],[4,2500,4000,0.0,3,null]]}
"#,
    )
    .unwrap();
    let common = format!("{} --batch 4 --operations forward --backend replay:{}", list.display(), profile.display());
    for (bound, least) in
        [("--workspace 999", "1000 B"), ("--total-workspace 999", "1000 B"), ("--one-workspace 999", "1000 B")]
    {
        let message = fail(folder.path(), &format!("optimize {common} {bound}"), 3);
        assert!(message.contains(&format!("at least {least}")), "{bound}: {message}");
    }
    let undivided = fail(folder.path(), &format!("optimize {common} --workspace 1000 --sizes undivided"), 3);
    assert!(undivided.contains("3.9 KiB"), "{undivided}");
    let fits = json(&succeed(folder.path(), &format!("optimize {common} --workspace 1000 --format json")));
    assert_eq!(fits["kernels"][0]["configuration"].as_array().unwrap().len(), 4);
    assert_eq!(fits["undivided_time_us"], serde_json::Value::Null);
}

#[test]
fn unsupported_types_of_a_backend_are_explained() {
    let folder = folder();
    let message = fail(folder.path(), "optimize lenet --batch 4 --workspace 1MiB --types f16 --backend cpu", 1);
    assert!(message.contains("f32") && !message.contains("profile it first"), "{message}");
}

#[test]
fn optimizing_part_of_a_network_keeps_all_its_cached_layers() {
    let folder = folder();
    let layers = || {
        let file = folder.path().join("out.jsonl");
        succeed(folder.path(), &format!("cache export {}", file.display()));
        let network = fs::read_to_string(&file).unwrap().lines().nth(1).unwrap().to_owned();
        json(&network)["network"]["layers"].as_array().unwrap().len()
    };
    succeed(folder.path(), "profile lenet --batch 2 --workspace 1MiB --sizes undivided");
    assert_eq!(layers(), 6);
    succeed(folder.path(), "optimize lenet --batch 2 --workspace 1MiB --layers conv2 --operations forward");
    assert_eq!(layers(), 6);
}

#[test]
fn failed_verification_is_reported() {
    let folder = folder();
    let whole = "verify lenet --batch 4 --workspace 1KiB --values whole --format json";
    let result = json(&succeed(folder.path(), whole));
    for kernel in result["kernels"].as_array().unwrap() {
        assert_eq!(kernel["verification"]["max_relative_error_reference"], 0.0, "{kernel}");
    }
    // An alpha that overflows every output: nothing can be right.
    let message = fail(folder.path(), "verify lenet --batch 4 --workspace 1KiB --alpha 3e38", 1);
    assert!(message.contains("64-bit arithmetic") && message.contains("conv1 forward"), "{message}");
}

#[test]
fn replayed_figures_are_exact() {
    let folder = folder();
    for (sizes, undivided, time) in [("undivided", 37.8, 37.8), ("power-of-two", 37.8, 22.9), ("all", 37.8, 21.7)] {
        let arguments = format!(
            "optimize alexnet-1col --batch 256 --workspace 64MiB --backend replay:{RECORDED} --sizes {sizes} --format json"
        );
        let result = json(&succeed(folder.path(), &arguments));
        let ms = |name: &str| (result[name].as_f64().unwrap() / 100.0).round() / 10.0;
        assert_eq!((ms("undivided_time_us"), ms("time_us")), (undivided, time), "{sizes}");
        assert_eq!(result["kernels"].as_array().unwrap().len(), 15);
    }
    assert!(!folder.path().join("cache.db").exists(), "a replay is not kept");
}

#[test]
fn every_format_has_every_kernel() {
    let folder = folder();
    let arguments = "verify lenet --batch 6 --workspace 64KiB";
    let table = succeed(folder.path(), arguments);
    let csv = succeed(folder.path(), &format!("{arguments} --format csv"));
    let object = json(&succeed(folder.path(), &format!("{arguments} --format json")));
    assert_eq!(csv.lines().count(), 1 + 6);
    assert_eq!(object["kernels"].as_array().unwrap().len(), 6);
    for operation in ["forward", "backward-data", "backward-filter"] {
        assert_eq!(table.matches(operation).count(), 2, "{table}");
    }
    for kernel in object["kernels"].as_array().unwrap() {
        let samples: u64 =
            kernel["configuration"].as_array().unwrap().iter().map(|c| c["micro_batch"].as_u64().unwrap()).sum();
        assert_eq!(samples, 6);
        assert!(kernel["workspace_bytes"].as_u64().unwrap() <= 64 << 10);
        assert!(kernel["verification"]["max_relative_error_reference"].as_f64().unwrap() < 1e-4);
    }
}

#[test]
fn pictures_are_drawn() {
    let folder = folder();
    let common = format!("--batch 256 --backend replay:{RECORDED}");
    for (name, arguments, word) in [
        ("front", "--layers conv2 --operations forward --workspace 512MiB", "fft-tiling"),
        ("layers", "--workspace 64MiB", "conv5"),
        ("allotment", "--total-workspace 120MiB", "conv5"),
        ("limits", "--workspace 512MiB --sizes power-of-two", "undivided"),
    ] {
        let file = folder.path().join(format!("{name}.svg"));
        succeed(
            folder.path(),
            &format!("optimize alexnet-1col {common} {arguments} --picture {name} --plot {}", file.display()),
        );
        let svg = fs::read_to_string(&file).unwrap();
        assert!(svg.starts_with("<svg") && svg.contains(word), "{name}");
    }
    let several = format!("optimize alexnet-1col {common} --workspace 1MiB --picture front --plot x.svg");
    assert!(fail(folder.path(), &several, 2).contains("--layers"));
}

#[test]
fn a_second_run_measures_nothing() {
    let folder = folder();
    let arguments = "profile lenet --batch 4 --workspace 1MiB --sizes power-of-two --format json";
    let figures = |text: &str| {
        let object = json(text);
        (object["measured"].as_u64().unwrap(), object["cached"].as_u64().unwrap())
    };
    let (measured, cached) = figures(&succeed(folder.path(), arguments));
    assert!(measured > 0 && cached == 0);
    assert_eq!(figures(&succeed(folder.path(), arguments)), (0, measured));
    // Another limit uses the same measurements, filtered.
    let smaller =
        succeed(folder.path(), "optimize lenet --batch 4 --workspace 10KiB --sizes power-of-two --format json");
    assert!(
        json(&smaller)["kernels"]
            .as_array()
            .unwrap()
            .iter()
            .all(|k| k["workspace_bytes"].as_u64().unwrap() <= 10 << 10)
    );
    // Other threads are another device.
    assert_eq!(figures(&succeed(folder.path(), &format!("{arguments} --threads 2"))), (measured, 0));
}

fn measurements(folder: &Path) -> usize {
    if !folder.join("cache.db").exists() {
        return 0;
    }
    let output = run(folder, "cache list --format json");
    // While another process makes the file there may be nothing to list yet.
    let Ok(rows) = serde_json::from_slice::<serde_json::Value>(&output.stdout) else { return 0 };
    rows.as_array().unwrap().iter().map(|row| row["measurements"].as_u64().unwrap() as usize).sum()
}

/// A long profile in the background, once it has kept `count` measurements.
fn profiling(folder: &Path, count: usize) -> Child {
    let mut child = tightfit(folder)
        .args("profile vgg16 --batch 2 --workspace 64MiB --sizes all".split_whitespace())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let started = Instant::now();
    while measurements(folder) < count {
        assert!(started.elapsed() < Duration::from_secs(120), "nothing was kept");
        assert!(child.try_wait().unwrap().is_none(), "it ended early");
        std::thread::sleep(Duration::from_millis(50));
    }
    child
}

#[test]
fn killed_profile_keeps_its_measurements() {
    let folder = folder();
    let mut child = profiling(folder.path(), 3);
    child.kill().unwrap();
    child.wait().unwrap();
    let kept = measurements(folder.path());
    assert!(kept >= 3);
    succeed(folder.path(), "profile lenet --batch 2 --workspace 1MiB --sizes undivided");
    assert!(measurements(folder.path()) > kept);
}

#[test]
fn interrupted_profile_keeps_its_measurements_and_says_so() {
    let folder = folder();
    let child = profiling(folder.path(), 2);
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{message}");
    assert!(message.contains("interrupted; measurements are saved"), "{message}");
    assert!(measurements(folder.path()) >= 2);
}

#[test]
fn two_processes_share_one_cache() {
    let folder = folder();
    let start = || {
        let arguments = "profile lenet --batch 8 --workspace 1MiB --sizes all";
        tightfit(folder.path())
            .args(arguments.split_whitespace())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children: Vec<Child> = (0..3).map(|_| start()).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    let together = measurements(folder.path());
    succeed(folder.path(), "profile lenet --batch 8 --workspace 1MiB --sizes all");
    assert_eq!(measurements(folder.path()), together, "nothing was lost between them");
}

#[test]
fn a_full_disk_loses_nothing() {
    let folder = folder();
    succeed(folder.path(), "profile lenet --batch 2 --workspace 1MiB --sizes undivided");
    let before = measurements(folder.path());
    // Files may not grow past 60 KiB: what a full disk is to a program, without filling one.
    let limited = |arguments: &str| {
        let script = format!("trap '' XFSZ; ulimit -f 60; exec {TIGHTFIT} {arguments}");
        let cache = folder.path().join("cache.db");
        Command::new("bash")
            .args(["-c", &script])
            .env("TIGHTFIT_CACHE", cache)
            .env("TIGHTFIT_THREADS", "1")
            .output()
            .unwrap()
    };
    let profile = limited("profile lenet --batch 9 --workspace 4MiB --sizes all");
    let message = text(&profile.stderr);
    assert_eq!(profile.status.code(), Some(1), "{message}");
    assert!(message.contains("cache.db") && message.contains("disk is full"), "{message}");
    assert!(text(&profile.stdout).contains("measurements"), "the result is shown all the same");
    // The optimizer needs no disk: it warns, and answers.
    let optimize = limited("optimize lenet --batch 9 --workspace 4MiB --sizes all");
    assert!(optimize.status.success(), "{}", text(&optimize.stderr));
    assert!(text(&optimize.stderr).contains("warning") && text(&optimize.stdout).contains("conv2"));
    assert!(measurements(folder.path()) >= before);
}

#[test]
fn damaged_cache_is_named_and_left_unchanged() {
    let folder = folder();
    succeed(folder.path(), "profile lenet --batch 4 --workspace 1MiB --sizes all");
    let path = folder.path().join("cache.db");
    let whole = fs::read(&path).unwrap();
    let half = &whole[..whole.len() / 2];
    fs::write(&path, half).unwrap();
    let message = fail(folder.path(), "optimize lenet --batch 4 --workspace 1MiB", 1);
    assert!(message.contains("cache.db") && message.contains("damaged") && message.contains("--cache"), "{message}");
    assert_eq!(fs::read(&path).unwrap(), half);
    assert!(succeed(folder.path(), "doctor").contains("unusable"));
    succeed(folder.path(), "optimize lenet --batch 4 --workspace 1MiB --cache none");
}

#[test]
fn caches_can_be_exported_imported_and_merged() {
    let one = folder();
    let two = folder();
    succeed(one.path(), "profile lenet --batch 4 --workspace 1MiB --sizes all");
    let file = one.path().join("lenet.jsonl.gz");
    succeed(one.path(), &format!("cache export {}", file.display()));
    succeed(two.path(), &format!("cache import {}", file.display()));
    assert_eq!(measurements(two.path()), measurements(one.path()));
    let replay = format!(
        "optimize lenet --batch 4 --workspace 1MiB --sizes all --format csv --backend replay:{}",
        file.display()
    );
    let here = succeed(one.path(), "optimize lenet --batch 4 --workspace 1MiB --sizes all --format csv");
    assert_eq!(succeed(two.path(), &replay), here);
    let merged = folder();
    succeed(
        merged.path(),
        &format!("cache merge {} {}", one.path().join("cache.db").display(), two.path().join("cache.db").display()),
    );
    assert_eq!(measurements(merged.path()), measurements(one.path()));
    // Files beside a cache are not the cache's own.
    let beside = ["cache.surveyed", "cache.turn"].map(|name| merged.path().join(name));
    beside.iter().for_each(|file| fs::write(file, "one").unwrap());
    assert!(succeed(merged.path(), "cache clear").contains("deleted"));
    assert!(beside.iter().all(|file| fs::read(file).unwrap() == b"one"));
    assert_eq!(measurements(merged.path()), 0);
}

#[test]
fn invalid_profile_changes_no_cache() {
    let folder = folder();
    succeed(folder.path(), "profile lenet --batch 2 --workspace 1MiB --sizes undivided");
    let before = measurements(folder.path());
    let bad = folder.path().join("bad.jsonl");
    let shape = "forward c3 h8 w8 k4 r3 s3 f32";
    let lines = |batch: &str, threads: &str, rows: &str| {
        let head = r#"{"format":"tightfit-profile","version":1}"#;
        let network = format!(r#"{{"network":{{"name":"n","batch":{batch},"layers":[["conv1","{shape}",4]]}}}}"#);
        let device = format!(r#"{{"device":{{"backend":"cpu","name":"X","library":"y","threads":{threads}}}}}"#);
        let problem = format!(r#"{{"problem":"{shape}","algorithm":"direct","notes":0,"rows":[{rows}]}}"#);
        format!("{head}\n{network}\n{device}\n{problem}\n")
    };
    for (text, line) in [
        (lines("18446744073709551615", "1", "[4,1000,0,0.0,3,null]"), "line 2"),
        (lines("4", "9223372036854775808", "[4,1000,0,0.0,3,null]"), "line 3"),
        (lines("4", "1", "[4,0,0,0.0,3,null]"), "line 4"),
        (lines("4", "1", "[4,1000,0,1e308,3,null]"), "line 4"),
    ] {
        fs::write(&bad, text).unwrap();
        let message = fail(folder.path(), &format!("cache import {}", bad.display()), 1);
        assert!(message.contains(line), "{message}");
        succeed(folder.path(), &format!("cache export {}", folder.path().join("all.jsonl").display()));
        succeed(folder.path(), "cache list --layers");
        assert_eq!(measurements(folder.path()), before);
    }
}

#[test]
fn invalid_cache_rows_are_reported_and_cleared() {
    let folder = folder();
    succeed(folder.path(), "profile lenet --batch 2 --workspace 1MiB --sizes undivided");
    let database = rusqlite::Connection::open(folder.path().join("cache.db")).unwrap();
    database.execute_batch("UPDATE measurement SET time_ns = 0; UPDATE network SET batch = -1").unwrap();
    drop(database);
    for arguments in ["cache list", "cache list --layers"] {
        let listed = run(folder.path(), arguments);
        let message = text(&listed.stderr);
        assert!(
            listed.status.success() && message.contains("ignoring") && message.contains("cache clear"),
            "{message}"
        );
    }
    succeed(folder.path(), "cache clear");
    let listed = run(folder.path(), "cache list --layers");
    assert!(listed.status.success() && listed.stderr.is_empty(), "{}", text(&listed.stderr));
}

#[test]
fn cache_that_is_not_a_regular_file_is_refused() {
    let folder = folder();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for arguments in ["cache list", "optimize lenet --batch 2 --workspace 1MiB --backend cpu", "cache clear"] {
        for cache in [pipe.to_str().unwrap(), "/dev/null"] {
            let message = fail(folder.path(), &format!("{arguments} --cache {cache}"), 1);
            assert!(message.contains(cache) && message.contains("not a regular file"), "{message}");
        }
    }
}

#[test]
fn rest_above_one_hour_per_sample_is_refused() {
    let folder = folder();
    let cluster = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/synthetic-mixed-cluster.jsonl");
    let split = format!("split --batch 32 --devices K80 --network resnet18 --backend replay:{cluster} --rest 1e18");
    let message = fail(folder.path(), &split, 2);
    assert!(message.contains("per sample"), "{message}");
}

#[test]
fn uneven_split_in_every_format() {
    let folder = folder();
    let cluster = concat!(env!("CARGO_MANIFEST_DIR"), "/../../profiles/synthetic-mixed-cluster.jsonl");
    let split = |devices: &str, more: &str| {
        format!("split --batch 32 --devices {devices} --network resnet18 --backend replay:{cluster} {more}")
    };
    let table = succeed(folder.path(), &split("K80,K80,K20Xm", ""));
    assert!(table.starts_with("resnet18, mini-batch 32: 45.00 ms per step, 1.18x over the even split"), "{table}");
    let found = json(&succeed(folder.path(), &split("K80,K80,K20Xm", "--format json")));
    let batches: Vec<_> = found["devices"].as_array().unwrap().iter().map(|device| &device["batch"]).collect();
    assert_eq!(batches, [12, 12, 8]);
    assert_eq!((&found["time_us"], &found["alone_time_us"]), (&45_000.0.into(), &95_400.0.into()));
    let csv = succeed(folder.path(), &split("K80,K80,K20Xm", "--multiple-of 4 --memory 8GiB --format csv"));
    assert_eq!(csv.lines().next(), Some("name,device,steps,batch,time_us,even_batch,even_time_us,alone_time_us"));
    assert!(
        csv.lines().nth(3).unwrap().starts_with("K20Xm,Tesla K20Xm (paper figure 13),measured,8,43363.6,8,"),
        "{csv}"
    );

    // The same from a cache; and what cannot be says what can.
    succeed(folder.path(), &format!("cache import {cluster}"));
    let cached = succeed(folder.path(), "split --batch 32 --devices K80,K80,K20Xm --network resnet18 --format json");
    assert_eq!(json(&cached), found);
    assert!(fail(folder.path(), &split("Tesla", ""), 2).contains("Tesla K80"));
    assert!(fail(folder.path(), &split("V100", ""), 2).contains("GTX 750Ti"));
    assert!(fail(folder.path(), "split --batch 32 --network resnet18", 2).contains("0 devices"));
    assert!(fail(folder.path(), &split("K80", "--multiple-of 3"), 2).contains("power of two"));
    assert!(fail(folder.path(), &split("K80", "--rest -1"), 2).contains("--rest"));
    for batch in ["0", "1048577", "9223372036854775808", "18446744073709551615"] {
        let unbounded = split("K80", "").replace("--batch 32", &format!("--batch {batch}"));
        assert!(fail(folder.path(), &unbounded, 2).contains("1..=1048576"), "{batch}");
    }
    let other = format!("split --batch 32 --devices K80 --network resnet34 --backend replay:{cluster}");
    assert!(fail(folder.path(), &other, 1).contains("resnet34"));
}
