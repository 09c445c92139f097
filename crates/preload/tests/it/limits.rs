//! Limits that the program sets itself, by `tightfitSetLimits`. Plans of equal places have equal problems.

use serde_json::Value;
use tightfit_test_support::client::{Client, Form, Run};

/// With plenty for every convolution of the script, which needs some KiB on engine 2.
const PLENTY: &[(&str, &str)] = &[("WORKSPACE", "1MiB"), ("TUNE", "heuristic")];
const SMALL: &str = "engine=2 n=3 size=6 c=4 k=4";

/// Runs the client's script. Returns the outputs of its plans.
fn script_with(steps: &str, variables: Option<&[(&str, &str)]>) -> (Run, Vec<Vec<u8>>) {
    let client = Client::new(Form::Linked, &format!("{SMALL} script={steps}"));
    let client = match variables {
        Some(variables) => client.preloaded(variables),
        None => client,
    };
    let (run, folder) = client.run_keeping();
    assert_eq!((run.code, run.status()), (Some(0), "0"), "{steps}: {}{}", run.words, run.errors);
    let outputs = (0..).map_while(|plan| std::fs::read(folder.path().join(format!("output.{plan}"))).ok()).collect();
    (run, outputs)
}

/// As above; the outputs are those without the library.
fn script(steps: &str, variables: &[(&str, &str)]) -> Run {
    let (alone, expected) = script_with(steps, None);
    assert!(alone.lines("set").iter().all(|line| *line == "missing"), "{}", alone.words);
    let (run, outputs) = script_with(steps, Some(variables));
    assert!(outputs == expected && !outputs.is_empty(), "{steps}: other results\n{}", run.errors);
    run
}

/// The workspace that was reported to the program for its plans, in bytes.
fn told(run: &Run) -> Vec<u64> {
    run.lines("workspace").iter().map(|bytes| bytes.parse().unwrap()).collect()
}

fn kernel<'a>(run: &'a Run, name: &str) -> &'a Value {
    let found = run.kernels().iter().find(|kernel| kernel["name"] == name);
    found.unwrap_or_else(|| panic!("no kernel {name}: {:?}", run.kernels()))
}

fn runs(kernel: &Value) -> u64 {
    kernel["ours"]["workspace_bytes"].as_u64().unwrap()
}

#[test]
fn two_models_get_two_limits() {
    let plain = told(&script("plan:0;run:0", PLENTY))[0];
    let (low, high) = (plain / 2, plain);
    let steps = format!(
        "set:workspace={low}@a.conv;set:workspace={high}@b.conv;layer:a.conv;plan:0;plan:1;layer:b.conv;plan:3;plan:4;\
         layer:;run:0;run:1;run:2;run:3"
    );
    let run = script(&steps, PLENTY);
    assert_eq!(run.lines("set"), ["0", "0"]);
    let told = told(&run);
    assert!(told[..2].iter().all(|bytes| *bytes <= low) && told[0] > 0, "{told:?}");
    assert!(told[2..].iter().all(|bytes| *bytes <= high) && told[2] > low, "{told:?}");
    for (name, limit) in [("a.conv", low), ("b.conv", high)] {
        let kernel = kernel(&run, name);
        assert_eq!(kernel["workspace_limit_bytes"], limit, "{kernel}");
        assert!(runs(kernel) <= limit, "{kernel}");
    }
    assert_eq!(run.report.as_ref().unwrap()["workspace_limit_bytes"], 1 << 20);
}

#[test]
fn a_report_without_calls_has_no_limits_of_kernels() {
    let run = script("layer:a;plan:0;run:0", PLENTY);
    assert!(kernel(&run, "a").get("workspace_limit_bytes").is_none());
    assert!(kernel(&run, "a").get("told_workspace_bytes").is_none());
}

#[test]
fn plans_that_were_told_keep_their_bytes_and_run_in_less() {
    let plain = told(&script("plan:0;run:0", PLENTY))[0];
    let low = plain / 2;
    // The old plan cannot give its bytes back. The new plan of the same convolution reports less. After the limit is taken
    // back, the next plan reports the old size again.
    let steps = format!("plan:0;run:0;set:workspace={low};run:0;plan:0;run:1;set:workspace=default;run:0;plan:0;run:2");
    let run = script(&steps, PLENTY);
    let told = told(&run);
    assert_eq!((told[0], told[2]), (plain, plain));
    assert!(told[1] <= low, "{told:?}");
    // The second plan's reported workspace is less than the last setting allows.
    assert_eq!(run.lines("set"), ["1", "1"]);
    assert_eq!(run.kernels().len(), 2, "{:?}", run.kernels());

    let run = script(&format!("plan:0;run:0;set:workspace={low};run:0"), PLENTY);
    let [kernel] = run.kernels() else { panic!("{:?}", run.kernels()) };
    assert!(runs(kernel) <= low && runs(kernel) > 0, "{kernel}");
    assert_eq!(kernel["decision"], "divided");
    assert_eq!(kernel["told_workspace_bytes"], plain);

    // A plan never gets more than its reported workspace.
    let run = script(&format!("set:workspace={low};plan:0;run:0;set:workspace=unlimited;run:0"), PLENTY);
    assert_eq!(run.lines("set"), ["0", "1"]);
    assert!(runs(&run.kernels()[0]) <= low, "{:?}", run.kernels());

    // The plan's reported workspace is not over the new limit.
    let run = script(&format!("set:workspace={low};plan:0;run:0;set:workspace={};run:0", low - 1), PLENTY);
    let exact = self::told(&run)[0];
    let run = script(&format!("set:workspace={low};plan:0;run:0;set:workspace={exact};run:0"), PLENTY);
    assert_eq!(run.lines("set"), ["0", "0"]);
}

#[test]
fn sizes_change_what_runs_for_plans_that_were_told() {
    let low = told(&script("plan:0;run:0", PLENTY))[0] / 2;
    let steps = format!("set:workspace={low};plan:0;run:0;set:sizes=undivided;run:0");
    for variables in [PLENTY, &[("WORKSPACE", "1MiB"), ("TUNE", "first"), ("EXACT_CLASS", "1")]] {
        let run = script(&steps, variables);
        let kernel = &run.kernels()[0];
        assert_eq!(kernel["micro_batches"], 1, "{kernel}");
        assert!(runs(kernel) <= low, "{kernel}");
        assert_eq!(run.lines("set"), ["0", "0"]);
    }
    // Other modes would have to try again.
    let run = script("plan:0;run:0;set:tune=cached", PLENTY);
    assert_eq!(run.lines("set"), ["1"]);
}

#[test]
fn equal_convolutions_of_one_thread_share_the_least_limit() {
    let plain = told(&script("plan:0;run:0", PLENTY))[0];
    let low = plain / 2;
    // Each plans for itself: the second one has the first one's limit too, and on another thread its own.
    let set = format!("set:workspace={low}@a;set:workspace={plain}@b;");
    let run = script(&format!("{set}layer:a;plan:0;layer:b;plan:0;away:b:0;run:0;run:1;run:2"), PLENTY);
    let told = told(&run);
    assert!(told[0] <= low && told[1] == told[0] && told[2] == plain, "{told:?}");
    // The framework keeps one plan: made for the larger limit, it runs within the smaller one from when its layer comes.
    let run = script(&format!("{set}layer:b;plan:0;run:0;layer:a;run:0;layer:b;run:0"), PLENTY);
    let kernel = kernel(&run, "b");
    assert_eq!((&kernel["workspace_limit_bytes"], &kernel["told_workspace_bytes"]), (&low.into(), &plain.into()));
    assert!(runs(kernel) <= low, "{kernel}");
    // A call for the layer that came later finds the plan.
    let run = script(&format!("layer:b;plan:0;run:0;layer:a;run:0;set:workspace={low}@a;run:0"), PLENTY);
    assert_eq!(run.lines("set"), ["1"]);
    let run = script(&format!("layer:b;plan:0;run:0;set:workspace={low}@a;run:0"), PLENTY);
    assert_eq!(run.lines("set"), ["0"]);
}

#[test]
fn captured_graphs_keep_what_they_captured() {
    let low = told(&script("plan:0;run:0", PLENTY))[0] / 2;
    let less = format!("set:workspace={low};plan:0;run:0");
    let exact = told(&script(&less, PLENTY))[0];
    let follows = script(&format!("{less};set:workspace={exact}"), PLENTY);
    assert_eq!(follows.lines("set"), ["0", "0"]);
    let captured = script(&format!("{less};graph:0;set:workspace={exact}"), PLENTY);
    assert_eq!(captured.lines("set"), ["0", "1"]);
    // A call holds for the next capture.
    let run = script(&format!("plan:0;run:0;set:workspace={low};graph:0"), PLENTY);
    assert!(runs(&run.kernels()[0]) <= low, "{:?}", run.kernels());
}

#[test]
fn measured_choices_stay_within_the_latest_limit() {
    let measure: &[(&str, &str)] = &[("WORKSPACE", "1MiB"), ("TUNE", "first"), ("EXACT_CLASS", "1")];
    let run = script("plan:0;run:0;set:workspace=2KiB;run:0;plan:0;run:1;set:workspace=1MiB;run:0;run:1", measure);
    let told = told(&run);
    assert!(told[1] <= 2048, "{told:?}");
    let of_second = run.kernels().iter().find(|kernel| kernel.get("told_workspace_bytes").is_some());
    assert!(of_second.is_some_and(|kernel| runs(kernel) <= 2048), "{:?}", run.kernels());
}

#[test]
fn a_total_can_be_set_and_left() {
    let heuristic: &[(&str, &str)] = &[("TUNE", "heuristic"), ("WORKSPACE", "1MiB")];
    let run = script("plan:0;run:0;set:total-workspace=24KiB;plan:1;plan:3;run:1;run:2;run:0", heuristic);
    assert_eq!(run.lines("set"), ["1"]);
    let told = told(&run);
    assert!(told[0] > 0 && told[1..] == [0, 0], "{told:?}");
    assert_eq!(run.report.as_ref().unwrap()["total_workspace_bytes"], 24 << 10);
    // Allocated, it keeps its size; what is limited for a layer alone is the program's again.
    let steps =
        "plan:0;run:0;set:total-workspace=1GiB;set:workspace=8KiB@a;layer:a;plan:3;layer:;plan:1;run:1;run:2;run:0";
    let run = script(steps, &[("TUNE", "heuristic"), ("TOTAL_WORKSPACE", "24KiB")]);
    assert_eq!(run.lines("set"), ["1", "0"]);
    let told = self::told(&run);
    assert!(told[0] == 0 && (1..=8192).contains(&told[1]) && told[2] == 0, "{told:?}");
}

#[test]
fn a_call_is_enough_without_a_limit_of_the_environment() {
    let without = [("TUNE", "heuristic")];
    let idle = script("plan:0;run:0", &without);
    assert!(idle.report.is_none());
    let full = told(&idle)[0];
    let run = Client::new(Form::Loaded, &format!("{SMALL} limits=workspace={}", full / 2)).preloaded(&without).run();
    assert_eq!((run.code, run.status(), run.kernels().len()), (Some(0), "0", 1), "{}{}", run.words, run.errors);
    assert!(run.workspace() <= full / 2);
    // With two layers, only the one with a limit is limited; taking the limit back takes nothing from its plan.
    let steps =
        format!("set:workspace={}@a;layer:a;plan:0;layer:;plan:3;run:0;run:1;set:workspace=default@a;run:0", full / 2);
    let run = script(&steps, &without);
    assert_eq!(run.lines("set"), ["0", "1"]);
    assert!(told(&run)[0] <= full / 2 && told(&run)[1] > full / 2, "{}", run.words);
    assert_eq!(run.reasons(), [("no limit".to_owned(), 1)]);
}

#[test]
fn a_wrong_setting_is_an_error_with_a_message() {
    for (text, words) in [
        ("workspace=64apples", &["-1", "workspace", "64apples", "default"][..]),
        ("tune=guess", &["-1", "guess", "measure, first, cached, heuristic or default"]),
        ("sizes=some", &["-1", "some", "undivided"]),
        ("speed=3", &["-1", "speed", "workspace, total-workspace, sizes or tune"]),
        ("total-workspace=1GiB@a", &["-1", "total-workspace", "layers"]),
    ] {
        let run = script(&format!("set:{text};plan:0;run:0"), PLENTY);
        let said = run.lines("set")[0];
        assert!(words.iter().all(|word| said.contains(word)), "{text}: {said}");
        assert_eq!((told(&run), run.errors.as_str()), (told(&script("plan:0;run:0", PLENTY)), ""), "{text}");
    }
    let off = script("set:workspace=1KiB;plan:0;run:0", &[("WORKSPACE", "1MiB"), ("OFF", "1")]);
    assert!(off.lines("set")[0].starts_with("-2 ") && off.lines("set")[0].contains("TIGHTFIT_OFF"), "{}", off.words);
}

#[test]
fn algorithms_that_were_asked_about_keep_their_bytes_too() {
    let arguments = "legacy=size algorithm=2 times=2";
    let variables: &[(&str, &str)] = &[("WORKSPACE", "64KiB"), ("TUNE", "heuristic")];
    let alone = Client::new(Form::Linked, arguments).run();
    let before = Client::new(Form::Linked, arguments).preloaded(variables).run();
    let low = before.workspace() / 2;
    let between = format!("{arguments} between=workspace={low}");
    let run = Client::new(Form::Linked, &between).preloaded(variables).run();
    run.assert_gives(&alone.output, &between);
    assert_eq!((run.workspace(), run.lines("set")), (before.workspace(), vec!["1"]));
    assert!(runs(&run.kernels()[0]) <= low, "{:?}", run.kernels());
    let first = format!("{arguments} limits=workspace={low}");
    let run = Client::new(Form::Linked, &first).preloaded(variables).run();
    run.assert_gives(&alone.output, &first);
    assert!(run.workspace() <= low);
}

#[test]
fn threads_plan_and_run_while_another_sets_limits() {
    let arguments = "engine=2 c=4 k=4 threads=8 rounds=12 times=4 ask=0";
    let read =
        |folder: &std::path::Path, thread: usize| std::fs::read(folder.join(format!("output.{thread}"))).unwrap();
    let (alone, expected) = Client::new(Form::Loaded, arguments).run_keeping();
    assert_eq!(alone.status(), "0", "{}", alone.words);
    for delay in ["none:0", "all:300"] {
        let client = Client::new(Form::Loaded, &format!("{arguments} toggled=1")).preloaded(PLENTY);
        let client = if delay == "none:0" { client } else { client.with("TIGHTFIT_MOCK_CUDA_DELAY", delay) };
        let (run, folder) = client.run_keeping();
        assert_eq!((run.code, run.status()), (Some(0), "0"), "{delay}: {}{}", run.words, run.errors);
        assert!(run.lines("set").is_empty() && run.lines("stream").is_empty(), "{}", run.words);
        for thread in 0..8 {
            assert_eq!(read(folder.path(), thread), read(expected.path(), thread), "thread {thread}, {delay}");
        }
    }
}
