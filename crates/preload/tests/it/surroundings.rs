//! Programs around convolutions: captured graphs, threads, forks, reused handles and descriptors.

use std::os::unix::fs::PermissionsExt;

use tightfit_conv::Measurement;
use tightfit_profile::Cache;
use tightfit_test_support::client::{Client, Form, Run};

const HEURISTIC: &[(&str, &str)] = &[("WORKSPACE", "64KiB"), ("TUNE", "heuristic")];
/// For problems of few channels, because measuring computes.
const MEASURE: &[(&str, &str)] = &[("WORKSPACE", "64KiB"), ("TUNE", "first"), ("EXACT_CLASS", "1")];

fn alone(arguments: &str) -> Run {
    let run = Client::new(Form::Linked, arguments).run();
    assert_eq!((run.code, run.status()), (Some(0), "0"), "{}{}", run.words, run.errors);
    run
}

fn preloaded(arguments: &str, variables: &[(&str, &str)]) -> Run {
    Client::new(Form::Linked, arguments).preloaded(variables).run()
}

#[test]
fn a_captured_graph_outlives_its_plan() {
    for variables in [HEURISTIC, MEASURE] {
        for arguments in ["engine=2 c=4 k=4 capture=1", "engine=2 c=4 k=4 capture=1 op=filter types=bf16"] {
            let run = preloaded(arguments, variables);
            run.assert_gives(&alone(arguments).output, arguments);
            assert!(run.lines("stream").is_empty(), "{}", run.words);
            assert!(run.workspace() <= 64 << 10);
            assert_eq!(run.lines("unsafe"), ["0"], "{arguments}");
        }
    }
}

#[test]
fn kernels_of_our_plans_live_as_long_as_the_process() {
    // The client destroys its plan, and with it the code that the graph is to run; then its handle.
    let arguments = "engine=9 capture=1";
    let lost = Client::new(Form::Linked, arguments).run();
    assert_eq!(lost.lines("stream"), ["719"], "{}", lost.words);
    let exact = alone("engine=2").output;
    let limit = format!("{}B", alone("engine=9").workspace() / 2);
    let run = preloaded(arguments, &[("WORKSPACE", &limit), ("TUNE", "heuristic")]);
    assert_eq!((run.code, run.status(), run.lines("stream").len()), (Some(0), "0", 0), "{}{}", run.words, run.errors);
    for part in run.kernels()[0]["ours"]["configuration"].as_array().unwrap() {
        assert!(part["algorithm"].as_str().unwrap().starts_with("engine9"), "{part}");
    }
    assert_eq!(run.output.len(), exact.len());
    for (one, other) in run.output.iter().zip(&exact) {
        assert!((one - other).abs() < 1e-3, "{one} {other}");
    }
}

#[test]
fn nothing_is_measured_under_capture() {
    let run = preloaded("engine=2 c=4 k=4 capture=2", MEASURE);
    run.assert_gives(&alone("engine=2 c=4 k=4 capture=2").output, "planned under capture");
    assert_eq!(run.lines("unsafe"), ["0"], "memory was taken, or somebody waited");
    assert_eq!(run.report.as_ref().unwrap()["totals"]["tuning_measurements"], 0);
    assert!(run.workspace() <= 64 << 10, "the limit holds all the same");
}

#[test]
fn addresses_and_handles_used_again_are_not_mixed_up() {
    let arguments = "engine=2 rounds=4";
    let run = preloaded(arguments, HEURISTIC);
    run.assert_gives(&alone(arguments).output, arguments);
    assert_eq!(run.kernels().len(), 1);
    assert_eq!(run.kernels()[0]["calls"], 4);
}

#[test]
fn a_fork_writes_no_second_report_and_an_idle_process_none() {
    let run = preloaded("engine=2 fork=1", HEURISTIC);
    assert_eq!(run.kernels()[0]["calls"], 1);
    let idle = preloaded("idle=1", HEURISTIC);
    assert_eq!((idle.code, idle.errors.as_str()), (Some(0), ""));
    assert!(idle.report.is_none());
}

#[test]
fn without_the_real_library_calls_fail_and_say_why() {
    let run = Client::new(Form::Loaded, "").preloaded(HEURISTIC).with("TIGHTFIT_CUDNN", "/nowhere/libcudnn.so.9").run();
    assert_eq!(run.code, Some(8), "{}", run.words);
    assert!(run.words.contains("1001"), "{}", run.words);
    assert!(run.errors.contains("TIGHTFIT_CUDNN") && run.errors.contains("/nowhere/libcudnn.so.9"), "{}", run.errors);
}

#[test]
fn a_signal_asks_for_the_report_at_the_next_call() {
    // Ended without exit handlers: what is there was written when the signal came, before the second call was counted.
    let run = preloaded("engine=2 times=3 signal=1 abort=1", HEURISTIC);
    assert_eq!(run.code, None, "it was to abort");
    assert_eq!(run.kernels()[0]["calls"], 1);
    let unasked = |times: usize| preloaded(&format!("engine=2 times={times} abort=1"), HEURISTIC);
    assert!(unasked(3).report.is_none());
    assert_eq!(unasked(5).kernels()[0]["calls"], 3, "one comes of itself behind the first step");
}

#[test]
fn layers_have_the_names_that_the_program_gives() {
    let run = Client::new(Form::Loaded, "engine=2 layer=features.3").preloaded(HEURISTIC).run();
    assert_eq!(run.kernels()[0]["name"], "features.3");
    let unnamed = Client::new(Form::Loaded, "engine=2").preloaded(HEURISTIC).run();
    assert_eq!(unnamed.kernels()[0]["name"], "conv1");
}

#[test]
fn a_file_that_is_not_a_cache_is_reported_once_and_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.db");
    std::fs::write(&path, "no database").unwrap();
    for (tune, lines) in [("measure", 1), ("first", 1), ("cached", 1), ("heuristic", 0)] {
        let run =
            preloaded("engine=2 c=4 k=4", &[("WORKSPACE", "64KiB"), ("TUNE", tune), ("CACHE", path.to_str().unwrap())]);
        assert_eq!(
            (run.code, run.status(), run.errors.lines().count()),
            (Some(0), "0", lines),
            "{tune}: {}",
            run.errors
        );
        assert_eq!(run.errors.contains("continuing without a cache"), lines == 1, "{tune}: {}", run.errors);
        assert_eq!(std::fs::read(&path).unwrap(), b"no database", "{tune}");
    }
}

#[test]
fn a_read_only_cache_is_looked_up_in() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache.db");
    let with = |tune| [("WORKSPACE", "64KiB"), ("TUNE", tune), ("CACHE", cache.to_str().unwrap())];
    preloaded("engine=2 c=4 k=4", &with("first"));
    std::fs::set_permissions(&cache, std::fs::Permissions::from_mode(0o444)).unwrap();
    let bound = |tune| Client::new(Form::Linked, "engine=2 c=4 k=4").preloaded(&with(tune)).bound().run();
    for tune in ["measure", "first"] {
        let refused = bound(tune).errors;
        assert!(refused.contains("continuing without a cache") && refused.contains("read-only"), "{tune}: {refused}");
    }
    let run = bound("cached");
    assert_eq!((run.code, run.status(), run.errors.as_str()), (Some(0), "0", ""));
    assert_ne!(run.report.unwrap()["totals"]["cache_hits"], 0);
}

#[test]
fn a_damaged_cache_is_reported_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.db");
    // The decision lies elsewhere in the file, and is for this limit alone.
    let with = |tune, limit| [("WORKSPACE", limit), ("TUNE", tune), ("CACHE", path.to_str().unwrap())];
    preloaded("engine=2 c=4 k=4", &with("first", "64KiB"));
    let cache = Cache::open(&path).unwrap();
    let recording = cache.recordings().unwrap().remove(0);
    let (shape, measurements) = recording.measurements().next().unwrap();
    let large = |size| Measurement { micro_batch: size, ..measurements[0].clone() };
    cache.keep_all(&recording.device, shape, &(1..400_000).map(large).collect::<Vec<_>>()).unwrap();
    drop(cache);
    // A file of this size is not looked through when it is opened.
    let mut bytes = std::fs::read(&path).unwrap();
    assert!(bytes.len() > 8 << 20, "{}", bytes.len());
    bytes[5_000_000..5_100_000].fill(0xA5);
    std::fs::write(&path, bytes).unwrap();
    let run = preloaded("engine=2 c=4 k=4 rounds=2", &with("cached", "63KiB"));
    run.assert_gives(&alone("engine=2 c=4 k=4 rounds=2").output, "with a damaged cache");
    assert!(run.errors.contains("is damaged") && run.errors.contains("cache.db"), "{}", run.errors);
    assert_eq!(run.errors.lines().count(), 1, "{}", run.errors);
}

#[test]
#[cfg(debug_assertions)]
fn a_panic_does_not_run_the_original_in_a_workspace_of_ours() {
    let panicking = |variables: &[(&str, &str)]| {
        Client::new(Form::Linked, "engine=2").preloaded(variables).with("TIGHTFIT_TEST_PANIC", "1").run()
    };
    let total = [("TOTAL_WORKSPACE", "64KiB"), ("TUNE", "heuristic")];
    for variables in [HEURISTIC, &total] {
        let run = panicking(variables);
        assert_eq!(run.status(), "5000", "{variables:?}: {}{}", run.words, run.errors);
        assert_eq!(run.reasons(), [("panicked".to_owned(), 1)]);
    }
    // A plan that kept its own workspace runs as it is.
    let kept = panicking(&[("WORKSPACE", "1GiB"), ("TUNE", "heuristic")]);
    kept.assert_gives(&alone("engine=2").output, "kept");
    assert_eq!(kept.reasons(), [("panicked".to_owned(), 1)]);
}

#[test]
fn decisions_under_capture_are_repeated_outside_of_it() {
    let run = preloaded("engine=2 c=4 k=4 rounds=2 capture=2 once=1", MEASURE);
    assert_eq!((run.code, run.status()), (Some(0), "0"), "{}{}", run.words, run.errors);
    assert!(
        run.report.as_ref().unwrap()["totals"]["tuning_measurements"].as_u64().unwrap() > 0,
        "the first answer was kept"
    );
    assert_eq!(run.kernels().len(), 2);
}

#[test]
fn another_threads_capture_is_not_broken_by_measuring() {
    for variables in [MEASURE, &[("TOTAL_WORKSPACE", "64KiB"), ("EXACT_CLASS", "1")]] {
        let run = preloaded("engine=2 c=4 k=4 beside=1", variables);
        run.assert_gives(&alone("engine=2 c=4 k=4").output, "beside a capture");
        assert_eq!(run.lines("beside"), ["0"], "{variables:?}: {}", run.errors);
        assert!(run.report.as_ref().unwrap()["totals"]["tuning_measurements"].as_u64().unwrap() > 0);
    }
}

#[test]
fn a_report_without_a_reader_neither_ends_nor_blocks_the_program() {
    let arguments = "engine=2";
    let expected = alone(arguments).output;
    let client = |report: &std::path::Path| {
        Client::new(Form::Linked, arguments).preloaded(HEURISTIC).with("TIGHTFIT_REPORT", report.to_str().unwrap())
    };
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("report");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let run = client(&pipe).run();
    run.assert_gives(&expected, "no reader");
    assert!(run.errors.contains("is a pipe that nobody reads"), "{}", run.errors);

    // A reader gets the whole of it, and the pipe stays one.
    let mut reader = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
    let run = client(&pipe).run();
    run.assert_gives(&expected, "a reader");
    let mut bytes = vec![0; 1 << 16];
    let count = std::io::Read::read(&mut reader, &mut bytes).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&bytes[..count]).unwrap();
    assert_eq!(report["kernels"].as_array().unwrap().len(), 1);
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(&std::fs::metadata(&pipe).unwrap().file_type()));
}

#[test]
fn logging_to_a_closed_standard_error_does_not_end_the_program() {
    // The client has the signals of any C program, for which writing to a pipe without a reader is the end.
    let folder = tempfile::tempdir().unwrap();
    let run = Client::new(Form::Linked, "engine=2")
        .preloaded(HEURISTIC)
        .with("TIGHTFIT_LOG", "1")
        .with("TIGHTFIT_REPORT", folder.path().join("no/such/folder").to_str().unwrap())
        .unheard()
        .run();
    run.assert_gives(&alone("engine=2").output, "nobody hears");
}

#[test]
fn deterministic_mode_uses_no_nondeterministic_algorithm() {
    // Engine 6 sums in another order each time, and needs more than this at its own batch.
    let arguments = "engine=6 c=4 k=4";
    let workspace = alone(arguments).workspace();
    let limit = format!("{}B", workspace / 2);
    let run = |tune: &str, deterministic: &str| {
        let variables = [("WORKSPACE", limit.as_str()), ("TUNE", tune), ("DETERMINISTIC", deterministic)];
        let run = preloaded(arguments, &variables);
        assert_eq!((run.code, run.status()), (Some(0), "0"), "{tune}: {}{}", run.words, run.errors);
        let parts = run.kernels()[0]["ours"]["configuration"].as_array().unwrap().clone();
        parts.iter().any(|part| part["algorithm"].as_str().unwrap().starts_with("engine6"))
    };
    assert!(run("heuristic", "0"), "the framework's own engine on smaller batches");
    assert!(!run("heuristic", "1"));
    assert!(!run("first", "1"));
    assert!(!run("measure", "1"));
    // The program's own choice stays if it fits.
    let roomy = [("WORKSPACE", "1GiB"), ("TUNE", "heuristic"), ("DETERMINISTIC", "1")];
    assert_eq!(preloaded(arguments, &roomy).kernels()[0]["decision"], "kept");
}
