//! Slices along space: where the mini-batch is 1, the program's own engine runs within a limit.

use super::*;

/// One sample, for whose workspace there is no room. In the same class of arithmetic all bits agree.
const LARGE: &str = "n=1 size=24 c=4 k=4 engine=2";
const LIMITED: [(&str, &str); 2] = [("WORKSPACE", "32KiB"), ("EXACT_CLASS", "1")];

fn limited(arguments: &str, variables: &[(&str, &str)]) -> Client {
    tuned(arguments, &LIMITED).preloaded(variables)
}

/// Runs the client; the result is right, within the limit.
fn right_within(client: Client, expected: &Run, after: &str) -> Run {
    let run = client.run();
    run.assert_gives(&expected.output, after);
    assert_eq!(run.lines("differing"), expected.lines("differing"), "{after}: {}", run.errors);
    assert!(
        run.workspace() <= 32 << 10 && expected.workspace() > 64 << 10,
        "{after}: {} {}",
        run.words,
        expected.words
    );
    run
}

fn is_sliced(run: &Run) -> bool {
    algorithms(run).iter().any(|name| name.contains(" x h") || name.contains(" + h"))
}

#[test]
fn one_sample_runs_in_slices_of_the_same_bits() {
    for operation in ["forward", "data", "filter"] {
        let arguments = format!("{LARGE} op={operation} {WATCHED}");
        let alone = alone(&arguments);
        let run = right_within(limited(&arguments, &[]), &alone, &arguments);
        assert_eq!((decisions(&run), is_sliced(&run)), (vec!["divided"], true), "{}", run.errors);
        assert!(run.kernels()[0]["ours"]["time_us"].as_f64() > Some(0.0));
        for divide in ["batch", "off"] {
            let run = right_within(limited(&arguments, &[("DIVIDE", divide)]), &alone, divide);
            assert!(!is_sliced(&run), "{divide}: {:?}", algorithms(&run));
        }
    }
}

#[test]
fn slices_of_the_own_engine_run_from_the_first_execution_on() {
    for operation in ["forward", "data", "filter"] {
        let arguments = format!("{LARGE} op={operation}");
        let run = right_within(limited(&arguments, &[]), &alone(&arguments), &arguments);
        assert_eq!((is_sliced(&run), total(&run, "tuning_measurements")), (true, 0), "{}", run.errors);
        assert!(algorithms(&run).iter().all(|name| !name.contains("engine1")), "{:?}", algorithms(&run));
    }
}

#[test]
fn an_own_engine_that_refuses_strides_runs_on_copies_from_the_first_execution_on() {
    for operation in ["forward", "data"] {
        let arguments = format!("n=1 size=24 c=4 k=4 engine=5 op={operation}");
        let run = limited(&arguments, &[]).run();
        run.assert_gives(&alone(&arguments).output, &arguments);
        assert!(run.workspace() <= 32 << 10, "{}", run.words);
        assert!(algorithms(&run).iter().any(|name| name.contains("packed:engine5")), "{:?}", algorithms(&run));
    }
}

#[test]
fn slices_are_captured_and_follow_the_handle_to_other_streams() {
    for engine in [2, 5] {
        let arguments = format!("n=1 size=24 c=4 k=4 engine={engine}");
        let expected = alone(&arguments);
        // The graph runs after its plan is gone; several threads have separate handles and streams.
        for more in ["capture=1", "rounds=3", "threads=3 rounds=4"] {
            let client = limited(&format!("{arguments} {more}"), &[]).with("TIGHTFIT_MOCK_CUDA_DELAY", "all:50");
            let (run, folder) = client.run_keeping();
            assert_eq!((run.code, run.status()), (Some(0), "0"), "{more}: {}{}", run.words, run.errors);
            assert!(algorithms(&run).iter().any(|name| name.contains(" x h")), "{more}: {:?}", algorithms(&run));
            if !more.starts_with("threads") {
                run.assert_gives(&expected.output, more);
            }
            drop(folder);
        }
    }
}

#[test]
fn proofs_break_no_capture_on_another_thread() {
    for beside in [1, 2] {
        let arguments = format!("{LARGE} times=200 pause=1500 beside={beside}");
        let run = right_within(limited(&arguments, &[]), &alone(&arguments), &arguments);
        assert_eq!((run.lines("beside"), is_sliced(&run)), (vec!["0"], true), "{}", run.errors);
    }
}

#[test]
fn a_device_that_fails_once_says_nothing_of_an_engine() {
    let arguments = format!("{LARGE} {WATCHED}");
    for failure in ["cuMemcpyHtoDAsync_v2:1:2", "cuMemAllocFromPoolAsync:1:2", "cuMemcpyDtoHAsync_v2:1:2"] {
        let client = limited(&arguments, &[]).with("TIGHTFIT_MOCK_CUDA_FAIL", failure);
        let run = right_within(client, &alone(&arguments), failure);
        assert!(is_sliced(&run), "{failure}: {:?} {}", algorithms(&run), run.errors);
    }
}

#[test]
fn a_later_process_begins_with_slices() {
    for tune in ["measure", "first"] {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache.db");
        let variables = [("TUNE", tune), ("CACHE", cache.to_str().unwrap())];
        let arguments = format!("{LARGE} {WATCHED}");
        let alone = alone(&arguments);
        let first = right_within(limited(&arguments, &variables), &alone, tune);
        assert!(is_sliced(&first) && total(&first, "tuning_measurements") > 0, "{tune}: {}", first.errors);
        let again = right_within(limited(&arguments, &variables), &alone, tune);
        assert_eq!(total(&again, "tuning_measurements"), 0, "{tune}: {}", again.errors);
        assert_eq!(again.kernels()[0]["ours"], first.kernels()[0]["ours"], "{tune}");
    }
}

#[test]
fn an_engine_that_is_wrong_at_padded_edges_runs_only_between_them() {
    let arguments = format!("{LARGE} {WATCHED}");
    let wrong = limited(&arguments, &[]).with("TIGHTFIT_MOCK_CUDNN_SPOIL_UNEVEN", "2");
    let run = right_within(wrong, &alone(&arguments), &arguments);
    assert!(run.errors.contains("engine2:k25=0 on slices like"), "{}", run.errors);
    let slices: Vec<&str> = algorithms(&run)[0].split(" + ").collect();
    let edges = [slices.first(), slices.last()].map(|edge| edge.unwrap().contains("engine2"));
    assert_eq!((slices.len() > 2, edges), (true, [false; 2]), "{slices:?}");
}
