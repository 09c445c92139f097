//! Copies to the host and back: waits for them, changes under them, and their targets.

use super::*;

#[test]
fn missing_waits_for_copies_are_found() {
    // The compute stream waits for each copy at the end of the layer; without that, what comes next is too early.
    let unheeded = |is: fn(&Schedule, &Instruction) -> bool| {
        move |s: &mut Schedule| {
            let waits = |s: &Schedule, step: &Instruction| match step.action {
                Action::Wait(on) => step.stream == Stream::Compute && is(s, &s.instructions[on.0]),
                _ => false,
            };
            while s.instructions.iter().any(|step| waits(s, step)) {
                let at = find(s, waits);
                remove(s, at);
            }
        }
    };
    some(&violations(unheeded(prefetch)), |v| matches!(v, Violation::Unordered { .. }));
    some(&violations(unheeded(offload)), |v| matches!(v, Violation::Unordered { .. }));
    // A copy back into bytes that the compute stream may still be at.
    let hasty = |s: &mut Schedule| {
        let waits =
            |_: &Schedule, step: &Instruction| matches!(step.action, Action::Wait(_)) && step.stream == Stream::Offload;
        while s.instructions.iter().any(|step| waits(s, step)) {
            let at = find(s, waits);
            remove(s, at);
        }
    };
    some(&violations(hasty), |v| matches!(v, Violation::Unordered { .. }));
}

#[test]
fn a_map_that_changes_while_it_is_copied() {
    // The map of `a` is copied away before its rectified unit has worked over it.
    let hasty = |s: &mut Schedule| {
        let at = find(s, pass(2, Pass::Forward));
        let block = compute(s, at).blocks[0];
        let copy = find(s, |_, step| matches!(step.action, Action::Offload(of, _) if of == block));
        let step = s.instructions[copy].clone();
        remove(s, copy);
        insert(s, at, step);
        let writer = find(s, pass(1, Pass::Forward));
        insert(s, at, Instruction { stream: Stream::Offload, action: Action::Wait(InstructionId(writer)) });
    };
    some(&violations(hasty), |v| matches!(v, Violation::ChangedWhileCopied { .. }));
}

#[test]
fn copies_to_and_from_the_wrong_place() {
    let swapped = |s: &mut Schedule| {
        let at = find(s, prefetch);
        let Action::Prefetch(host, block) = s.instructions[at].action else { unreachable!() };
        s.instructions[at].action = Action::Prefetch(HostBlockId((host.0 + 1) % s.host_blocks.len()), block);
    };
    some(&violations(swapped), |v| matches!(v, Violation::HostMismatch { .. }));
    let never = |s: &mut Schedule| {
        let at = find(s, offload);
        remove(s, at);
    };
    some(&violations(never), |v| matches!(v, Violation::NotOnHost { .. }));
    // All in one place on the host: the later copies go over the earlier.
    let over = |s: &mut Schedule| s.host_blocks.iter_mut().for_each(|block| block.offset = 0);
    some(&violations(over), |v| matches!(v, Violation::NotOnHost { .. }));
    let stream = |s: &mut Schedule| {
        let at = find(s, prefetch);
        s.instructions[at].stream = Stream::Prefetch;
    };
    some(&violations(stream), |v| matches!(v, Violation::HostUnordered { .. }));
}

#[test]
fn copies_beside_a_schedule_leave_its_waits_and_places_alone() {
    let network = network();
    let workload = Workload::new(&network, 32, Types::F32, Mode::Training).unwrap();
    let step = step_of(&workload);
    let options = Options { policy: Policy::VdnnAll, ..Options::default() };
    let plan = plan(&step, &CostModel::h200(), &options).unwrap();
    let sent = |action: &Action| match action {
        Action::Offload(block, _) => vec![*block],
        _ => Vec::new(),
    };
    let (copied, copies) = plan.schedule.with_copies(sent).unwrap();
    assert!(copies.len() > 2 && copied.instructions.len() == plan.schedule.instructions.len() + copies.len());
    // Off the compute stream the checker passes them as well.
    assert_eq!(check(&step, &copied, Budgets::default()), []);
    let absent = |action: &Action| if matches!(action, Action::Wait(_)) { vec![BlockId(0)] } else { Vec::new() };
    assert!(matches!(plan.schedule.with_copies(absent), Err(Error::Unsound { .. })));
}
