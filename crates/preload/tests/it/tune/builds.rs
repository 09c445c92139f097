//! Engines that compile hold up no call: their plans are built beside the program, for all its handles.

use std::path::Path;

use rusqlite::Connection;

use super::*;

/// Milliseconds that it takes to compile an engine.
const COMPILE: &str = "TIGHTFIT_MOCK_CUDNN_COMPILE";

/// A cache's times of the engine that compiles.
fn times_of_compiled(cache: &Path) -> u64 {
    let count = "SELECT count(*) FROM measurement WHERE algorithm LIKE 'engine9%'";
    let count: u32 = Connection::open(cache).unwrap().query_row(count, [], |row| row.get(0)).unwrap();
    u64::from(count)
}

#[test]
fn an_engine_that_compiles_for_long_is_timed_and_holds_up_no_call() {
    // The program's own choice needs more workspace than the engine that compiles.
    let arguments = "engine=4 size=40 c=2 k=2 n=8 filter=5 times=60 watch=1";
    let alone = alone(arguments);
    let under = |milliseconds: &str| {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache.db");
        let in_cache = [("CACHE", cache.to_str().unwrap())];
        let run = right(tuned(arguments, &in_cache).with(COMPILE, milliseconds), &alone, milliseconds);
        (
            run.report.as_ref().unwrap()["totals"]["tuning_us"].as_f64().unwrap(),
            times_of_compiled(&cache),
            algorithms(&run).join(" + "),
        )
    };
    let (without, times, found) = under("0");
    assert!(times > 0, "nothing compiles");
    let (held_up, slow_times, slow_found) = under("250");
    assert_eq!((slow_times, slow_found), (times, found));
    assert!(held_up < without + 200e3, "{held_up} us instead of {without} us");
}

#[test]
fn plans_are_built_for_all_handles_and_devices_that_refuse_another_build_them_in_place() {
    let arguments = "net=6 steps=60 handles=3 sync=1 engine=1 size=5 c=4 k=4";
    let (_, expected) = all_alone(arguments);
    all_right(tuned(arguments, &[]).with(COMPILE, "20"), &expected, "beside");
    // The second handle is the first of ours.
    let refused = tuned(arguments, &[]).with(COMPILE, "20").with("TIGHTFIT_MOCK_CUDNN_FAIL", "cudnnCreate:4:4000");
    let run = all_right(refused, &expected, "in place");
    assert!(run.errors.contains("plans are not built beside the program"), "{}", run.errors);
}
