//! Tuning between the program's calls: what runs is replaced while the program runs, and nothing else changes for it.
//!
//! ```text
//! swap       slow choices are replaced, and later processes begin with what was found
//! builds     engines that compile hold nothing up
//! stay       choices stay: for accuracy, for determinism, while the framework tries several
//! compared   with 64-bit arithmetic, and each configuration once
//! around     delays, threads, captures, many convolutions, two processes on one cache
//! shipped    decisions of a read-only store behind the cache
//! failures   whatever only measuring calls may fail
//! ranks      processes that meet in each step, and one that is killed
//! first      everything is measured before the first execution
//! ```
//!
//! Steps of the mocks take hardly any time, so nothing could be gained in one. A budget without limit makes tuning search
//! anyway.

mod around;
mod builds;
mod compared;
mod failures;
mod first;
mod ranks;
mod shipped;
mod slices;
mod stay;
mod swap;

use tempfile::TempDir;
use tightfit_test_support::client::{Client, Form, Run};

const ANYTIME: &[(&str, &str)] = &[("WORKSPACE", "auto"), ("TUNE_BUDGET", "unlimited"), ("LOG", "1")];

/// The sums of half types are exact on the tensor cores of engine 3, which needs no workspace here either.
const REPLACED: &str = "engine=0 types=f16-f32 nhwc=1 size=5";
/// One sample after another, engine 2 needs no more than engine 1 and is faster.
const DIVIDED: &str = "engine=1 op=filter size=5 c=4 k=4";
/// Executions in which tuning of one convolution comes to its end, each of which is waited for and looked at.
const WATCHED: &str = "times=200 watch=1";

/// A device on which convolutions take long, so that what is launched around them matters little.
fn slow(client: Client) -> Client {
    client.with("TIGHTFIT_MOCK_CUDNN_SLOWDOWN", "1000")
}

fn alone(arguments: &str) -> Run {
    let run = slow(Client::new(Form::Linked, arguments)).run();
    assert_eq!((run.code, run.status()), (Some(0), "0"), "{arguments}: {}{}", run.words, run.errors);
    run
}

/// The client under the library, tuning without a limit of time unless a variable says otherwise.
fn tuned(arguments: &str, variables: &[(&str, &str)]) -> Client {
    slow(Client::new(Form::Linked, arguments)).preloaded(ANYTIME).preloaded(variables)
}

/// Runs the client; the result is right.
fn right(client: Client, expected: &Run, after: &str) -> Run {
    let run = client.run();
    run.assert_gives(&expected.output, after);
    assert!(run.lines("stream").is_empty(), "{after}: {}{}", run.words, run.errors);
    assert_eq!(run.lines("workspace"), expected.lines("workspace"), "{after}: told otherwise");
    assert_eq!(run.lines("differing"), expected.lines("differing"), "{after}: an execution gave other bits");
    run
}

fn total(run: &Run, name: &str) -> u64 {
    run.report.as_ref().unwrap()["totals"][name].as_u64().unwrap()
}

/// The decisions about the kernels, by the order of their first call.
fn decisions(run: &Run) -> Vec<&str> {
    run.kernels().iter().map(|kernel| kernel["decision"].as_str().unwrap()).collect()
}

/// The algorithms that run for the first kernel.
fn algorithms(run: &Run) -> Vec<&str> {
    let parts = run.kernels()[0]["ours"]["configuration"].as_array().unwrap();
    parts.iter().map(|part| part["algorithm"].as_str().unwrap()).collect()
}

/// No kernel uses more than the program's own choice would.
fn assert_no_more_workspace(run: &Run) {
    for kernel in run.kernels() {
        let [own, ours] = ["framework", "ours"].map(|whose| kernel[whose]["workspace_bytes"].as_u64().unwrap());
        assert!(ours <= own, "{kernel:#}");
    }
}

/// A count that the client printed.
fn count(run: &Run, name: &str) -> u64 {
    let found = run.lines("count").into_iter().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no count {name}: {}", run.words)).parse().unwrap()
}

/// The outputs of several convolutions, by their place.
fn outputs(folder: &TempDir) -> Vec<Vec<u8>> {
    (0..).map_while(|place| std::fs::read(folder.path().join(format!("output.{place}"))).ok()).collect()
}

/// Runs a client of several convolutions; their outputs are right.
fn all_right(client: Client, expected: &[Vec<u8>], after: &str) -> Run {
    let (run, folder) = client.run_keeping();
    assert_eq!((run.code, run.status()), (Some(0), "0"), "{after}: {}{}", run.words, run.errors);
    assert!(run.lines("stream").is_empty(), "{after}: {}{}", run.words, run.errors);
    assert!(outputs(&folder) == expected && !expected.is_empty(), "{after}: other results\n{}", run.errors);
    run
}

/// The outputs of several convolutions without the library.
fn all_alone(arguments: &str) -> (Run, Vec<Vec<u8>>) {
    let (run, folder) = slow(Client::new(Form::Linked, arguments)).run_keeping();
    assert_eq!((run.code, run.status()), (Some(0), "0"), "{arguments}: {}{}", run.words, run.errors);
    let outputs = outputs(&folder);
    assert!(!outputs.is_empty(), "{arguments}: {}", run.words);
    (run, outputs)
}
