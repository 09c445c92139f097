//! Calls that only measuring makes may fail: the program gets its own results and statuses.

use std::collections::BTreeMap;

use super::*;
use crate::faults::{Calls, calls, counted_by};

/// Functions of which the client calls some after its executions; which of their calls fails is then either's.
const ENDING: [&str; 6] = [
    "cudnnBackendDestroyDescriptor",
    "cudnnDestroy",
    "cuMemcpyDtoH_v2",
    "cuStreamSynchronize",
    "cuMemcpyHtoD_v2",
    "cuCtxSynchronize",
];

fn counted(client: Client) -> Run {
    let run = counted_by(client).run();
    assert_eq!((run.code, run.status()), (Some(0), "0"), "{}{}", run.words, run.errors);
    run
}

#[test]
fn every_function_that_measuring_calls_may_fail() {
    for arguments in [REPLACED, DIVIDED] {
        let [once, often] = ["times=1 watch=1", "times=60 watch=1"].map(|times| format!("{arguments} {times}"));
        let alone = [&once, &often].map(|arguments| calls(&counted(slow(Client::new(Form::Linked, arguments)))));
        let [before, in_all] = [&once, &often].map(|arguments| calls(&counted(tuned(arguments, &[]))));
        let expected = super::alone(&often);
        let of = |calls: &Calls, name: &str| calls.get(name).copied().unwrap_or(0);
        // The client makes the same number of these calls in both runs, so all calls beyond one execution's are for
        // measuring.
        let is_for_measuring = |name: &&String| {
            of(&alone[0], name) == of(&alone[1], name)
                && of(&in_all, name) > of(&before, name)
                && !ENDING.contains(&name.as_str())
        };
        let functions: Vec<&String> = in_all.keys().filter(is_for_measuring).collect();
        for needed in [
            "cuMemAllocFromPoolAsync",
            "cuMemFreeAsync",
            "cuMemcpyDtoHAsync_v2",
            "cuEventRecord",
            "cuEventQuery",
            "cudnnBackendFinalize",
        ] {
            assert!(functions.iter().any(|name| *name == needed), "{needed}: {functions:?}");
        }
        for name in functions {
            let (first, last) = (of(&before, name) + 1, of(&in_all, name));
            let (variable, status) = if name.starts_with("cudnn") {
                ("TIGHTFIT_MOCK_CUDNN_FAIL", 4000)
            } else {
                ("TIGHTFIT_MOCK_CUDA_FAIL", 2)
            };
            let mut places = vec![first, last - (last - first) / 3];
            places.dedup();
            for nth in places {
                let after = format!("{often}: {name} {nth} of {last}");
                let client = tuned(&often, &[]).with(variable, &format!("{name}:{nth}:{status}"));
                right(client, &expected, &after);
            }
        }
    }
}

#[test]
fn an_unknown_status_of_the_driver_ends_measuring_alone() {
    let arguments = format!("{DIVIDED} {WATCHED}");
    let expected = alone(&arguments);
    for (name, nth) in [
        ("cuMemAllocFromPoolAsync", 1),
        ("cuMemAllocFromPoolAsync", 3),
        ("cuEventRecord", 7),
        ("cuMemcpyHtoDAsync_v2", 2),
    ] {
        let client = tuned(&arguments, &[]).with("TIGHTFIT_MOCK_CUDA_FAIL", &format!("{name}:{nth}:801"));
        let run = right(client, &expected, name);
        assert_eq!(decisions(&run), ["kept"], "{name}: {}", run.errors);
    }
}

#[test]
fn a_configuration_that_fails_gives_way_to_the_programs_own_choice() {
    let legacy = DIVIDED.replace("engine=1", "legacy=size algorithm=1");
    for arguments in [REPLACED, DIVIDED, &legacy] {
        let arguments = format!("{arguments} {WATCHED}");
        let expected = alone(&arguments);
        // By the 190th, our configuration runs; if it has several parts, the others may be on their way.
        for nth in if arguments.starts_with(REPLACED) { vec![1] } else { vec![1, 4, 7] } {
            let failing = format!("{arguments} failing=190 nth={nth}");
            let run = right(tuned(&failing, &[]), &expected, &failing);
            assert_eq!(decisions(&run), ["failed"], "{failing}: {}", run.errors);
            let failed: BTreeMap<String, u64> = run.reasons().into_iter().collect();
            assert!(failed.get("failed").is_some_and(|calls| *calls >= 1), "{failed:?}");
        }
    }
}

#[test]
fn a_configuration_of_an_earlier_process_that_fails_gives_way_too() {
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache.db");
    let in_cache = [("CACHE", cache.to_str().unwrap())];
    let arguments = format!("{DIVIDED} {WATCHED}");
    let expected = alone(&arguments);
    assert_eq!(decisions(&right(tuned(&arguments, &in_cache), &expected, "fills the cache")), ["divided"]);
    for nth in [1, 5, 70] {
        let failure = format!("cudnnBackendExecute:{nth}:4000");
        let run = right(tuned(&arguments, &in_cache).with("TIGHTFIT_MOCK_CUDNN_FAIL", &failure), &expected, &failure);
        assert_eq!(decisions(&run), ["failed"], "{failure}: {}", run.errors);
    }
}

#[test]
fn without_memory_to_measure_in_the_program_goes_on() {
    for arguments in [REPLACED, DIVIDED] {
        let arguments = format!("{arguments} {WATCHED}");
        let expected = alone(&arguments);
        // The program has 512 MiB left, so that all of it, some of it, and hardly any is refused.
        for memory in [64 << 10, 512 << 20, (512 << 20) + (24 << 10), (512 << 20) + (64 << 10)] {
            let client = tuned(&arguments, &[]).with("TIGHTFIT_MOCK_CUDA_MEMORY", &memory.to_string());
            let run = right(client, &expected, &format!("{memory} bytes"));
            let is_measured = total(&run, "tuning_measurements") > 0;
            assert!(is_measured || memory < (512 << 20) + (64 << 10), "{memory}: {}", run.errors);
            assert!(!is_measured || memory > 512 << 20, "{memory}: the reserve was used: {}", run.errors);
        }
    }
}
