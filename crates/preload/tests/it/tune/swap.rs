//! Slow choices are replaced while the program runs, and later processes begin with the replacements.

use super::*;

/// Through the backend interface and the legacy one, undivided and divided.
fn slow_choices() -> [(String, &'static str); 4] {
    let legacy = DIVIDED.replace("engine=1", "legacy=size algorithm=1");
    [
        (format!("{REPLACED} {WATCHED}"), "replaced"),
        (format!("{REPLACED} op=filter {WATCHED}"), "replaced"),
        (format!("{DIVIDED} {WATCHED}"), "divided"),
        (format!("{legacy} {WATCHED}"), "divided"),
    ]
}

#[test]
fn a_slow_choice_is_replaced_and_every_execution_gives_the_same_bits() {
    for (arguments, decision) in slow_choices() {
        let alone = alone(&arguments);
        assert_eq!(alone.lines("differing"), ["0 200"]);
        let run = right(tuned(&arguments, &[]), &alone, &arguments);
        let kernel = &run.kernels()[0];
        assert_eq!(kernel["decision"], decision, "{}", run.errors);
        let [theirs, ours] = ["framework", "ours"].map(|whose| kernel[whose]["time_us"].as_f64().unwrap());
        assert!(ours < theirs, "{kernel:#}");
        assert_eq!(kernel["calls"], 200);
        assert!(total(&run, "tuning_measurements") > 0);
        assert!(run.report.as_ref().unwrap()["totals"]["time_gained_us"].as_f64() > Some(0.0));
        assert_no_more_workspace(&run);
        let parts = kernel["ours"]["configuration"].as_array().unwrap();
        let samples: u64 = parts.iter().map(|part| part["micro_batch"].as_u64().unwrap()).sum();
        assert_eq!((samples, parts.len() > 1), (7, decision == "divided"), "{kernel:#}");
    }
}

#[test]
fn the_first_step_is_the_programs_own() {
    // One convolution is in its first step until it was executed twice more.
    for (times, is_measured) in [(2, false), (3, true)] {
        let run = tuned(&format!("{DIVIDED} times={times} watch=1"), &[]).run();
        let spent = run.report.as_ref().unwrap()["totals"]["tuning_us"].as_f64().unwrap();
        assert_eq!((decisions(&run), spent > 0.0), (vec!["kept"], is_measured), "{times}: {}", run.errors);
    }
}

#[test]
fn a_later_process_begins_with_the_decision() {
    for (arguments, decision) in slow_choices() {
        let folder = tempfile::tempdir().unwrap();
        let [cache, copy] = ["cache.db", "copy.db"].map(|name| folder.path().join(name));
        let in_cache = ("CACHE", cache.to_str().unwrap());
        let alone = alone(&arguments);
        let first = right(tuned(&arguments, &[in_cache]), &alone, &arguments);
        assert_eq!(decisions(&first), [decision], "{}", first.errors);
        std::fs::copy(&cache, &copy).unwrap();
        for variables in [
            [in_cache, ("TUNE", "measure")],
            [in_cache, ("TUNE_BUDGET", "0")],
            [in_cache, ("TUNE_BUDGET", "10s")],
            [in_cache, ("TUNE", "cached")],
            [("CACHE", copy.to_str().unwrap()), ("TUNE", "cached")],
        ] {
            let again = right(tuned(&arguments, &variables), &alone, &format!("{arguments} {variables:?}"));
            assert_eq!(total(&again, "tuning_measurements"), 0, "{variables:?}: {}", again.errors);
            assert!(total(&again, "cache_hits") > 0, "{variables:?}");
            assert_eq!(again.kernels()[0]["ours"], first.kernels()[0]["ours"], "{variables:?}");
            assert_eq!(again.kernels()[0]["framework"], first.kernels()[0]["framework"], "{variables:?}");
        }
        // From the first execution on.
        let once = tuned(&arguments.replace("times=200", "times=1"), &[in_cache]).run();
        assert_eq!(once.kernels()[0]["ours"], first.kernels()[0]["ours"]);
    }
}

#[test]
fn without_a_budget_nothing_is_measured() {
    for budget in ["0", "0s"] {
        let arguments = format!("{DIVIDED} {WATCHED}");
        let run = right(tuned(&arguments, &[("TUNE_BUDGET", budget)]), &alone(&arguments), budget);
        assert_eq!((decisions(&run), total(&run, "tuning_measurements")), (vec!["kept"], 0));
    }
}

#[test]
fn no_kernel_of_a_network_gets_more_workspace_than_its_own_choice() {
    let mut swapped = 0;
    for shape in ["engine=1 size=5 c=4 k=4", "engine=2 c=4 k=4", REPLACED] {
        let arguments = format!("net=6 steps=60 sync=1 {shape}");
        let (alone, expected) = all_alone(&arguments);
        let run = all_right(tuned(&arguments, &[]), &expected, &arguments);
        assert_eq!(run.lines("workspace"), alone.lines("workspace"), "{arguments}: told otherwise");
        assert_eq!(run.kernels().len(), 6);
        assert_no_more_workspace(&run);
        swapped += decisions(&run).iter().filter(|decision| **decision != "kept").count();
    }
    assert!(swapped > 3, "{swapped} of 18");
}

#[test]
fn a_guess_within_the_limit_runs_until_a_better_one_is_found() {
    // The own choice does not fit: what runs at first is the heuristic's, and the limit holds throughout. In the same class of
    // arithmetic all bits agree.
    let arguments = format!("engine=2 op=filter c=4 k=4 {WATCHED}");
    let alone = alone(&arguments);
    let run = tuned(&arguments, &[("WORKSPACE", "16KiB"), ("EXACT_CLASS", "1")]).run();
    run.assert_gives(&alone.output, &arguments);
    assert_eq!(run.lines("differing"), ["0 200"], "{}", run.errors);
    assert!(run.workspace() <= 16 << 10 && alone.workspace() > 16 << 10, "{} {}", run.words, alone.words);
    let kernel = &run.kernels()[0];
    assert!(kernel["ours"]["workspace_bytes"].as_u64() <= Some(16 << 10), "{kernel:#}");
    assert!(total(&run, "tuning_measurements") > 0 && kernel["ours"]["time_us"].as_f64() > Some(0.0), "{kernel:#}");
}

#[test]
fn a_far_faster_choice_runs_before_all_is_measured() {
    let run = |times: usize| {
        let arguments = format!("engine=2 op=filter n=24 size=7 c=4 k=4 times={times} watch=1");
        let run = tuned(&arguments, &[("WORKSPACE", "16KiB"), ("EXACT_CLASS", "1")]).run();
        run.assert_gives(&alone(&arguments).output, &arguments);
        (run.errors.contains(" from now on, "), total(&run, "tuning_measurements"))
    };
    let (_, all) = run(200);
    let is_early = (4..20).map(run).any(|(is_used, measured)| is_used && measured < all);
    assert!(is_early, "it was used only when all {all} were measured");
}

#[test]
fn later_processes_search_the_whole_limit() {
    // The own choice needs no workspace.
    let arguments = format!("engine=0 op=filter size=5 c=4 k=4 {WATCHED}");
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache.db");
    let limited = [("CACHE", cache.to_str().unwrap()), ("WORKSPACE", "64KiB"), ("EXACT_CLASS", "1")];
    let first = tuned(&arguments, &limited).run();
    let needs = |run: &Run| run.kernels()[0]["ours"]["workspace_bytes"].as_u64().unwrap();
    assert!(needs(&first) > 0 && first.workspace() > 0, "{}", first.errors);
    // As a budget leaves it that ends before there was anything to compare.
    let file = rusqlite::Connection::open(&cache).unwrap();
    assert_eq!(file.execute("UPDATE decision SET configuration = 'null', is_final = 0", []), Ok(1));
    let second = tuned(&arguments, &limited).run();
    assert_eq!((second.workspace(), needs(&second)), (first.workspace(), needs(&first)), "{}", second.errors);
    // From then on, the reported workspace is its need.
    assert_eq!(tuned(&arguments, &limited).run().workspace() as u64, needs(&first));
}

#[test]
fn kernels_after_the_budget_report_their_own_need() {
    // The own choices need no workspace; others, within the limit.
    let arguments = "size=5 c=4 k=4 script=engine:0;plan:2;run:0x60;plan:5;run:1";
    let limit = [("WORKSPACE", "64KiB"), ("EXACT_CLASS", "1")];
    let told = |budget: &str| -> Vec<u64> {
        let run = tuned(arguments, &limit).preloaded(&[("TUNE_BUDGET", budget)]).run();
        assert_eq!((run.code, run.status()), (Some(0), "0"), "{}{}", run.words, run.errors);
        run.lines("workspace").iter().map(|bytes| bytes.parse().unwrap()).collect()
    };
    assert!(told("unlimited").iter().all(|bytes| *bytes > 0));
    let late = told("1ms");
    assert!(late[0] > 0 && late[1] == 0, "{late:?}");
}
