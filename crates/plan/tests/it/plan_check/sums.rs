//! Sums over the samples of a mini-batch in parts: results computed from the sums come after all of them, and each fault is found by name.

use tightfit_plan::step::{OperationId, Phase};
use tightfit_plan::{Action, Budgets, Compute, Instruction, Pass, Schedule, Step, Violation, check};

use super::parts::{PARTS, computed, divided, parts, some};

/// The schedule of [`divided`] with the normalization in two phases and in parts. The parts of the second phase run in reverse order.
fn summed() -> (Step, Schedule) {
    let (step, mut schedule) = divided();
    let instructions = std::mem::take(&mut schedule.instructions);
    for instruction in instructions {
        match &instruction.action {
            Action::Compute(compute) if step.may_divide_after_sums(compute.operation) => {
                let stream = instruction.stream;
                let phases = in_phases(&step, compute).into_iter();
                schedule.instructions.extend(phases.map(|action| Instruction { stream, action }));
            }
            _ => schedule.instructions.push(instruction),
        }
    }
    (step, schedule)
}

fn in_phases(step: &Step, whole: &Compute) -> Vec<Action> {
    let part = |phase: Phase, part: usize, adds: bool| {
        let blocks = step.uses(whole.operation, phase).map(|(place, _)| whole.blocks[place]).collect();
        Action::Compute(Box::new(Compute { phase, blocks, samples: PARTS[part].clone(), adds, ..whole.clone() }))
    };
    vec![
        part(Phase::Sums, 0, false),
        part(Phase::Sums, 1, true),
        part(Phase::Apply, 1, false),
        part(Phase::Apply, 0, true),
    ]
}

/// The places of the four runs of a pass of the normalization: two of its sums, two by them.
fn runs(step: &Step, schedule: &Schedule, pass: Pass) -> [usize; 4] {
    parts(step, schedule, "b.bn", pass).try_into().unwrap()
}

const PASSES: [Pass; 2] = [Pass::Forward, Pass::BackwardData];

/// The checker's violations for that schedule after `fault` has spoiled a pass of the normalization.
fn violations(pass: Pass, fault: impl Fn(&Step, &mut Schedule, [usize; 4])) -> Vec<Violation> {
    let (step, mut schedule) = summed();
    let runs = runs(&step, &schedule, pass);
    fault(&step, &mut schedule, runs);
    check(&step, &schedule, Budgets::default())
}

/// The place of a tensor among the uses of the operation of a pass, by a part of its name.
fn operand(pass: Pass, tensor: &str) -> (OperationId, usize) {
    let (step, mut schedule) = summed();
    let operation = computed(&step, &mut schedule, "b.bn", pass, 0).operation;
    let is_it = |(_, used): &(usize, &tightfit_plan::step::Use)| step.tensor(used.tensor).name.starts_with(tensor);
    (operation, step.uses(operation, Phase::Whole).find(is_it).unwrap().0)
}

/// The sums of a pass: the statistics of the mini-batch, or the gradients of the parameters.
fn sum_of(pass: Pass) -> (OperationId, usize) {
    operand(pass, if pass == Pass::Forward { "saved" } else { "weight gradient" })
}

/// Whether a violation reports wrong content of the sum of this pass at this instruction.
fn is_wrong_sum(violation: &Violation, pass: Pass, place: usize) -> bool {
    let of = sum_of(pass);
    matches!(violation, Violation::WrongContent { operation, operand, at } if ((*operation, *operand), at.0) == (of, place))
}

fn adds(schedule: &mut Schedule, place: usize) -> &mut bool {
    match &mut schedule.instructions[place].action {
        Action::Compute(compute) => &mut compute.adds,
        other => panic!("{other:?}"),
    }
}

#[test]
fn sums_in_parts_before_their_results_pass() {
    let (step, schedule) = summed();
    assert_eq!(check(&step, &schedule, Budgets::default()), []);
    // Results computed from sums may run again, part by part.
    for place in runs(&step, &schedule, Pass::Forward).into_iter().skip(2) {
        let mut again = schedule.clone();
        let mut instruction = again.instructions[place].clone();
        if let Action::Compute(compute) = &mut instruction.action {
            compute.again = true;
        }
        again.instructions.insert(place + 1, instruction);
        assert_eq!(check(&step, &again, Budgets::default()), []);
    }
}

#[test]
fn a_sum_that_is_missing() {
    for (pass, part) in PASSES.into_iter().flat_map(|pass| [0, 1].map(|part| (pass, part))) {
        let found = violations(pass, |_, s, runs| {
            s.instructions.remove(runs[part]);
            *adds(s, runs[0]) = false;
        });
        let (step, schedule) = summed();
        let first = runs(&step, &schedule, pass)[2] - 1;
        some(&found, |v| is_wrong_sum(v, pass, first));
        some(&found, |v| matches!(v, Violation::Missing { operation } if *operation == sum_of(pass).0));
    }
}

#[test]
fn samples_before_all_sums() {
    for pass in PASSES {
        let found = violations(pass, |_, s, runs| s.instructions.swap(runs[1], runs[2]));
        let (step, schedule) = summed();
        let early = runs(&step, &schedule, pass)[1];
        some(&found, |v| is_wrong_sum(v, pass, early));
    }
}

#[test]
fn a_sum_that_counts_twice() {
    for pass in PASSES {
        let found = violations(pass, |_, s, runs| {
            let again = s.instructions[runs[1]].clone();
            s.instructions.insert(runs[1] + 1, again);
        });
        let (step, schedule) = summed();
        let second = runs(&step, &schedule, pass)[1] + 1;
        some(&found, |v| is_wrong_sum(v, pass, second));
        let is_it = |v: &Violation| matches!(v, Violation::RunTwice { operation, at } if (*operation, at.0) == (sum_of(pass).0, second));
        some(&found, is_it);
        // As a run again, too: the sums stay as the first runs left them.
        let found = violations(pass, |_, s, runs| {
            let mut again = s.instructions[runs[1]].clone();
            if let Action::Compute(compute) = &mut again.action {
                compute.again = true;
            }
            s.instructions.insert(runs[1] + 1, again);
        });
        some(&found, |v| matches!(v, Violation::RunsAgain { at, .. } if at.0 == second));
    }
}

#[test]
fn sums_that_are_lost_or_begin_with_others() {
    for pass in PASSES {
        let (step, schedule) = summed();
        let [first, _, apply, _] = runs(&step, &schedule, pass);
        let lost = violations(pass, |_, s, runs| *adds(s, runs[1]) = false);
        some(&lost, |v| is_wrong_sum(v, pass, apply));
        let found = violations(pass, |_, s, runs| *adds(s, runs[0]) = true);
        let is_it = |v: &Violation| matches!(v, Violation::NeverWritten { at, .. } if at.0 == first);
        some(&found, |v| is_it(v) || is_wrong_sum(v, pass, first));
    }
}

#[test]
fn parameters_that_change_before_all_sums() {
    let found = violations(Pass::BackwardData, |step, s, [_, second, ..]| {
        let update = parts(step, s, "b.bn", Pass::Update)[0];
        let sums = s.instructions.remove(second);
        s.instructions.insert(update, sums);
    });
    some(&found, |v| matches!(v, Violation::WrongContent { operand: 1, .. }));
}

#[test]
fn running_statistics_that_change_twice_or_never() {
    let of = operand(Pass::Forward, "statistics");
    for moves in [true, false] {
        let found = violations(Pass::Forward, |_, s, [.., first, second]| {
            (*adds(s, first), *adds(s, second)) = (!moves, !moves);
        });
        let is_it = |v: &Violation| matches!(v, Violation::WrongContent { operation, operand, .. } if (*operation, *operand) == of);
        some(&found, is_it);
    }
}

#[test]
fn samples_that_are_computed_by_sums_twice_or_never() {
    for pass in PASSES {
        let twice = violations(pass, |_, s, [.., last]| {
            let again = s.instructions[last].clone();
            s.instructions.insert(last + 1, again);
        });
        some(&twice, |v| matches!(v, Violation::RunTwice { operation, .. } if *operation == sum_of(pass).0));
        let never = violations(pass, |_, s, [.., last]| _ = s.instructions.remove(last));
        some(&never, |v| matches!(v, Violation::Missing { operation } if *operation == sum_of(pass).0));
    }
}

#[test]
fn phases_of_operations_without_sums() {
    for phase in [Phase::Sums, Phase::Apply] {
        let (step, mut schedule) = divided();
        let part = computed(&step, &mut schedule, "fc", Pass::Forward, 0);
        part.phase = phase;
        part.blocks = step.uses(part.operation, phase).map(|(place, _)| part.blocks[place]).collect();
        some(&check(&step, &schedule, Budgets::default()), |v| matches!(v, Violation::PartOfBatch { .. }));
    }
    // The sums phase has no blocks for tensors that it does not write.
    let (step, mut schedule) = summed();
    let sums = computed(&step, &mut schedule, "b.bn", Pass::Forward, 0);
    sums.blocks.push(sums.blocks[0]);
    let found = check(&step, &schedule, Budgets::default());
    some(&found, |v| matches!(v, Violation::WrongOperands { given: 4, wanted: 3, .. }));
}

#[test]
fn phases_take_their_shares_and_a_launch_more() {
    let (step, schedule) = summed();
    let launch = tightfit_plan::CostModel::k40().launch;
    for pass in PASSES {
        let time = |place: usize| match &schedule.instructions[place].action {
            Action::Compute(compute) => {
                let whole = Compute { phase: Phase::Whole, samples: 0..8, ..(**compute).clone() };
                let all = Compute { samples: 0..8, ..(**compute).clone() };
                [step.time(compute, launch), step.time(&all, launch), step.time(&whole, launch)].map(|time| time.0)
            }
            other => panic!("{other:?}"),
        };
        let [[a, sums, whole], [b, ..], [c, apply, _], [d, ..]] = runs(&step, &schedule, pass).map(time);
        assert_eq!(sums + apply, whole + launch.0, "two launches");
        for (parts, all) in [(a + b, sums), (c + d, apply)] {
            assert!((all + launch.0..=all + launch.0 + 2).contains(&parts), "{parts} of {all}");
        }
        // One of three maps that move is read, and two of five; times are whole nanoseconds.
        let share = (sums - launch.0) as f64 / (whole - launch.0) as f64;
        let of_maps = if pass == Pass::Forward { 1.0 / 3.0 } else { 2.0 / 5.0 };
        assert!((share - of_maps).abs() < 2e-2, "{share}");
    }
}
