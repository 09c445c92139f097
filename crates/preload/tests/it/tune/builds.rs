//! Engines that compile hold up no call: their plans are built while the program runs.

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
    // The program's own choice needs more workspace than the engine that compiles. Gradients of filters are timed as they add up.
    for operation in ["forward", "data", "filter"] {
        let arguments = format!("op={operation} engine=4 size=40 c=2 k=2 n=8 filter=5 times=60 watch=1");
        let alone = alone(&arguments);
        let under = |milliseconds: &str| {
            let folder = tempfile::tempdir().unwrap();
            let cache = folder.path().join("cache.db");
            let in_cache = [("CACHE", cache.to_str().unwrap())];
            let run = right(tuned(&arguments, &in_cache).with(COMPILE, milliseconds), &alone, milliseconds);
            assert!(!run.errors.contains(": setting up "), "{}", run.errors);
            (times_of_compiled(&cache), algorithms(&run).join(" + "))
        };
        let quick = under("0");
        assert!(quick.0 > 0, "{operation}: nothing compiles");
        assert_eq!(under("250"), quick, "{operation}");
    }
}

#[test]
fn slow_builds_are_not_made_up_for_in_the_calls_of_the_program() {
    let arguments = "op=forward engine=4 size=40 c=2 k=2 n=8 filter=5 times=1200 watch=1";
    let in_a_second = tuned(arguments, &[("TUNE_BUDGET", "1s")]).with(COMPILE, "1500");
    let run = right(in_a_second, &alone(arguments), "1500 ms");
    assert!(run.errors.contains("no time to build it"), "{}", run.errors);
    assert!(!run.errors.contains(": setting up "), "{}", run.errors);
}

#[test]
fn an_engine_that_refuses_only_once_it_has_compiled_does_so_for_nobody_else() {
    // Sums of halves are f32 where an engine can write these.
    let arguments = "op=filter types=f16-f32 engine=4 size=40 c=2 k=2 n=8 filter=5 times=60 watch=1";
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache.db");
    let run = tuned(arguments, &[("CACHE", cache.to_str().unwrap())]).with(COMPILE, "250").run();
    assert_eq!((run.code, run.status()), (Some(0), "0"), "{}{}", run.words, run.errors);
    assert!(!run.errors.contains(": setting up "), "{}", run.errors);
    assert!(times_of_compiled(&cache) > 0, "{}", run.errors);
}

#[test]
fn sums_of_halves_are_compiled_once_and_hold_up_no_call() {
    // Forward and backward convolutions have separate handles, as in frameworks that go back on another thread.
    let arguments = "net=3 steps=90 handles=3 sync=1 types=f16-f32 nhwc=1 engine=0 size=5 c=8 k=8";
    let (_, expected) = all_alone(arguments);
    let run = all_right(tuned(arguments, &[]).with(COMPILE, "120"), &expected, "120 ms");
    assert!(!run.errors.contains(": setting up "), "{}", run.errors);
    assert_eq!(decisions(&run), ["replaced"; 3], "{}", run.errors);
}

#[test]
fn plans_run_on_the_programs_handles_and_where_there_is_no_handle_of_ours_are_built_in_place() {
    let arguments = "net=6 steps=60 handles=3 sync=1 engine=1 size=5 c=4 k=4";
    let (_, expected) = all_alone(arguments);
    all_right(tuned(arguments, &[]).with(COMPILE, "20"), &expected, "beside");
    // The program makes three.
    let refused = tuned(arguments, &[]).with(COMPILE, "20").with("TIGHTFIT_MOCK_CUDNN_FAIL", "cudnnCreate:4:4000");
    let run = all_right(refused, &expected, "in place");
    assert!(run.errors.contains("plans cannot be built while the program runs"), "{}", run.errors);
}
