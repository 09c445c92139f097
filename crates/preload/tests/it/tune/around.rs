//! Conditions around tuning: a slow device, threads, captured graphs, many convolutions, other processes.

use std::time::{Duration, Instant};

use super::*;
use crate::faults::{calls, counted_by};

#[test]
fn eight_threads_get_their_own_results() {
    for delay in ["none:0", "all:50"] {
        let arguments = format!("{DIVIDED} threads=8 rounds=2 times=60 sync=1");
        let (_, expected) = all_alone(&arguments);
        let run = all_right(tuned(&arguments, &[]).with("TIGHTFIT_MOCK_CUDA_DELAY", delay), &expected, delay);
        assert_eq!((run.kernels().len(), expected.len()), (3, 8), "three batch sizes");
        assert!(decisions(&run).contains(&"divided"), "{}", run.errors);
        let calls: u64 = run.kernels().iter().map(|kernel| kernel["calls"].as_u64().unwrap()).sum();
        assert_eq!(calls, 8 * 2 * 60);
    }
}

#[test]
fn a_graph_keeps_what_ran_when_its_capture_began() {
    let steps = |steps: &str| format!("{DIVIDED} script=plan:2;{steps}");
    // Without a capture it would be replaced; captured in its first steps, it is left alone.
    let free = steps("run:0x200");
    let (_, expected) = all_alone(&free);
    assert_eq!(decisions(&all_right(tuned(&free, &[]), &expected, &free)), ["divided"]);
    for before in [1, 3, 5] {
        let captured = steps(&format!("run:0x{before};graph:0;run:0x200;launch:x3"));
        let run = all_right(tuned(&captured, &[]), &expected, &captured);
        assert_eq!(decisions(&run), ["kept"], "{}", run.errors);
    }
    // Captured after it was replaced, the graph has what replaced it, and runs as long as the program.
    let late = steps("run:0x200;graph:0;run:0x3;launch:x3;run:0");
    let run = all_right(tuned(&late, &[]), &expected, &late);
    assert_eq!(decisions(&run), ["divided"], "{}", run.errors);
}

#[test]
fn a_captured_step_takes_nothing_and_waits_for_nothing() {
    let arguments = |captured: usize| format!("net=6 steps=70 capture={captured} sync=1 engine=1 size=5 c=4 k=4");
    let (_, expected) = all_alone(&arguments(0));
    for step in [0, 3, 8, 60] {
        let arguments = arguments(step);
        let run = all_right(tuned(&arguments, &[]), &expected, &arguments);
        // Step 0 plans as well, and the client itself takes memory then.
        assert!(step == 0 || run.lines("unsafe") == ["0"], "{arguments}: {}", run.words);
        assert_eq!((run.kernels().len(), total(&run, "undecided")), (6, 0), "{}", run.errors);
    }
}

#[test]
fn a_capture_on_another_thread_is_not_broken() {
    for arguments in [REPLACED, DIVIDED] {
        let arguments = format!("{arguments} times=200 beside=2 pause=1500");
        let run = right(tuned(&arguments, &[]), &alone(&arguments), &arguments);
        assert_eq!(run.lines("beside"), ["0"], "{}", run.errors);
        assert!(total(&run, "tuning_measurements") > 0, "it was to be measured beside the capture: {}", run.errors);
    }
}

#[test]
fn the_host_waits_no_more_often_than_without_the_library() {
    for arguments in
        [format!("{DIVIDED} times=200 sync=1"), format!("{DIVIDED} {WATCHED}"), format!("{REPLACED} times=50")]
    {
        let arguments = format!("{arguments} counts=1");
        let alone = alone(&arguments);
        let run = right(tuned(&arguments, &[]), &alone, &arguments);
        for name in ["own-synchronizations", "allocations"] {
            assert_eq!(count(&run, name), count(&alone, name), "{arguments}: {name}");
        }
    }
}

#[test]
fn a_measurement_that_hangs_does_not_hold_up_calls_or_the_end() {
    // The client's stream takes a minute for each piece of work, and nobody waits for it.
    let arguments = format!("{DIVIDED} times=40 leave=1");
    let begun = Instant::now();
    let run = tuned(&arguments, &[]).with("TIGHTFIT_MOCK_CUDA_DELAY", "0:60000000").run();
    assert!(begun.elapsed() < Duration::from_secs(50), "{}", run.errors);
    assert_eq!((run.code, run.status()), (Some(0), "0"), "{}{}", run.words, run.errors);
    let kernel = &run.kernels()[0];
    assert_eq!((&kernel["calls"], &kernel["decision"]), (&40.into(), &"kept".into()));
    assert!(run.report.as_ref().unwrap()["totals"]["tuning_us"].as_f64() > Some(0.0), "a measurement was to begin");
}

#[test]
fn kernels_that_no_longer_run_are_not_waited_for() {
    // The first runs twice, as in a validation before the first step, in which nothing may be measured yet.
    let arguments = |then: &str| format!("{DIVIDED} script=plan:2;plan:5;run:0;run:1;run:0;run:1x{then}");
    let run = |then: &str| {
        let arguments = arguments(then);
        let (_, expected) = all_alone(&arguments);
        all_right(counted_by(tuned(&arguments, &[])), &expected, &arguments)
    };
    let [shorter, longer] = ["400", "1600"].map(run);
    for run in [&shorter, &longer] {
        assert_eq!((decisions(run), total(run, "undecided")), (vec!["kept", "divided"], 0), "{}", run.errors);
    }
    let recorded = |run: &Run| calls(run)["cuEventRecord"];
    // How many are needed to decide depends on when plans are built.
    let more = recorded(&longer).saturating_sub(recorded(&shorter));
    assert!(more < 600, "of 1200 more executions, {more} are looked at: {}", longer.errors);
    let later = run("400;run:0x200");
    assert_eq!(decisions(&later), ["divided"; 2], "it is tuned when it goes on: {}", later.errors);
}

#[test]
fn the_line_on_a_terminal_is_taken_back_in_the_end() {
    // Tuning comes to its end, or the program does.
    for times in [200, 6] {
        let client = tuned(&format!("{DIVIDED} times={times} watch=1"), &[("LOG", "0")]);
        let run = client.on_terminal().run();
        assert_eq!((run.code, run.status()), (Some(0), "0"), "{}", run.words);
        let (_, after) = run.words.rsplit_once("tightfit: tuning: ").expect("it was shown");
        let (_, then) = after.split_once("\r\x1b[K").expect("it was not taken back");
        assert!(then.starts_with("tightfit: "), "{}", run.words);
    }
}

#[test]
fn a_thousand_convolutions_are_right_in_bounded_memory() {
    for (arguments, is_swapped) in
        [("many=1000 steps=4 size=4 engine=1", false), ("many=40 steps=60 size=4 engine=1 op=filter", true)]
    {
        let arguments = format!("{arguments} counts=1");
        let alone = alone(&arguments);
        // So slow that many parts are worth their calls.
        let measured = |_| {
            let run = tuned(&arguments, &[]).with("TIGHTFIT_MOCK_CUDNN_SLOWDOWN", "10000").run();
            (total(&run, "tuning_measurements") > 0).then_some(run)
        };
        // In four executions each, a busy machine may measure nothing.
        let run = (0..5).find_map(measured).expect("nothing was ever measured");
        assert_eq!((run.code, run.status()), (Some(0), "0"), "{arguments}: {}{}", run.words, run.errors);
        assert_eq!(run.lines("hash"), alone.lines("hash"), "{arguments}");
        assert_eq!(decisions(&run).contains(&"divided"), is_swapped, "{arguments}");
        assert_eq!(count(&run, "allocations"), count(&alone, "allocations"), "{arguments}");
        // At most 32 measurements are on their way, each on no more than the program's largest tensors and workspace; a proof of
        // slices has guards of 2 MiB.
        let most = 33 * count(&alone, "peak-bytes") + (3 << 20);
        assert!(count(&run, "peak-bytes") <= most, "{arguments}: {}", run.words);
        assert!(count(&run, "host-bytes") <= 4 << 20, "{arguments}: {}", run.words);
        assert!(
            count(&run, "resident-kib") <= count(&alone, "resident-kib") + (96 << 10),
            "{arguments}: {}",
            run.words
        );
    }
}

#[test]
fn a_program_that_is_killed_while_tuning_leaves_a_report() {
    // Far more is to be measured than there are executions.
    let killed = tuned(&format!("{DIVIDED} times=40 killed=6"), &[]).run();
    assert_eq!(killed.code, None, "{}", killed.errors);
    let kernel = &killed.kernels()[0];
    assert_eq!(kernel["decision"], "kept");
    assert!(kernel["calls"].as_u64() > Some(1), "{kernel:#}");
}

#[test]
fn a_rank_whose_budget_ends_says_so_to_the_others() {
    let arguments = "net=6 steps=60 sync=1 engine=1 size=5 c=4 k=4";
    let hits = |ranks: &str| {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache.db");
        let settings = [("CACHE", cache.to_str().unwrap()), ("TUNE_BUDGET", "1ms")];
        let client = tuned(arguments, &settings).with("LOCAL_RANK", "0").with("LOCAL_WORLD_SIZE", ranks);
        assert_eq!(client.run().status(), "0");
        let later = tuned(arguments, &[("CACHE", cache.to_str().unwrap()), ("TUNE", "cached")]).run();
        total(&later, "cache_hits")
    };
    // Alone, what is not known is not written down; among ranks, the others adopt it and stop waiting.
    assert_eq!(hits("1"), 0);
    assert!((1..6).contains(&hits("2")));
}

#[test]
fn memory_of_measurements_is_returned_when_they_end() {
    // Nobody waits for the device before the bytes are counted; and the program has its own pool keep all that it gets back.
    for (arguments, budget) in [
        ("times=200 watch=1 counts=1 hoarding=1", "unlimited"),
        ("times=150 pause=2000 leave=1 counts=1", "unlimited"),
        ("times=150 pause=2000 leave=1 counts=1", "1ms"),
    ] {
        let arguments = format!("{DIVIDED} {arguments}");
        let plain = slow(Client::new(Form::Linked, &arguments)).run();
        let run = tuned(&arguments, &[("TUNE_BUDGET", budget)]).run();
        assert_eq!((run.code, run.status()), (Some(0), "0"), "{arguments}: {}{}", run.words, run.errors);
        assert!(count(&run, "peak-bytes") > count(&plain, "peak-bytes"), "nothing was measured: {}", run.errors);
        assert!(run.errors.contains("tuned for"), "{arguments}, {budget}: still tuning: {}", run.errors);
        assert_eq!(count(&run, "bytes"), count(&plain, "bytes"), "{arguments}, {budget}: {}", run.errors);
    }
}

#[test]
fn a_device_that_hangs_in_mid_training_holds_up_no_call_and_leaves_results_right() {
    let arguments = "net=2 steps=120 sync=1 engine=1 size=5 c=4 k=4";
    let (_, expected) = all_alone(arguments);
    for step in [4, 9] {
        // Ten steps, and the measurements in them, enqueue work behind a piece that takes half a second.
        let hanging = format!("{arguments} hanging={step}");
        let run = all_right(tuned(&hanging, &[]), &expected, &hanging);
        assert_eq!(run.lines("hung"), ["1"], "{hanging}: somebody waited for the device: {}", run.errors);
        assert!(total(&run, "tuning_measurements") > 0, "{hanging}: {}", run.errors);
    }
}

#[test]
fn tuning_takes_no_longer_than_its_budget_in_the_whole_process() {
    let arguments = "net=24 steps=170 sync=1 engine=1 size=5 c=4 k=4";
    let (_, expected) = all_alone(arguments);
    // By the mock's clock each call takes some hundredths of a second, so that everything would take far longer than the default.
    let under = |variables: &[(&str, &str)]| {
        let client = Client::new(Form::Linked, arguments).with("TIGHTFIT_MOCK_CUDNN_SLOWDOWN", "100000");
        let client = client.preloaded(&[("WORKSPACE", "auto"), ("LOG", "1")]).preloaded(variables);
        all_right(client, &expected, &format!("{variables:?}"))
    };
    let spent =
        |run: &Run| Duration::from_micros(run.report.as_ref().unwrap()["totals"]["tuning_us"].as_f64().unwrap() as u64);
    let all = spent(&under(&[("TUNE_BUDGET", "unlimited")]));
    for (variables, budget) in [(&[][..], 10), (&[("TUNE_BUDGET", "2s")], 2)] {
        let (run, budget) = (under(variables), Duration::from_secs(budget));
        // Work that has begun is expected to end within the budget. An estimate may err by less than the delay allowed to
        // one step.
        let most = budget + Duration::from_millis(250);
        assert!(all > most && spent(&run) <= most, "{:?} of {budget:?}, {all:?}: {}", spent(&run), run.errors);
        assert!(run.errors.contains("tuned for"), "{}", run.errors);
    }
}
