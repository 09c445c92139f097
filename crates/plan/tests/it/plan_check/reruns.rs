//! Reruns: only allowed operations, and with the content that the first run read or left.

use tightfit_plan::step::StepFile;

use super::*;

#[test]
fn an_operation_may_run_again_if_it_says_so() {
    for (again, violations_of_it) in [(true, 0), (false, 1)] {
        let found = violations(|s| {
            let at = find(s, pass(4, Pass::Forward));
            let mut second = s.instructions[at].clone();
            if let Action::Compute(compute) = &mut second.action {
                compute.again = again;
            }
            insert(s, at + 1, second);
        });
        assert_eq!(found.len(), violations_of_it, "{found:#?}");
        assert!(found.iter().all(|v| matches!(v, Violation::RunTwice { .. })), "{found:#?}");
    }
}

#[test]
fn an_operation_that_must_not_run_again_is_refused() {
    let found = violations(|s| {
        let at = find(s, pass(0, Pass::Forward));
        let mut second = s.instructions[at].clone();
        if let Action::Compute(compute) = &mut second.action {
            compute.again = true;
        }
        insert(s, at + 1, second);
    });
    some(&found, |v| matches!(v, Violation::RunsAgain { operation: OperationId(0), .. }));
}

/// Two operations that count in the same statistics.
const COUNTING: &str = r#"{"tightfit_step": 1, "name": "counting", "batch": 1, "types": "f32", "mode": "inference",
    "tensors": [{"name": "map", "bytes": 256, "kind": "feature-map", "residence": "movable"},
                {"name": "statistics", "bytes": 256, "kind": "weight", "residence": "resident"}],
    "groups": [{"name": "all"}],
    "operations": [
        {"group": 0, "name": "first", "stage": "forward", "writes": [0], "adds": [1], "time_us": 1, "rerun": {"read_only": [1]}},
        {"group": 0, "name": "second", "stage": "forward", "reads": [0], "adds": [1], "time_us": 1}]}"#;

#[test]
fn operands_that_a_rerun_reads_must_be_as_the_first_run_left_them() {
    let step = StepFile::from_json(COUNTING).unwrap().step;
    let schedule = plan(&step, &CostModel::cpu(), &Options::default()).unwrap().schedule.into_schedule();
    let run = |of: usize| {
        find(&schedule, |_, step| matches!(&step.action, Action::Compute(compute) if compute.operation.0 == of))
    };
    for (after, is_right) in [(run(0), true), (run(1), false)] {
        let mut twice = schedule.clone();
        let mut again = twice.instructions[run(0)].clone();
        if let Action::Compute(compute) = &mut again.action {
            compute.again = true;
        }
        insert(&mut twice, after + 1, again);
        let found = check(&step, &twice, Budgets::default());
        let statistics =
            |v: &Violation| matches!(v, Violation::WrongContent { operation: OperationId(0), operand: 1, .. });
        assert_eq!(found.iter().any(statistics), !is_right, "{found:#?}");
        assert_eq!(found.is_empty(), is_right, "{found:#?}");
    }
}
