//! The legacy interface under the library. Algorithm 2 (forward: gemm) grows with the batch and is exact; the backward
//! operations have algorithm 1, whose workspace is constant, so that limits below it leave nothing to divide.

use tightfit_test_support::client::{Client, Form, Run};

const WAYS: [&str; 4] = ["size", "get", "find", "ex"];

fn alone(arguments: &str) -> Run {
    let run = Client::new(Form::Linked, arguments).run();
    assert_eq!((run.code, run.status()), (Some(0), "0"), "{}{}", run.words, run.errors);
    run
}

fn preloaded(arguments: &str, variables: &[(&str, &str)]) -> Run {
    Client::new(Form::Linked, arguments).preloaded(variables).run()
}

const HEURISTIC: &[(&str, &str)] = &[("WORKSPACE", "64KiB"), ("TUNE", "heuristic")];

#[test]
fn whichever_way_the_algorithm_is_chosen_it_is_divided() {
    for way in WAYS {
        for shape in ["", "beta=1 alpha=2", "n=13", "offset=4"] {
            let arguments = format!("legacy={way} algorithm=2 {shape}");
            let (alone, run) = (alone(&arguments), preloaded(&arguments, HEURISTIC));
            run.assert_gives(&alone.output, &arguments);
            assert!(alone.workspace() > 64 << 10 && run.workspace() <= 64 << 10, "{arguments}");
            assert_eq!(run.kernels()[0]["decision"], "divided", "{arguments}");
        }
    }
}

#[test]
fn the_backward_operations_are_measured_and_replaced_or_kept() {
    for operation in ["data", "filter"] {
        for types in ["f32", "f16-f32"] {
            // Measurements of one run serve the others.
            let folder = tempfile::tempdir().unwrap();
            let cache = folder.path().join("cache.db");
            let cache = cache.to_str().unwrap();
            for way in WAYS {
                let arguments = format!("legacy={way} op={operation} algorithm=1 types={types} n=5 size=5 c=4 k=4");
                let alone = alone(&arguments);
                for limit in ["64KiB", "2KiB"] {
                    let run = preloaded(
                        &arguments,
                        &[("WORKSPACE", limit), ("TUNE", "first"), ("EXACT_CLASS", "1"), ("CACHE", cache)],
                    );
                    run.assert_gives(&alone.output, &format!("{arguments} {limit}"));
                }
            }
        }
    }
}

#[test]
fn lists_stay_sorted_and_describe_what_will_run() {
    let alone = alone("legacy=find c=4 k=4");
    let run = preloaded("legacy=find c=4 k=4", &[("WORKSPACE", "64KiB"), ("TUNE", "first"), ("EXACT_CLASS", "1")]);
    let read = |run: &Run| -> Vec<(i32, i32, u64, f64)> {
        let one = |line: &&str| {
            let words: Vec<&str> = line.split(' ').collect();
            (words[0].parse().unwrap(), words[1].parse().unwrap(), words[2].parse().unwrap(), words[3].parse().unwrap())
        };
        run.lines("listed").iter().map(one).collect()
    };
    // The client stops at the first, which it runs.
    let (theirs, ours) = (read(&alone), read(&run));
    // The algorithm that runs is within the limit, and no worse than the list's best within it.
    assert!(theirs[0].2 > 64 << 10 || ours[0].3 <= theirs[0].3, "{ours:?} {theirs:?}");
    assert!(ours[0].2 <= 64 << 10, "{ours:?} {theirs:?}");
    assert_eq!(run.status(), "0");
    // The whole list was decided about; the first that was called is the first by name.
    assert_eq!(run.kernels()[0]["name"], "conv1");
    // With an unknown algorithm, the client reads the whole list.
    let all = read(&preloaded("legacy=find algorithm=99", &[("WORKSPACE", "64KiB"), ("TUNE", "heuristic")]));
    let serving: Vec<_> = all.iter().take_while(|one| one.1 == 0).collect();
    assert!(serving.len() >= 3 && all[serving.len()..].iter().all(|one| one.1 != 0), "{all:?}");
    assert!(serving.is_sorted_by(|a, b| a.3 <= b.3), "{all:?}");
    assert!(serving.iter().all(|one| one.2 <= 64 << 10), "{all:?}");
}

#[test]
fn unrecognized_calls_pass_through_with_a_reason() {
    for (shape, reason) in [("mode=0", "true convolution"), ("gap=1", "layout with gaps")] {
        for operation in ["forward", "data", "filter"] {
            for way in WAYS {
                let arguments = format!("legacy={way} algorithm=0 {shape} op={operation}");
                let (alone, run) = (alone(&arguments), preloaded(&arguments, HEURISTIC));
                assert_eq!(run.words, alone.words, "{arguments}");
                assert_eq!(run.reasons(), [(reason.to_owned(), 1)], "{arguments}");
            }
        }
    }
}

#[test]
fn too_little_workspace_is_refused_by_the_real_library() {
    let run = preloaded("legacy=size algorithm=2 less=256", HEURISTIC);
    assert_eq!(run.status(), "2000");
    assert_eq!(run.reasons(), [("less workspace than said".to_owned(), 1)]);
}
