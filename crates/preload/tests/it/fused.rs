//! Legacy calls whose workspace was sized by our answer to another query: above all
//! `cudnnConvolutionBiasActivationForward`, which has no separate query. Algorithm 2 grows with the batch and is exact.

use tightfit_test_support::client::{Client, Form, Run};

/// The settings under which the plain convolution is divided.
const HEURISTIC: &[(&str, &str)] = &[("WORKSPACE", "64KiB"), ("TUNE", "heuristic")];
const TOTAL: &[(&str, &str)] = &[("TOTAL_WORKSPACE", "64KiB"), ("TUNE", "heuristic")];

fn alone(form: Form, arguments: &str) -> Run {
    let run = Client::new(form, arguments).run();
    assert_eq!((run.code, run.status()), (Some(0), "0"), "{arguments}: {}{}", run.words, run.errors);
    run
}

fn preloaded(form: Form, arguments: &str, variables: &[(&str, &str)]) -> Run {
    Client::new(form, arguments).preloaded(variables).run()
}

fn lent(times: u64) -> Vec<(String, u64)> {
    vec![("fused call".to_owned(), times), ("workspace lent".to_owned(), times)]
}

#[test]
fn the_fused_call_runs_whatever_the_queries_answered() {
    for form in [Form::Linked, Form::Loaded] {
        for way in ["size", "get", "find", "ex"] {
            for shape in ["activation=1", "activation=1 z=1 alpha=2", "activation=1 z=2 types=f16-f32"] {
                let arguments = format!("legacy={way} algorithm=2 {shape}");
                let alone = alone(form, &arguments);
                for variables in [HEURISTIC, TOTAL] {
                    let run = preloaded(form, &arguments, variables);
                    run.assert_gives(&alone.output, &format!("{form:?} {arguments} {variables:?}"));
                    assert!(run.workspace() <= 64 << 10 && alone.workspace() > 64 << 10, "{arguments}");
                    assert_eq!(run.reasons(), lent(1), "{arguments} {variables:?}");
                }
            }
        }
    }
}

#[test]
fn without_an_activation_it_keeps_the_only_algorithm_that_serves() {
    let arguments = "legacy=size algorithm=1 activation=5 z=1";
    let alone = alone(Form::Linked, arguments);
    let run = preloaded(Form::Linked, arguments, &[("WORKSPACE", "1KiB"), ("TUNE", "heuristic")]);
    assert!(run.workspace() < alone.workspace(), "{} {}", run.words, alone.words);
    run.assert_gives(&alone.output, arguments);
    assert_eq!(run.reasons(), lent(1));
    // A call that cuDNN refuses without us stays refused.
    let refused = "legacy=size algorithm=2 activation=5";
    let [bare, run] = [Client::new(Form::Linked, refused).run(), preloaded(Form::Linked, refused, HEURISTIC)];
    assert_eq!((bare.status(), run.status()), ("3000", "3000"));
}

#[test]
fn a_fused_call_with_enough_workspace_is_only_counted() {
    let arguments = "legacy=size algorithm=2 activation=1 times=3";
    let run = preloaded(Form::Linked, arguments, &[("WORKSPACE", "1GiB"), ("TUNE", "heuristic")]);
    run.assert_gives(&alone(Form::Linked, arguments).output, arguments);
    assert_eq!(run.reasons(), [("fused call".to_owned(), 3)]);
    assert!(run.kernels().is_empty(), "the convolution alone was never called");
}

#[test]
fn less_workspace_than_reported_is_refused_as_without_us() {
    let arguments = "legacy=size algorithm=2 activation=1 less=256";
    assert_eq!(Client::new(Form::Linked, arguments).run().status(), "2000");
    let run = preloaded(Form::Linked, arguments, HEURISTIC);
    assert_eq!(run.status(), "2000");
    assert_eq!(run.reasons(), [("fused call".to_owned(), 1)]);
}

#[test]
fn a_captured_fused_call_runs_when_its_graph_does() {
    let arguments = "legacy=size algorithm=2 activation=1 capture=1 times=3";
    let alone = alone(Form::Linked, arguments);
    for variables in [HEURISTIC, TOTAL] {
        let run = preloaded(Form::Linked, arguments, variables);
        run.assert_gives(&alone.output, arguments);
        assert!(run.lines("stream").is_empty(), "{}", run.words);
        assert_eq!(run.reasons(), lent(3));
    }
}

#[test]
fn streams_take_turns_in_lent_memory() {
    // The stand-in notices a second user of a workspace.
    let arguments = "legacy=size algorithm=2 activation=1 handles=2 times=8";
    let alone = alone(Form::Linked, arguments);
    let slow = |client: Client| client.with("TIGHTFIT_MOCK_CUDA_DELAY", "all:3000").run();
    let run = slow(Client::new(Form::Linked, arguments).preloaded(HEURISTIC));
    run.assert_gives(&alone.output, arguments);
    assert!(run.lines("stream").is_empty(), "{}", run.words);
    assert_eq!(run.reasons(), lent(8));
}

#[test]
fn without_memory_to_lend_a_smaller_algorithm_runs() {
    let arguments = "legacy=size algorithm=2 activation=1";
    let expected = alone(Form::Linked, arguments).output;
    // x, w, y, the workspace and the bias are the client's.
    let run = Client::new(Form::Linked, arguments)
        .preloaded(HEURISTIC)
        .with("TIGHTFIT_MOCK_CUDA_FAIL", "cuMemAlloc_v2:6:2")
        .run();
    run.assert_gives(&expected, arguments);
    assert_eq!(run.reasons(), [("failed".to_owned(), 1), ("fused call".to_owned(), 1)]);
}

#[test]
fn a_workspace_reported_for_a_large_batch_serves_a_small_one() {
    // In 164 KiB seven samples run as they are; eight run in halves, which need less than the seven.
    for (larger, limit, decision) in [(1, "164KiB", "kept"), (2, "92KiB", "divided")] {
        for fused in ["", "activation=1"] {
            let arguments = format!("legacy=size algorithm=2 larger={larger} {fused}");
            let alone = alone(Form::Linked, &arguments);
            let run = preloaded(Form::Linked, &arguments, &[("WORKSPACE", limit), ("TUNE", "heuristic")]);
            run.assert_gives(&alone.output, &arguments);
            assert!(run.reasons().contains(&("workspace lent".to_owned(), 1)), "{arguments}: {:?}", run.reasons());
            if fused.is_empty() {
                assert_eq!(run.kernels()[0]["decision"], decision, "{arguments}");
            }
        }
    }
}

#[test]
fn a_search_in_a_reported_workspace_lists_algorithms_that_fit() {
    let serving = |run: &Run| {
        let mut found: Vec<String> = Vec::new();
        for line in run.lines("listed") {
            let words: Vec<&str> = line.split(' ').collect();
            if words[1] == "0" {
                found.push(words[0].to_owned());
            }
        }
        found.sort();
        found
    };
    for operation in ["forward", "data", "filter"] {
        let arguments = format!("legacy=ex sized=1 algorithm=99 op={operation}");
        let bare = serving(&Client::new(Form::Linked, &arguments).run());
        let run = preloaded(Form::Linked, &arguments, TOTAL);
        assert!(bare.len() > 2, "{bare:?}");
        assert_eq!(serving(&run), bare, "{arguments}: {}{}", run.words, run.errors);
        for line in run.lines("listed") {
            let words: Vec<&str> = line.split(' ').collect();
            assert!(words[1] != "0" || words[2] == "0", "nothing is asked of the program: {line}");
        }
    }
}
