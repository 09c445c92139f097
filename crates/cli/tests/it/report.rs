//! `tightfit report`: its view of reports, and its message about any other file.

use std::fs;

use serde_json::{Value, json};

use crate::folder::{Folder, text};
use crate::run_on_mocks::{tightfit, with_client};

fn part(micro_batch: usize, algorithm: &str, time: Value, workspace: u64) -> Value {
    json!({"micro_batch": micro_batch, "algorithm": algorithm, "time_us": time, "workspace_bytes": workspace})
}

/// A kernel that runs these parts, which take `time` together.
fn kernel(name: &str, decision: &str, own: Value, parts: &[Value], time: Value) -> Value {
    let workspace = parts.iter().map(|part| part["workspace_bytes"].as_u64().unwrap()).max().unwrap();
    json!({
        "name": name,
        "problem": "forward n256 c64 h27 w27 k192 r5 s5 pad2 f32",
        "operation": "forward",
        "device": 0,
        "calls": 10,
        "micro_batches": parts.len(),
        "framework": {"algorithm": "engine0", "time_us": own, "workspace_bytes": 96 << 20},
        "ours": {"configuration": parts, "time_us": time, "workspace_bytes": workspace},
        "decision": decision,
    })
}

/// One kernel of each kind, with fields that no version has.
fn sample() -> Value {
    let divided = [part(128, "fft", json!(400.0), 48 << 20), part(128, "fft", json!(400.0), 48 << 20)];
    json!({
        "version": "0.1.0",
        "pid": 17,
        "cudnn": "/lib/libcudnn.so.9",
        "device": "NVIDIA H200 (cudnn 9.19.0)",
        "workspace_limit_bytes": 64 << 20,
        "kernels": [
            kernel("conv1", "divided", json!(1600.0), &divided, json!(800.0)),
            kernel("conv2", "replaced", json!(300.0), &[part(256, "gemm", json!(150.0), 0)], json!(150.0)),
            kernel("conv3", "kept", json!(50.001), &[part(256, "engine0", json!(50.001), 96 << 20)], json!(50.001)),
            kernel("conv4", "nothing fits the limit", Value::Null, &[part(256, "engine0", Value::Null, 96 << 20)], Value::Null),
        ],
        "passed_through": [
            {"reason": "fused graph", "function": "cudnnBackendExecute", "calls": 7},
            {"reason": "fused graph", "function": "cudnnBackendPopulateCudaGraph", "calls": 2},
            {"reason": "shape", "function": "cudnnBackendExecute", "calls": 1},
        ],
        "totals": {
            "workspace_peak_avoided_bytes": 0,
            "time_gained_us": 9500.0,
            "tuning_us": 3_200_000.0,
            "tuning_measurements": 143,
            "cache_hits": 2,
            "less_accurate": 1,
            "planned_only": 3,
            "of_later_versions": [],
        },
        "of_later_versions": {"any": [null]},
    })
}

/// A folder with these reports.
fn with(reports: &[(&str, &Value)]) -> Folder {
    let folder = Folder::new();
    for (name, report) in reports {
        fs::write(folder.path().join(name), format!("{report:#}")).unwrap();
    }
    folder
}

#[test]
fn table_shows_each_kernel_and_the_sums() {
    let shown = with(&[("a.json", &sample())]).succeed("report a.json");
    let expected = "\
a.json: NVIDIA H200 (cudnn 9.19.0), workspace limit 64 MiB per kernel

kernel  operation  problem                               calls  own choice  time [µs]  workspace  runs now     time [µs]  workspace   gain  decision
-------------------------------------------------------------------------------------------------------------------------------------------------------------------
conv1   forward    n256 c64 h27 w27 k192 r5 s5 pad2 f32     10  engine0        1600.0     96 MiB  2 x 128 fft      800.0     48 MiB  2.00x  divided
conv2   forward    n256 c64 h27 w27 k192 r5 s5 pad2 f32     10  engine0         300.0     96 MiB  256 gemm         150.0        0 B  2.00x  replaced
conv3   forward    n256 c64 h27 w27 k192 r5 s5 pad2 f32     10  engine0          50.0     96 MiB  own choice        50.0     96 MiB      -  kept
conv4   forward    n256 c64 h27 w27 k192 r5 s5 pad2 f32     10  engine0             -     96 MiB  own choice           -     96 MiB      -  nothing fits the limit

time        19.50 ms plain, 10.00 ms now, 1.95x as fast (calls x time of a call); 1 kernel without measured times not counted
workspace   96 MiB plain, 96 MiB now (largest kernel)
kernels     1 divided, 1 replaced, 1 kept, 1 unchanged (nothing fits the limit); 3 more planned but never run
tuning      3200.00 ms, 143 measured, 2 from the cache; 1 left out as less accurate
unchanged   10 calls: 9 fused graph, 1 shape
";
    assert_eq!(shown, expected, "{shown}");
}

#[test]
fn shipped_decisions_are_counted_where_there_are_any() {
    let mut tuned = sample();
    tuned["totals"]["shipped_hits"] = json!(2);
    let folder = with(&[("a.json", &tuned), ("old.json", &sample())]);
    let shown = folder.succeed("report a.json");
    assert!(shown.contains("143 measured, 2 from the cache, 2 of them shipped; 1 left out"), "{shown}");
    let hits = |file: &str| folder.json(&format!("report {file}"))[0]["summary"]["shipped_hits"].clone();
    assert_eq!(["a.json", "old.json"].map(hits), [json!(2), json!(0)]);
}

#[test]
fn json_and_csv_hold_the_same_rows() {
    let folder = with(&[("a.json", &sample())]);
    let shown = folder.json("report a.json");
    let csv = folder.succeed("report a.json --format csv");
    let mut lines = csv.lines();
    let names: Vec<&str> = lines.next().unwrap().split(',').collect();
    let kernels = shown[0]["kernels"].as_array().unwrap();
    assert_eq!((kernels.len(), lines.clone().count()), (4, 4));
    for (kernel, line) in kernels.iter().zip(lines) {
        for (name, cell) in names.iter().zip(line.split(',')).skip(1) {
            let same = match &kernel[*name] {
                Value::Null => cell.is_empty(),
                Value::Number(number) => cell.parse() == Ok(number.as_f64().unwrap()),
                value => value == cell,
            };
            assert!(same && kernel.get(name).is_some(), "{name}: {cell} {kernel:#}");
        }
    }
    let summary = &shown[0]["summary"];
    assert_eq!((&summary["framework_time_us"], &summary["time_us"]), (&json!(19_500.01), &json!(10_000.01)));
    assert_eq!(summary["left"], json!({"nothing fits the limit": 1}));
    assert_eq!(summary["passed_through"], json!({"fused graph": 9, "shape": 1}));
    assert_eq!(shown[0]["workspace_limit_bytes"], 64 << 20);
}

#[test]
fn several_reports_follow_one_another() {
    let mut second = sample();
    second["workspace_limit"] = json!("auto");
    second.as_object_mut().unwrap().remove("workspace_limit_bytes");
    second["kernels"][1]["device"] = json!(1);
    let folder = with(&[("0.json", &sample()), ("1.json", &second)]);
    let shown = folder.succeed("report 0.json 1.json");
    let (first, second) =
        shown.split_at(shown.find("\n1.json: NVIDIA H200 (cudnn 9.19.0), workspace limit auto\n").unwrap());
    assert!(first.starts_with("0.json: ") && !first.contains("device"), "{shown}");
    assert!(second.contains("kernel  device  operation"), "{shown}");
    assert_eq!(folder.json("report 1.json 0.json")[1]["file"], "0.json");
    let csv = folder.succeed("report 0.json 1.json --format csv");
    assert_eq!(csv.lines().filter(|line| line.starts_with("file,")).count(), 1, "{csv}");
    assert_eq!(csv.lines().filter(|line| line.starts_with("1.json,")).count(), 4, "{csv}");

    let message = folder.fail("report 0.json 1.json --plot a.svg", 2);
    assert!(message.contains("--html"), "{message}");
    folder.succeed("report 0.json 1.json --html a.html");
    let page = fs::read_to_string(folder.path().join("a.html")).unwrap();
    assert!(page.contains("<h2>0.json: ") && page.contains("<h2>1.json: "), "{page}");
    assert!(page.matches("<svg").count() == 2 && page.contains("conv2 on 1"), "{page}");
}

#[test]
fn a_picture_names_the_missing_measurements() {
    let mut bare = sample();
    bare["kernels"] = json!([]);
    let folder = with(&[("a.json", &sample()), ("bare.json", &bare)]);
    folder.succeed("report a.json --plot a.svg");
    let picture = fs::read_to_string(folder.path().join("a.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("1 kernel without times left out"), "{picture}");
    assert!(picture.contains("conv1: workspace 96 MiB") && picture.contains("conv1: workspace 48 MiB"), "{picture}");
    assert!(picture.contains("conv1: 1.60 ms") && picture.contains("conv1: 800.0 µs"), "{picture}");
    assert!(!picture.contains("conv4"), "{picture}");
    let says = |bar: &str| assert!(picture.contains(bar), "{bar}: {picture}");
    says("conv1: workspace 96 MiB; forward 256 engine0");
    says("conv1: workspace 48 MiB; forward 2 x 128 fft");
    assert!(!picture.contains("in slices"), "{picture}");

    let mut sliced = sample();
    sliced["kernels"][1]["ours"]["configuration"] = json!([part(256, "4 x h8 gemm", json!(150.0), 0)]);
    fs::write(folder.path().join("sliced.json"), sliced.to_string()).unwrap();
    folder.succeed("report sliced.json --plot sliced.svg");
    let picture = fs::read_to_string(folder.path().join("sliced.svg")).unwrap();
    assert!(picture.contains("in slices along space") && picture.contains("forward 4 x h8 gemm"), "{picture}");
    folder.succeed("report bare.json --plot a.svg --html a.html");
    assert!(fs::read_to_string(folder.path().join("a.svg")).unwrap().contains("no layers"));
    assert!(folder.fail("report a.json --plot no/such/a.svg", 1).contains("no/such"));
}

#[test]
fn each_missing_or_impossible_field_is_named() {
    let folder = Folder::new();
    let refuse = |report: &Value, word: &str| {
        fs::write(folder.path().join("bad.json"), report.to_string()).unwrap();
        let message = folder.fail("report bad.json", 1);
        assert!(message.contains("bad.json") && message.contains(word), "{word}: {message}");
        assert!(message.contains("run the program again"), "{word}: {message}");
    };
    for (place, fields) in [
        ("", &["device", "cudnn", "kernels", "passed_through", "totals"][..]),
        ("/kernels/0", &["name", "problem", "device", "calls", "framework", "ours", "decision"]),
        ("/kernels/0/framework", &["algorithm", "time_us", "workspace_bytes"]),
        ("/kernels/0/ours", &["configuration", "time_us", "workspace_bytes"]),
        ("/kernels/0/ours/configuration/1", &["micro_batch", "algorithm", "time_us", "workspace_bytes"]),
        ("/passed_through/0", &["reason", "calls"]),
        ("/totals", &["tuning_us", "tuning_measurements", "cache_hits", "less_accurate", "planned_only"]),
    ] {
        for field in fields {
            let mut report = sample();
            report.pointer_mut(place).unwrap().as_object_mut().unwrap().remove(*field).unwrap();
            refuse(&report, &format!("missing field `{field}`"));
        }
    }
    for (place, value, word) in [
        ("/kernels/0/framework/time_us", json!(-1.0), "-1"),
        ("/kernels/0/ours/time_us", json!(1e300), "a time of"),
        ("/kernels/0/ours/workspace_bytes", json!(-1), "-1"),
        ("/kernels/0/calls", json!("ten"), "ten"),
        ("/kernels/0/name", Value::Null, "null"),
        ("/kernels/0/problem", json!("backward n1 c1"), "backward"),
        ("/kernels/0/problem", json!("forward n0 c64 h27 w27 k192 r5 s5 pad2 f32"), "n is 0"),
        ("/kernels", json!({}), "a sequence"),
        ("/totals/tuning_us", json!([]), "f64"),
    ] {
        let mut report = sample();
        *report.pointer_mut(place).unwrap() = value;
        refuse(&report, word);
    }
    refuse(&json!({"format": "tightfit-profile", "version": 1}), "missing field");
    refuse(&json!([]), "expected a report");
}

#[test]
fn a_file_that_is_not_a_report_is_refused_with_the_next_step() {
    let folder = with(&[("good.json", &sample())]);
    let path = folder.path();
    fs::create_dir(path.join("folder")).unwrap();
    for (name, content) in [
        ("empty", &b""[..]),
        ("text", b"step 1: loss 2.3\n"),
        ("bytes", b"\xff\xfe\0{}"),
        ("tail", b"{} {}"),
        ("number", b"17"),
    ] {
        fs::write(path.join(name), content).unwrap();
    }
    assert!(std::process::Command::new("mkfifo").arg(path.join("pipe")).status().unwrap().success());
    for name in ["empty", "text", "bytes", "tail", "number", "folder", "pipe", "missing"] {
        let message = folder.fail(&format!("report good.json {name}"), 1);
        assert!(
            message.contains(&format!("{name}: ")) && message.contains("tightfit run --report"),
            "{name}: {message}"
        );
        assert!(text(&folder.run(&format!("report good.json {name}")).stdout).is_empty(), "{name}");
    }
    let whole = fs::read(path.join("good.json")).unwrap();
    for len in (1..whole.len()).step_by(whole.len() / 40) {
        fs::write(path.join("cut"), &whole[..len]).unwrap();
        let message = folder.fail("report cut", 1);
        assert!(message.contains("ends early"), "{len}: {message}");
    }
    assert!(folder.fail("report", 2).contains("FILE"));
}

#[test]
fn extreme_numbers_and_control_characters_are_shown() {
    let mut report = sample();
    report["device"] = Value::Null;
    report["cudnn"] = Value::Null;
    report["kernels"][0]["calls"] = json!(u64::MAX);
    report["kernels"][0]["name"] = json!("<conv>\u{1b}[31m\n&");
    report["kernels"][0]["ours"]["configuration"] = json!([]);
    report["kernels"][1]["ours"]["time_us"] = json!(0.0);
    report["kernels"][1]["ours"]["configuration"][0]["micro_batch"] = json!(u64::MAX);
    report["passed_through"][0]["calls"] = json!(u64::MAX);
    report["totals"]["tuning_us"] = Value::Null;
    let folder = with(&[("a.json", &report)]);
    for format in ["table", "csv", "json"] {
        let shown = folder.succeed(&format!("report a.json --format {format} --plot a.svg --html a.html"));
        assert!(!shown.contains('\u{1b}') && shown.contains("<conv>\u{fffd}[31m\u{fffd}&"), "{shown}");
    }
    let page = fs::read_to_string(folder.path().join("a.html")).unwrap();
    assert!(page.contains("&lt;conv&gt;") && !page.contains("<conv>") && !page.contains('\u{1b}'), "{page}");
}

#[test]
fn reader_may_leave_early() {
    let folder = with(&[("a.json", &sample())]);
    for format in ["table", "csv", "json"] {
        let script = format!(
            "files=$(yes a.json | head -2000); \"$tightfit\" report $files --format {format} | head -1; exit ${{PIPESTATUS[0]}}"
        );
        let output = folder.shell(&script).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    }
}

#[test]
fn reports_of_real_runs_are_read() {
    let folder = with_client();
    for (name, options) in [
        ("auto.json", &[][..]),
        ("divided.json", &["--workspace", "16KiB", "--tune", "first"]),
        ("total.json", &["--total-workspace", "64KiB"]),
    ] {
        for (program, words) in
            [(&["./client", "engine=2", "n=12", "out=y"][..], "forward    n12"), (&["true"], "no convolution ran")]
        {
            let run = [&["run", "--report", name], options, &["--"], program].concat();
            tightfit(folder.path(), &run);
            let shown = text(&tightfit(folder.path(), &["report", name]).stdout);
            assert!(shown.contains(words), "{name}: {shown}");
        }
    }
}
