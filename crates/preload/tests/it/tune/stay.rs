//! Choices that stay the program's own: for their accuracy, for determinism, and while the framework tries several.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;

#[test]
fn a_less_accurate_configuration_is_not_used_and_is_counted() {
    for arguments in ["engine=1 size=5 c=4 k=4", "engine=2 size=5 c=4 k=4", "legacy=size algorithm=2 size=5 c=4 k=4"] {
        let arguments = format!("{arguments} {WATCHED}");
        let run = right(tuned(&arguments, &[]), &alone(&arguments), &arguments);
        assert_eq!(total(&run, "less_accurate"), 1, "{}", run.errors);
        let is_transform = |name: &&str| {
            ["fft", "winograd", "engine4", "engine5", "engine9", "engine10"].iter().any(|one| name.contains(one))
        };
        assert!(!algorithms(&run).iter().any(is_transform), "{:#}", run.kernels()[0]);
        // A message about one algorithm holds for all with its transform: Fourier's, and Winograd's.
        let said: Vec<&str> = run
            .errors
            .lines()
            .filter_map(|line| line.split_once(" is less accurate than"))
            .map(|(what, _)| what)
            .collect();
        assert!((1..=2).contains(&said.len()) && said.iter().all(is_transform), "{}", run.errors);
    }
    // A transform is as accurate as another, and for half types the error drowns in rounding.
    let arguments = format!("engine=5 size=5 c=4 k=4 {WATCHED}");
    assert_eq!(total(&tuned(&arguments, &[]).run(), "less_accurate"), 0);
    let halves = tuned(&format!("engine=2 op=filter types=f16-f32 size=5 c=4 k=4 {WATCHED}"), &[]).run();
    assert_eq!((halves.code, halves.status(), total(&halves, "less_accurate")), (Some(0), "0", 0));
    assert_ne!(decisions(&halves), ["kept"], "{}", halves.errors);
}

#[test]
fn deterministic_programs_run_what_the_cache_held_at_their_start() {
    for tune in ["measure", "first"] {
        for arguments in [REPLACED, DIVIDED] {
            let arguments = format!("{arguments} {WATCHED}");
            let alone = alone(&arguments);
            let folder = tempfile::tempdir().unwrap();
            let cache = folder.path().join("cache.db");
            let in_cache = [("CACHE", cache.to_str().unwrap()), ("TUNE", tune)];
            let deterministic = || {
                let client = tuned(&arguments, &in_cache).preloaded(&[("DETERMINISTIC", "1")]);
                right(client, &alone, &arguments)
            };
            let run = deterministic();
            assert_eq!((decisions(&run), total(&run, "tuning_measurements")), (vec!["kept"], 0), "{}", run.errors);
            let found = right(tuned(&arguments, &in_cache), &alone, "fills the cache");
            assert_ne!(decisions(&found), ["kept"]);
            let run = deterministic();
            assert_eq!((decisions(&run), total(&run, "tuning_measurements")), (decisions(&found), 0), "{}", run.errors);
        }
    }
}

#[test]
fn nothing_is_measured_for_a_total_of_deterministic_programs() {
    let arguments = format!("{DIVIDED} times=20 watch=1");
    let variables = [("WORKSPACE", ""), ("TOTAL_WORKSPACE", "64KiB"), ("DETERMINISTIC", "1")];
    let run = tuned(&arguments, &variables).run();
    run.assert_gives(&alone(&arguments).output, &arguments);
    assert_eq!(total(&run, "tuning_measurements"), 0, "{}", run.errors);
}

/// A library under the name and with the functions of PyTorch's, which answers as the variable `TEST_TORCH` says.
fn torch(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("torch.c"), folder.join("libtorch_cpu.so"));
    let code = "#include <stdbool.h>\n#include <stdlib.h>\n#include <string.h>\n\
        static int context;\n\
        void *_ZN2at13globalContextEv(void) { return &context; }\n\
        static bool is(const void *self, const char *name) {\n\
            const char *on = getenv(\"TEST_TORCH\");\n\
            return self == &context && on && !strcmp(on, name);\n}\n\
        bool _ZNK2at7Context18deterministicCuDNNEv(const void *self) { return is(self, \"cudnn\"); }\n\
        bool _ZNK2at7Context23deterministicAlgorithmsEv(const void *self) { return is(self, \"all\"); }\n";
    std::fs::write(&source, code).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-Wall", "-Werror", "-Wl,-soname,libtorch_cpu.so", "-o"]);
    assert!(compiler.args([&library, &source]).status().unwrap().success());
    library
}

#[test]
fn the_switches_of_pytorch_are_obeyed() {
    let folder = tempfile::tempdir().unwrap();
    let library = torch(folder.path());
    for arguments in [REPLACED, DIVIDED] {
        let arguments = format!("{arguments} {WATCHED} torch={}", library.display());
        let alone = alone(&arguments);
        for (switch, is_on) in [("none", false), ("cudnn", true), ("all", true)] {
            let run = right(tuned(&arguments, &[]).with("TEST_TORCH", switch), &alone, switch);
            assert_eq!(
                (decisions(&run) == ["kept"], total(&run, "tuning_measurements") == 0),
                (is_on, is_on),
                "{switch}"
            );
        }
        // The decision of an earlier process runs from the first execution on.
        let cache = folder.path().join("cache.db");
        let in_cache = [("CACHE", cache.to_str().unwrap())];
        let found = right(tuned(&arguments, &in_cache), &alone, "fills the cache");
        let run = right(tuned(&arguments, &in_cache).with("TEST_TORCH", "cudnn"), &alone, "cached");
        let measured = total(&run, "tuning_measurements");
        assert_eq!((decisions(&run), measured), (decisions(&found), 0), "{}", run.errors);
    }
}

/// As `torch.backends.cudnn.benchmark` does: several plans of one convolution, each executed and timed, of which the fastest
/// goes on.
const PLANS: &str = "size=5 c=4 k=4 script=engine:0;plan:2;engine:1;plan:2;engine:2;plan:2;engine:1;plan:5;";

#[test]
fn plans_that_are_tried_run_as_themselves() {
    let arguments = format!("{PLANS}time:0;time:0;time:0;time:1;time:1;time:1;time:2;time:2;time:2;run:3");
    let (expected, outputs) = all_alone(&arguments);
    assert_eq!(expected.lines("time").len(), 9);
    let run = all_right(tuned(&arguments, &[]), &outputs, "tried");
    assert_eq!(run.lines("time"), expected.lines("time"));
    assert_eq!(run.lines("workspace"), expected.lines("workspace"));
    // Also in a process that begins with decisions about each.
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("cache.db");
    let in_cache = [("CACHE", cache.to_str().unwrap())];
    for engine in [0, 1, 2] {
        let one = format!("engine={engine} size=5 c=4 k=4 script=plan:2;run:0x200");
        tuned(&one, &in_cache).run();
    }
    let run = all_right(tuned(&arguments, &in_cache), &outputs, "tried, decided before");
    assert!(total(&run, "cache_hits") >= 3, "{}", run.errors);
    assert_eq!(run.lines("time"), expected.lines("time"), "a plan was timed that ran as another");
    assert_eq!(run.lines("workspace"), expected.lines("workspace"));
}

#[test]
fn the_plan_that_goes_on_is_replaced() {
    // Each is tried at length, so that nothing new is met for long while nothing may be measured; then steps begin.
    let step = "run:1;run:3;".repeat(120);
    let arguments = format!("{PLANS}run:0x20;run:1x20;run:2x20;{step}time:1;run:3;time:1");
    let (expected, outputs) = all_alone(&arguments);
    let run = all_right(tuned(&arguments, &[]), &outputs, "goes on");
    let of = |engine: &str| {
        let found =
            run.kernels().iter().find(|one| one["framework"]["algorithm"].as_str().unwrap().starts_with(engine));
        found.unwrap()["decision"].as_str().unwrap()
    };
    assert_eq!([of("engine0"), of("engine2")], ["kept"; 2], "not executed any more: {}", run.errors);
    assert_eq!(of("engine1"), "divided", "{}", run.errors);
    assert_eq!(total(&run, "undecided"), 0, "{}", run.errors);
    let last = |run: &Run| run.lines("time")[1].parse::<f64>().unwrap();
    assert!(last(&run) < last(&expected), "{} {}", run.words, expected.words);
}
