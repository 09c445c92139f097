//! A call that fails, of every function and at every place, ends in an error or in the right result.
//!
//! ```text
//! by default     the first call of every function that is called, and its last
//! --ignored      every call
//! ```
//!
//! Either first counts the calls, fails exactly those, and asserts that each failure was met.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;
use tightfit_test_support::client::{Client, Form, Run};
use tightfit_test_support::libraries::library;

const HEURISTIC: &[(&str, &str)] = &[("WORKSPACE", "64KiB"), ("TUNE", "heuristic")];
const TOTAL: &[(&str, &str)] = &[("TOTAL_WORKSPACE", "64KiB"), ("TUNE", "heuristic")];
const FUSED: &str = "legacy=size algorithm=2 activation=1 z=1";
const PLAN: &str = "engine=2 op=filter types=f16-f32";

/// How the client knows cuDNN, its arguments, and the library's variables.
type Scenario = (Form, &'static str, &'static [(&'static str, &'static str)]);

/// The scenarios: the backend interface once, the legacy one in every way to find cuDNN and to own the workspace.
const SCENARIOS: [Scenario; 4] = [
    (Form::Linked, PLAN, HEURISTIC),
    (Form::Linked, FUSED, HEURISTIC),
    (Form::Loaded, FUSED, HEURISTIC),
    (Form::Linked, FUSED, TOTAL),
];

/// How often each function was called.
pub type Calls = BTreeMap<String, u64>;

#[test]
fn the_first_and_the_last_call_of_every_function_may_fail() {
    for scenario in SCENARIOS {
        survive_faults(scenario, |count| if count == 1 { vec![1] } else { vec![1, count] });
    }
}

#[test]
#[ignore = "fails several hundred calls, one in each run"]
fn every_call_may_fail() {
    for scenario in SCENARIOS {
        survive_faults(scenario, |count| (1..=count).collect());
    }
}

/// Runs the client once for each of these calls of each function that it and the library call, with that call failing:
/// each run ends in an error or in the right result, never by a signal, and some in the right result.
fn survive_faults((form, arguments, variables): Scenario, which: impl Fn(u64) -> Vec<u64>) {
    let expected = Client::new(form, arguments).run();
    assert_eq!((expected.code, expected.status()), (Some(0), "0"), "{arguments}: {}", expected.words);
    let whole = counted(form, arguments, variables).run();
    whole.assert_gives(&expected.output, arguments);
    let (of_cudnn, of_driver): (Calls, Calls) =
        calls(&whole).into_iter().partition(|(name, _)| name.starts_with("cudnn"));
    for (variable, status, functions) in
        [("TIGHTFIT_MOCK_CUDNN_FAIL", 4000, of_cudnn), ("TIGHTFIT_MOCK_CUDA_FAIL", 2, of_driver)]
    {
        assert!(functions.len() > 10, "{arguments}: {functions:?}");
        let mut right = 0;
        for (name, count) in functions {
            for nth in which(count) {
                let run = counted(form, arguments, variables).with(variable, &format!("{name}:{nth}:{status}")).run();
                let after = format!("{arguments} {variables:?}: {name} {nth} of {count}");
                assert!(run.code.is_some(), "{after} ended by a signal: {}{}", run.words, run.errors);
                assert!(calls(&run).get(&name) >= Some(&nth), "{after}: the fault was not met: {}", run.words);
                if run.code == Some(0) && run.status() == "0" && run.lines("stream").is_empty() {
                    run.assert_gives(&expected.output, &after);
                    right += 1;
                }
            }
        }
        assert!(right > 0, "{arguments} {variable}: no fault was survived");
    }
}

/// The client under the library, with a count of all calls at its end.
fn counted(form: Form, arguments: &str, variables: &[(&str, &str)]) -> Client {
    counted_by(Client::new(form, arguments).preloaded(variables))
}

/// A client with a count of all calls at its end.
pub fn counted_by(client: Client) -> Client {
    let preload = client.is_preloaded().then(|| library("preload").display().to_string());
    let libraries: Vec<String> = preload.into_iter().chain([counter().display().to_string()]).collect();
    client
        .with("LD_PRELOAD", &libraries.join(":"))
        .with("TIGHTFIT_CUDNN", &library("mock_cudnn").display().to_string())
        .with("TIGHTFIT_TEST_NAMES", names())
}

/// How often each function was called in a run.
pub fn calls(run: &Run) -> Calls {
    let count = |line: &str| -> Option<(String, u64)> {
        let (name, count) = line.split_once(' ')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    run.lines("called").into_iter().filter_map(count).collect()
}

/// The functions of both stand-ins.
fn names() -> &'static str {
    static NAMES: OnceLock<String> = OnceLock::new();
    NAMES.get_or_init(|| {
        let symbols_of = |name: &str| {
            let symbols = Command::new("nm").args(["-D", "--defined-only"]).arg(library(name)).output().unwrap();
            assert!(symbols.status.success(), "{}", String::from_utf8_lossy(&symbols.stderr));
            String::from_utf8(symbols.stdout).unwrap()
        };
        let symbols = symbols_of("mock_cudnn") + &symbols_of("mock_cuda");
        let names = symbols.lines().filter_map(|line| line.split(' ').next_back()?.split('@').next());
        names.filter(|name| name.starts_with("cu")).collect::<Vec<_>>().join(" ")
    })
}

/// `calls.c`, compiled.
fn counter() -> &'static Path {
    static COUNTER: OnceLock<(TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = COUNTER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("calls.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/calls.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"]).args([&path, &source]).arg("-ldl");
        assert!(compiler.status().unwrap().success());
        (folder, path)
    });
    path
}
