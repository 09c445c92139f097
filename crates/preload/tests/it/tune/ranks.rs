//! Processes that train together: they meet in each step, share the work of tuning, and outlive each other.

use std::collections::BTreeSet;
use std::path::Path;

use super::*;

const STEPS: &str = "net=6 sync=1 engine=1 size=5 c=4 k=4";

/// The client as one of two ranks on a cache.
fn rank(number: usize, arguments: &str, cache: &Path) -> Client {
    let client = tuned(arguments, &[("CACHE", cache.to_str().unwrap())]);
    client.with("LOCAL_RANK", &number.to_string()).with("LOCAL_WORLD_SIZE", "2")
}

/// The configuration of each convolution, without the times, which every process measures for itself.
fn found(run: &Run) -> BTreeSet<(String, String)> {
    let words = |kernel: &serde_json::Value| {
        let parts = kernel["ours"]["configuration"].as_array().unwrap();
        let part = |part: &serde_json::Value| format!("{} {}", part["micro_batch"], part["algorithm"]);
        (kernel["problem"].to_string(), parts.iter().map(part).collect::<Vec<String>>().join(" + "))
    };
    run.kernels().iter().map(words).collect()
}

/// The steps in which it took memory for measurements.
fn measured_in(run: &Run) -> BTreeSet<u64> {
    run.lines("measured").into_iter().map(|step| step.parse().unwrap()).collect()
}

/// The process began with the cache's decisions on all convolutions, and measured nothing.
fn assert_all_cached(run: &Run) {
    assert_eq!((total(run, "cache_hits"), total(run, "tuning_measurements")), (6, 0), "{}", run.errors);
}

#[test]
fn ranks_that_meet_in_each_step_tune_in_the_same_steps_and_share_what_they_find() {
    let (_, expected) = all_alone(&format!("{STEPS} steps=20"));
    for delays in [["none:0", "all:30"], ["all:60", "0:20"]] {
        let folder = tempfile::tempdir().unwrap();
        let (cache, meeting) = (folder.path().join("cache.db"), folder.path().join("meeting"));
        let arguments = format!("{STEPS} steps=500 pause=3000 meeting={} ranks=2", meeting.display());
        let runs: Vec<Run> = std::thread::scope(|threads| {
            let start = |number: usize| {
                let client = rank(number, &arguments, &cache).with("TIGHTFIT_MOCK_CUDA_DELAY", delays[number]);
                let (expected, arguments) = (&expected, &arguments);
                threads.spawn(move || all_right(client, expected, arguments))
            };
            [0, 1].map(start).into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let steps: Vec<BTreeSet<u64>> = runs.iter().map(measured_in).collect();
        let first = |rank: usize| *steps[rank].first().unwrap_or_else(|| panic!("{}", runs[rank].errors));
        // Each process meets its separate convolution in the same step or in the next.
        assert!(first(0).abs_diff(first(1)) <= 1, "{delays:?}: they do not begin together: {steps:?}");
        let both = steps[0].intersection(&steps[1]).count();
        assert!(2 * both >= steps[0].len().min(steps[1].len()), "{delays:?}: they take turns: {steps:?}");
        for run in &runs {
            assert!(run.lines("alone").is_empty(), "{delays:?}: a collective was not met: {}", run.words);
            assert!(total(run, "tuning_measurements") > 0, "{delays:?}: {}", run.errors);
            assert_eq!(total(run, "undecided"), 0, "{delays:?}: {}", run.errors);
            assert_no_more_workspace(run);
        }
        // Each has measured its share: together they did the work of one.
        let alone = tuned(&format!("{STEPS} steps=200"), &[]).run();
        let measured = |run: &Run| total(run, "tuning_measurements");
        assert!(runs.iter().all(|run| measured(run) < measured(&alone)), "{delays:?}: {}", runs[0].errors);
        assert_eq!(found(&runs[0]), found(&runs[1]), "{delays:?}");
        let later = all_right(rank(0, &format!("{STEPS} steps=20"), &cache), &expected, "later");
        assert_all_cached(&later);
        assert_eq!(found(&later), found(&runs[0]), "{delays:?}");
    }
}

#[test]
fn a_rank_that_is_killed_in_mid_tuning_leaves_its_share_to_the_other() {
    let (_, expected) = all_alone(&format!("{STEPS} steps=20"));
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache.db");
    let lives = std::thread::scope(|threads| {
        let killed = threads.spawn(|| rank(1, &format!("{STEPS} steps=20 killed=7"), &cache).run());
        // Longer than a rank waits for news of the others.
        let lives = all_right(rank(0, &format!("{STEPS} steps=700 pause=8000"), &cache), &expected, "lives");
        let killed = killed.join().unwrap();
        assert_eq!(killed.code, None, "{}", killed.errors);
        lives
    });
    assert_eq!(total(&lives, "undecided"), 0, "{}", lives.errors);
    let timed = lives.kernels().iter().filter(|kernel| kernel["framework"]["time_us"].is_number()).count();
    assert_eq!(timed, 6, "its share was left unmeasured: {}", lives.errors);
    for number in [0, 1] {
        let later = all_right(rank(number, &format!("{STEPS} steps=20"), &cache), &expected, "later");
        assert_all_cached(&later);
        assert_eq!(found(&later), found(&lives));
    }
}
