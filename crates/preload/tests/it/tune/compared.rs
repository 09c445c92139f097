//! A configuration that runs is compared with 64-bit arithmetic once: a first guess between calls, and kernels of a total
//! before they run. Later processes take the errors from the cache.

use std::path::Path;

use rusqlite::Connection;

use super::*;

const SPOIL: &str = "TIGHTFIT_MOCK_CUDNN_SPOIL_ENGINE";

/// The algorithms that run for any kernel.
fn all_algorithms(run: &Run) -> Vec<String> {
    let parts = run.kernels().iter().flat_map(|kernel| kernel["ours"]["configuration"].as_array().unwrap());
    parts.map(|part| part["algorithm"].as_str().unwrap().to_owned()).collect()
}

fn uses(run: &Run, algorithm: &str) -> bool {
    all_algorithms(run).iter().any(|one| one == algorithm)
}

/// Configurations that were compared.
fn compared(run: &Run) -> usize {
    run.errors.lines().filter(|line| line.contains(" errs by ")).count()
}

fn alter(cache: &Path, statement: &str) {
    assert!(Connection::open(cache).unwrap().execute(statement, []).unwrap() > 0, "{statement}");
}

/// Engine 2 has no room, and may not be divided: at first, another engine runs.
const GUESSED: &str = "engine=2 op=filter c=4 k=4";
const LIMITED: [(&str, &str); 3] = [("WORKSPACE", "16KiB"), ("EXACT_CLASS", "1"), ("POLICY", "undivided")];

fn first_guess() -> String {
    let run = tuned(GUESSED, &LIMITED).preloaded(&[("TUNE", "heuristic")]).run();
    let guess = all_algorithms(&run).remove(0);
    assert!(guess.starts_with("engine") && guess != "engine2", "{guess}: {}", run.errors);
    guess
}

#[test]
fn a_first_guess_that_is_wrong_gives_way_and_is_not_made_again() {
    let guess = first_guess();
    let spoiled = guess["engine".len()..].split(':').next().unwrap().to_owned();
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache.db");
    let in_cache = [("CACHE", cache.to_str().unwrap())];
    let limited = |times: usize, more: &[(&str, &str)]| {
        let arguments = format!("{GUESSED} times={times} watch=1");
        let run = tuned(&arguments, &LIMITED).preloaded(&in_cache).preloaded(more).with(SPOIL, &spoiled).run();
        assert_eq!((run.code, run.status()), (Some(0), "0"), "{}{}", run.words, run.errors);
        run
    };
    let expected = alone(&format!("{GUESSED} times=1")).output;
    let found = limited(200, &[]);
    found.assert_gives(&expected, "between calls");
    assert!(!uses(&found, &guess) && total(&found, "less_accurate") == 1, "{}", found.errors);
    assert!(found.errors.contains(" is less accurate than engine2"), "{}", found.errors);
    // A later process begins with the decision, and without one, with another guess.
    for _ in 0..2 {
        let later = limited(1, &[("TUNE_BUDGET", "0")]);
        later.assert_gives(&expected, "later");
        assert!(!uses(&later, &guess) && compared(&later) == 0, "{}", later.errors);
        Connection::open(&cache).unwrap().execute("DELETE FROM decision", []).unwrap();
    }
    // Nobody knows any more.
    alter(&cache, "DELETE FROM comparison");
    assert!(uses(&limited(1, &[("TUNE_BUDGET", "0")]), &guess));
}

#[test]
fn a_first_guess_that_is_right_is_compared_once() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache.db");
    let guess = first_guess();
    let run = || {
        let arguments = format!("{GUESSED} times=30 watch=1");
        let run = tuned(&arguments, &LIMITED).preloaded(&[("CACHE", cache.to_str().unwrap())]).run();
        run.assert_gives(&alone(&arguments).output, &arguments);
        let of_guess = format!(" {guess} errs by ");
        run.errors.lines().filter(|line| line.contains(&of_guess)).count()
    };
    assert_eq!(run(), 1);
    let decided = Connection::open(&cache).unwrap();
    decided.execute("DELETE FROM decision", []).unwrap();
    assert_eq!(run(), 0);
    decided.execute_batch("DELETE FROM decision; DELETE FROM comparison").unwrap();
    assert_eq!(run(), 1);
}

#[test]
fn by_the_cache_alone_only_what_was_compared_replaces_a_choice() {
    for arguments in [REPLACED, DIVIDED] {
        let arguments = format!("{arguments} {WATCHED}");
        let alone = alone(&arguments);
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache.db");
        let in_cache = [("CACHE", cache.to_str().unwrap())];
        let found = right(tuned(&arguments, &in_cache), &alone, "fills the cache");
        assert_ne!(decisions(&found), ["kept"], "{}", found.errors);
        // Times are left.
        alter(&cache, "DELETE FROM decision");
        let cached = || {
            let run = tuned(&arguments, &in_cache).preloaded(&[("TUNE", "cached")]).run();
            run.assert_gives(&alone.output, "cached");
            run
        };
        let run = cached();
        assert_ne!(decisions(&run), ["kept"], "{}", run.errors);
        assert_eq!((algorithms(&run), compared(&run)), (algorithms(&found), 0), "{}", run.errors);
        alter(&cache, "UPDATE comparison SET error = 0.5");
        assert_eq!(decisions(&cached()), ["kept"], "less accurate");
        alter(&cache, "DELETE FROM comparison");
        let run = cached();
        assert_eq!(decisions(&run), ["kept"], "not compared");
        assert!(run.errors.contains(" was not compared with "), "{}", run.errors);
        // Between calls it is, again.
        assert_ne!(decisions(&right(tuned(&arguments, &in_cache), &alone, "again")), ["kept"]);
    }
}

#[test]
fn a_plainly_wrong_engine_never_runs_under_a_limit() {
    let arguments = "engine=9 op=filter size=5 c=4 k=4 times=3 watch=1";
    let limit = format!("{}B", alone(arguments).workspace() - 1);
    let limited = || tuned(arguments, &[("WORKSPACE", &limit), ("EXACT_CLASS", "1"), ("TUNE", "first")]);
    let found = limited().run();
    let best = all_algorithms(&found).remove(0);
    let index = best.strip_prefix("engine").and_then(|name| name.split(':').next()).unwrap();
    assert_ne!(index, "9", "{best}");
    let run = limited().with(SPOIL, index).run();
    run.assert_gives(&alone(arguments).output, "spoiled");
    assert!(!uses(&run, &best) && total(&run, "less_accurate") == 1, "{}", run.errors);
}

#[test]
fn kernels_of_a_total_are_compared_once_and_right() {
    let arguments = "engine=1 net=6 steps=5 n=3 size=6 c=4 k=4";
    let (_, expected) = all_alone(arguments);
    let in_total = [("WORKSPACE", ""), ("TOTAL_WORKSPACE", "75KiB"), ("EXACT_CLASS", "1")];
    let best = all_algorithms(&all_right(tuned(arguments, &in_total), &expected, "in a total"));
    let other = best.iter().find(|one| one.starts_with("engine") && !one.starts_with("engine1"));
    let other = other.unwrap_or_else(|| panic!("an engine to spoil: {best:?}"));
    let index = other["engine".len()..].split(':').next().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache.db");
    let spoiled = || tuned(arguments, &in_total).preloaded(&[("CACHE", cache.to_str().unwrap())]).with(SPOIL, index);
    let run = all_right(spoiled(), &expected, "spoiled");
    assert!(!uses(&run, other) && total(&run, "less_accurate") > 0 && compared(&run) > 0, "{}", run.errors);
    let again = all_right(spoiled(), &expected, "spoiled again");
    assert!(!uses(&again, other) && compared(&again) == 0, "{}", again.errors);
    // The errors in the cache decide.
    alter(&cache, "UPDATE comparison SET error = 0");
    let (trusting, folder) = spoiled().run_keeping();
    assert!(uses(&trusting, other) && outputs(&folder) != expected, "{}", trusting.errors);
}
