//! Everything is measured before the first execution. A replacement still alternates with the program's choice before it
//! runs, and later processes of either kind begin with the result.

use super::*;

const FIRST: (&str, &str) = ("TUNE", "first");

#[test]
fn wrong_and_less_accurate_configurations_are_not_used() {
    for (arguments, engine) in [(REPLACED, 3), (DIVIDED, 2)] {
        let arguments = format!("{arguments} times=3 watch=1");
        let spoiled = tuned(&arguments, &[FIRST]).with("TIGHTFIT_MOCK_CUDNN_SPOIL_ENGINE", &engine.to_string());
        let run = right(spoiled, &alone(&arguments), &arguments);
        let wrong = format!("engine{engine}");
        assert!(!algorithms(&run).iter().any(|name| name.starts_with(&wrong)), "{:#}", run.kernels()[0]);
        let mut lines = run.errors.lines().filter(|line| line.contains(" is less accurate than"));
        assert!(lines.any(|line| line.contains(&wrong)), "it was never tried: {}", run.errors);
    }
    // Transforms of 5x5 filters, of which none is left in the end.
    let arguments = "engine=2 size=5 c=4 k=4 times=3 watch=1";
    let run = right(tuned(arguments, &[FIRST]), &alone(arguments), arguments);
    let is_transform = |name: &&str| ["fft", "winograd"].iter().any(|one| name.contains(one));
    assert!(!algorithms(&run).iter().any(is_transform), "{:#}", run.kernels()[0]);
}

#[test]
fn a_replacement_is_faster_when_alternating() {
    for arguments in [REPLACED, DIVIDED] {
        let arguments = format!("{arguments} times=3 watch=1");
        let alone = alone(&arguments);
        let replaced = right(tuned(&arguments, &[FIRST]), &alone, &arguments);
        assert_ne!(decisions(&replaced), ["kept"], "{}", replaced.errors);
        let kernel = &replaced.kernels()[0];
        let [own, ours] = ["framework", "ours"].map(|whose| kernel[whose]["time_us"].as_f64().unwrap());
        assert!(ours * 1.03 < own, "{kernel:#}");
    }
}

#[test]
fn later_processes_begin_with_the_decision() {
    for arguments in [REPLACED, DIVIDED] {
        let arguments = format!("{arguments} {WATCHED}");
        let alone = alone(&arguments);
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache.db");
        let in_cache = ("CACHE", cache.to_str().unwrap());
        let first = right(tuned(&arguments, &[in_cache, FIRST]), &alone, &arguments);
        assert_ne!(decisions(&first), ["kept"], "{}", first.errors);
        assert!(total(&first, "tuning_measurements") > 0);
        for tune in ["first", "measure", "cached"] {
            let again = right(tuned(&arguments, &[in_cache, ("TUNE", tune)]), &alone, tune);
            assert_eq!(total(&again, "tuning_measurements"), 0, "{tune}: {}", again.errors);
            assert_eq!(again.kernels()[0]["ours"], first.kernels()[0]["ours"], "{tune}");
            assert_eq!(again.kernels()[0]["framework"], first.kernels()[0]["framework"], "{tune}");
        }
    }
}

#[test]
fn decisions_between_calls_do_not_count_as_complete() {
    let arguments = format!("{DIVIDED} {WATCHED}");
    let alone = alone(&arguments);
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache.db");
    let in_cache = ("CACHE", cache.to_str().unwrap());
    let between = right(tuned(&arguments, &[in_cache, ("TUNE_BUDGET", "10s")]), &alone, "between calls");
    let all = right(tuned(&arguments, &[in_cache, FIRST]), &alone, "first");
    assert!(total(&all, "tuning_measurements") > 0, "{}{}", between.errors, all.errors);
}
