//! One total for all kernels: the program gives no workspace, and every convolution runs in its part of the library's.

use tightfit_test_support::client::{Client, Form, Run};

/// Runs the client's network. Returns the outputs of its layers.
fn network(arguments: &str, variables: Option<&[(&str, &str)]>) -> (Run, Vec<Vec<u8>>) {
    let arguments = format!("engine=2 {arguments}");
    let client = Client::new(Form::Linked, &arguments);
    let client = match variables {
        Some(variables) => client.preloaded(variables),
        None => client,
    };
    let (run, folder) = client.run_keeping();
    assert_eq!((run.code, run.status()), (Some(0), "0"), "{arguments}: {}{}", run.words, run.errors);
    assert!(run.lines("stream").is_empty(), "{}", run.words);
    let outputs = (0..).map_while(|layer| std::fs::read(folder.path().join(format!("output.{layer}"))).ok()).collect();
    (run, outputs)
}

fn with_cache<'a>(cache: &'a str, total: &'a str) -> [(&'a str, &'a str); 4] {
    [("TOTAL_WORKSPACE", total), ("EXACT_CLASS", "1"), ("CACHE", cache), ("LOG", "1")]
}

#[test]
fn every_layer_gives_the_same_in_its_part_of_the_total() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache.db");
    let cache = cache.to_str().unwrap();
    for arguments in [
        "net=6 steps=5 n=3 size=6 c=4 k=4",
        "net=6 steps=5 handles=2 n=3 size=6 c=4 k=4",
        "net=7 steps=6 late=2 n=3 size=6 c=4 k=4",
        "net=6 steps=5 handles=3 late=1 n=3 size=6 c=4 k=4",
    ] {
        let (_, expected) = network(arguments, None);
        for total in ["75KiB", "8KiB"] {
            let (run, outputs) = network(arguments, Some(&with_cache(cache, total)));
            assert!(
                outputs == expected && !expected.is_empty(),
                "{arguments} in {total}: other results\n{}",
                run.errors
            );
            // Without workspace, or left as it was where the total has no place for it.
            let told = run.lines("workspace");
            assert!(total == "8KiB" || told.iter().all(|bytes| *bytes == "0"), "{arguments} in {total}: {told:?}");
        }
    }
}

#[test]
fn the_parts_of_one_step_add_up_to_no_more_than_the_total() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache.db");
    let (run, _) = network("net=6 steps=5 n=3 size=6 c=4 k=4", Some(&with_cache(cache.to_str().unwrap(), "40KiB")));
    let kernels = run.kernels();
    assert_eq!(kernels.len(), 6);
    let parts: u64 = kernels.iter().map(|kernel| kernel["ours"]["workspace_bytes"].as_u64().unwrap()).sum();
    assert!(parts <= 40 << 10, "{parts}: {}", run.errors);
    assert!(run.errors.contains("kernels use"), "it was never divided: {}", run.errors);
    assert_eq!(run.report.as_ref().unwrap()["total_workspace_bytes"], 40 << 10);
}

#[test]
fn a_slow_device_finds_every_part_untouched() {
    let arguments = "net=6 steps=4 handles=2 n=3 size=6";
    let (_, expected) = network(arguments, None);
    let client = Client::new(Form::Linked, &format!("engine=2 {arguments}"))
        .preloaded(&[("TOTAL_WORKSPACE", "24KiB"), ("TUNE", "heuristic")])
        .with("TIGHTFIT_MOCK_CUDA_DELAY", "1:3000,2:200");
    let (run, folder) = client.run_keeping();
    assert_eq!(run.status(), "0", "{}{}", run.words, run.errors);
    assert!(run.lines("stream").is_empty(), "two streams used the same memory: {}", run.words);
    for (layer, expected) in expected.iter().enumerate() {
        assert!(std::fs::read(folder.path().join(format!("output.{layer}"))).unwrap() == *expected, "layer {layer}");
    }
}

#[test]
fn the_legacy_interface_and_captured_graphs_run_in_the_total_too() {
    for arguments in
        ["engine=2 capture=1 times=3", "legacy=find algorithm=2 times=3", "legacy=size algorithm=2 offset=4"]
    {
        let alone = Client::new(Form::Linked, arguments).run();
        let variables = [("TOTAL_WORKSPACE", "64KiB"), ("TUNE", "heuristic")];
        let run = Client::new(Form::Linked, arguments).preloaded(&variables).run();
        run.assert_gives(&alone.output, arguments);
        assert_eq!(run.workspace(), 0, "{arguments}");
    }
}

#[test]
fn a_failed_setup_is_not_retried_at_every_execution() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache.db");
    // Measured at the alignment of 16, one engine is the fastest; at 4 it refuses.
    let arguments = "net=3 steps=6 n=4 c=32 k=32 size=6 filter=2 pad=0 types=f16-f32 alignment=4 offset=4";
    let (_, expected) = network(arguments, None);
    let (cache, total) = (cache.to_str().unwrap(), "4MiB");
    let variables = [("TOTAL_WORKSPACE", total), ("CACHE", cache), ("LOG", "1"), ("POLICY", "undivided")];
    let (run, outputs) = network(arguments, Some(&variables));
    assert!(outputs == expected, "other results\n{}", run.errors);
    let refusals: Vec<&str> = run.errors.lines().filter(|line| line.contains(" refuses ")).collect();
    assert!(!refusals.is_empty(), "nothing was refused: {}", run.errors);
    let mut different = refusals.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(refusals.len(), different.len(), "{}", run.errors);
    for kernel in run.kernels() {
        let parts = kernel["ours"]["configuration"].as_array().unwrap();
        assert!(parts.iter().all(|part| part["algorithm"] != "engine3"), "reported and not run: {kernel}");
    }
}

#[test]
fn a_step_captured_before_or_after_the_total_is_divided_takes_nothing_and_runs_ever_after() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache.db");
    let cache = cache.to_str().unwrap();
    let (_, expected) = network("net=6 steps=6 n=3 size=6 c=4 k=4", None);
    for step in [1, 4] {
        let arguments = format!("net=6 steps=6 capture={step} n=3 size=6 c=4 k=4");
        for total in ["75KiB", "20KiB"] {
            let (run, outputs) = network(&arguments, Some(&with_cache(cache, total)));
            assert!(outputs == expected, "{arguments} in {total}: other results\n{}", run.errors);
            assert_eq!(run.lines("unsafe"), ["0"], "{arguments} in {total}");
            assert!(run.errors.contains("kernels use"), "it was never divided: {}", run.errors);
        }
    }
    // A capture during planning: there is no memory yet, and the program's own choice runs.
    let (run, outputs) = network("net=6 steps=6 capture=0 n=3 size=6 c=4 k=4", Some(&with_cache(cache, "75KiB")));
    assert!(outputs == expected, "{}", run.errors);
    assert!(run.reasons().iter().any(|(reason, _)| reason == "first seen under capture"), "{:?}", run.reasons());
}

#[test]
fn captured_streams_that_share_the_total_are_ordered_by_edges_of_the_graph() {
    let (alone, expected) = network("forked=1 n=3 size=6", None);
    assert_eq!(alone.lines("captured"), ["0"]);
    let total = [("TOTAL_WORKSPACE", "24KiB"), ("TUNE", "heuristic")];
    let (_, outputs) = network("forked=1 n=3 size=6", Some(&total));
    assert!(outputs == expected && outputs.len() == 2, "other results");
    // Nobody joins the streams but the library: without its edges the capture ends in an error.
    let (alone, _) = network("forked=1 join=0 n=3 size=6", None);
    assert_eq!(alone.lines("captured"), ["904"]);
    let (joined, outputs) = network("forked=1 join=0 n=3 size=6", Some(&total));
    assert_eq!(joined.lines("captured"), ["0"], "{}", joined.errors);
    assert!(outputs == expected, "other results");
}
