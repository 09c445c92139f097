//! The backend interface under the library: divided convolutions give what undivided ones give, within the limit, and
//! whatever is not divided is as it would be without the library.

use tightfit_test_support::client::{Client, Form, Run};

const FORMS: [Form; 2] = [Form::Linked, Form::Loaded];

/// The client without the library, on engine 2, whose sums are exact in any order.
fn alone(form: Form, arguments: &str) -> Run {
    let run = Client::new(form, &format!("engine=2 {arguments}")).run();
    assert_eq!((run.code, run.status()), (Some(0), "0"), "{}{}", run.words, run.errors);
    run
}

fn divided(form: Form, arguments: &str, variables: &[(&str, &str)]) -> Run {
    Client::new(form, &format!("engine=2 {arguments}")).preloaded(variables).run()
}

const HEURISTIC: &[(&str, &str)] = &[("WORKSPACE", "64KiB"), ("TUNE", "heuristic")];

#[test]
fn without_settings_nothing_changes() {
    for form in FORMS {
        let alone = alone(form, "");
        for variables in [&[][..], &[("WORKSPACE", "1KiB"), ("OFF", "1")], &[("WORKSPACE", "1 apple")]] {
            let run = divided(form, "", variables);
            run.assert_gives(&alone.output, "nothing asked for");
            assert_eq!(run.words, alone.words, "{form:?} {variables:?}");
            assert!(run.report.is_none());
        }
        let wrong = divided(form, "", &[("WORKSPACE", "1 apple")]);
        assert_eq!(wrong.errors.lines().count(), 1, "{}", wrong.errors);
        assert!(wrong.errors.contains("TIGHTFIT_WORKSPACE") && wrong.errors.contains("1 apple"), "{}", wrong.errors);
    }
}

#[test]
fn every_operation_is_divided_in_every_type_and_layout() {
    for operation in ["forward", "data", "filter"] {
        for shape in ["", "types=f16-f32", "types=bf16", "nhwc=1", "spatial=3 size=5", "stride=2 n=12", "n=16 alpha=2"]
        {
            let arguments = format!("op={operation} {shape}");
            let alone = alone(Form::Linked, &arguments);
            let limit = format!("{}B", alone.workspace() / 2);
            let run = divided(Form::Linked, &arguments, &[("WORKSPACE", &limit), ("TUNE", "heuristic")]);
            run.assert_gives(&alone.output, &arguments);
            assert!(run.workspace() <= alone.workspace() / 2, "{arguments}");
            assert_eq!(run.kernels()[0]["decision"], "divided", "{arguments}");
            assert_eq!(run.kernels()[0]["framework"]["workspace_bytes"], alone.workspace());
        }
    }
}

#[test]
fn groups_batches_and_betas_are_kept() {
    for operation in ["forward", "data", "filter"] {
        for (engine, shape) in [
            (6, "groups=2"),
            (2, "n=1"),
            (2, "n=13"),
            (2, "beta=1"),
            (2, "beta=0.5 types=f16-f32"),
            (2, "beta=1 types=bf16"),
            (2, "beta=3 alpha=-2"),
        ] {
            let arguments = format!("op={operation} {shape}").replace("engine=2", "");
            let alone = Client::new(Form::Linked, &format!("engine={engine} {arguments}")).run();
            let run = Client::new(Form::Linked, &format!("engine={engine} {arguments}"))
                .preloaded(&[("WORKSPACE", "32KiB"), ("TUNE", "heuristic")])
                .run();
            run.assert_gives(&alone.output, &arguments);
            assert!(run.workspace() <= 32 << 10, "{arguments}");
        }
    }
}

#[test]
fn both_forms_of_client_and_library_are_reached() {
    let alone = alone(Form::Linked, "");
    for form in FORMS {
        let run = divided(form, "", HEURISTIC);
        run.assert_gives(&alone.output, "the form with a SONAME");
        assert_eq!(run.kernels()[0]["decision"], "divided");
        assert!(run.errors.is_empty(), "{}", run.errors);
    }
    let plain = Client::new(Form::Linked, "engine=2").preloaded(HEURISTIC).plain().run();
    plain.assert_gives(&alone.output, "the form without");
    assert_eq!(plain.kernels()[0]["decision"], "divided");
}

#[test]
fn the_heuristic_keeps_choices_that_fit() {
    let alone = alone(Form::Linked, "");
    let run = divided(Form::Linked, "", &[("WORKSPACE", "1MiB"), ("TUNE", "heuristic")]);
    run.assert_gives(&alone.output, "what fits");
    assert_eq!(run.workspace(), alone.workspace());
    assert_eq!(run.kernels()[0]["decision"], "kept");
    assert_eq!(run.kernels()[0]["calls"], 1);
}

#[test]
fn arithmetic_that_the_framework_did_not_choose_is_not_used() {
    // Engine 1 uses no tensor cores, rounds nothing and is deterministic.
    let alone = Client::new(Form::Linked, "engine=1 c=4 k=4").run();
    for class in ["0", "1"] {
        let run = Client::new(Form::Linked, "engine=1 c=4 k=4")
            .preloaded(&[("WORKSPACE", "1GiB"), ("TUNE", "first"), ("EXACT_CLASS", class)])
            .run();
        assert_eq!(run.status(), "0");
        for part in run.kernels()[0]["ours"]["configuration"].as_array().unwrap() {
            let name = part["algorithm"].as_str().unwrap();
            let forbidden = ["engine3", "engine6", "engine7", "legacy:algo-0", "legacy:algo-3"];
            assert!(!forbidden.iter().any(|one| name.starts_with(one)), "{name}");
        }
        if class == "1" {
            run.assert_gives(&alone.output, "the exact class");
        }
    }
}

#[test]
fn an_answer_holds_even_if_its_workspace_was_never_queried() {
    let alone = alone(Form::Linked, "");
    let run = divided(Form::Linked, "ask=0 times=3", HEURISTIC);
    run.assert_gives(&alone.output, "executed three times");
    assert_eq!(run.kernels()[0]["calls"], 3);
}

#[test]
fn low_alignments_are_kept() {
    for operation in ["forward", "data", "filter"] {
        for shape in
            ["alignment=4 offset=4", "alignment=2 offset=2 types=f16-f32 c=6 k=6 size=7", "c=3 k=5 size=7 n=10"]
        {
            let arguments = format!("op={operation} {shape}");
            let alone = alone(Form::Linked, &arguments);
            let run = divided(Form::Linked, &arguments, &[("WORKSPACE", "30KiB"), ("TUNE", "heuristic")]);
            run.assert_gives(&alone.output, &arguments);
            assert!(run.workspace() <= 30 << 10, "{arguments}");
        }
    }
}

#[test]
fn unrecognized_calls_pass_through_with_a_reason() {
    for (arguments, reason) in [
        ("mode=0", "true convolution"),
        ("gap=1", "layout with gaps"),
        ("spatial=1 size=30", "shape"),
        ("fused=1", "fused graph"),
        ("fused=2", "fused graph"),
        ("shapes=803", "dynamic or overridden shapes"),
        ("shapes=805", "dynamic or overridden shapes"),
        // Of the configuration that a plan was saved from, the workspace may have been told before.
        ("restored=1 ask=0", "deserialized plan"),
    ] {
        let alone = alone(Form::Linked, arguments);
        let run = divided(Form::Linked, &format!("{arguments} times=2"), HEURISTIC);
        run.assert_gives(&alone.output, arguments);
        assert_eq!(run.workspace(), alone.workspace(), "{arguments}");
        assert_eq!(run.reasons(), [(reason.to_owned(), 2)], "{arguments}");
    }
}

const KEPT: &[(&str, &str)] = &[("WORKSPACE", "1GiB"), ("TUNE", "heuristic")];

#[test]
fn a_divided_plan_has_no_native_graph() {
    for (variables, status) in [(HEURISTIC, "3000"), (KEPT, "0")] {
        let run = divided(Form::Linked, "populate=1 update=1", variables);
        assert_eq!((run.lines("populate"), run.lines("update")), (vec![status], vec![status]), "{variables:?}");
        let native = ("native CUDA graph".to_owned(), 1);
        assert_eq!(run.reasons(), [native.clone(), native], "once each");
    }
}

#[test]
fn a_native_graph_runs_the_kept_choice() {
    let alone = alone(Form::Linked, "populate=1 times=0");
    assert_eq!(alone.output, self::alone(Form::Linked, "").output);
    for arguments in ["", "fused=1", "restored=1 ask=0", "shapes=803"] {
        let arguments = format!("populate=1 times=0 {arguments}");
        let alone = self::alone(Form::Linked, &arguments);
        divided(Form::Linked, &arguments, KEPT).assert_gives(&alone.output, &arguments);
    }
}

#[test]
fn a_pack_that_says_more_than_addresses_is_refused_by_a_divided_plan_alone() {
    let alone = alone(Form::Linked, "more=1");
    divided(Form::Linked, "more=1", KEPT).assert_gives(&alone.output, "kept");
    let run = divided(Form::Linked, "more=1", HEURISTIC);
    assert_eq!(run.status(), "3000", "{}{}", run.words, run.errors);
}

#[test]
#[cfg(debug_assertions)]
fn the_choice_may_change_between_executions_but_not_the_reported_workspace() {
    for arguments in [
        "op=forward times=4 threads=8",
        "op=forward times=4",
        "op=data times=4",
        "op=filter times=4",
        "op=filter times=4 types=f16-f32",
    ] {
        let before = divided(Form::Linked, arguments, HEURISTIC);
        let changing = Client::new(Form::Linked, &format!("engine=2 {arguments}")).preloaded(HEURISTIC);
        let run = changing.with("TIGHTFIT_TEST_CHANGE", "1").run();
        assert_eq!((run.code, run.status()), (Some(0), "0"), "{arguments}: {}{}", run.words, run.errors);
        let told = |run: &Run| -> Vec<String> {
            let mut lines: Vec<String> = run.lines("workspace").into_iter().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(told(&run), told(&before), "{arguments}");
        assert_eq!(run.output, before.output, "{arguments}");
        for kernel in run.kernels() {
            let parts = kernel["ours"]["configuration"].as_array().unwrap();
            assert!(parts.iter().all(|part| part["micro_batch"] == 1), "{arguments}: {kernel}");
            assert!(kernel["calls"].as_u64() > Some(1), "{arguments}: {kernel}");
        }
    }
}
