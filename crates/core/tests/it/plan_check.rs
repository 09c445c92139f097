//! The checker of schedules: good ones pass, and each fault is found, by name.

use tightfit_core::network::{Builder, Filters, MapId, Network, Shape, Window};
use tightfit_core::plan::{
    Access, Action, BlockId, Budgets, Compute, Costs, HostBlockId, Kernels, Options, Pass, Policy, Role, Schedule,
    Step, StepId, Stream, Tensor, Violation, Workload, check, plan,
};
use tightfit_core::{Algorithm, Bytes, Candidate, Configuration, DivisionCost, Nanos, Types};

fn network() -> Network {
    let mut net = Builder::new("chain");
    net.input(Shape::image(2, 8, 8)).conv("a", Filters::new(4, 3)).relu().max_pool("pool", Window::new(2, 2));
    net.conv("b", Filters::new(4, 1)).relu().conv("c", Filters::new(4, 1)).relu();
    net.flatten().fully_connected("fc", 3).dropout(0.5).softmax_loss();
    net.finish().unwrap()
}

/// A plan of the network under vDNN's policy for all maps, which `fault` then spoils; what the checker says.
fn violations(fault: impl FnOnce(&mut Schedule)) -> Vec<Violation> {
    violations_within(Budgets::default(), fault)
}

fn violations_within(budgets: Budgets, fault: impl FnOnce(&mut Schedule)) -> Vec<Violation> {
    let network = network();
    let workload = Workload::new(&network, 32, Types::F32, false).unwrap();
    let kernels = Kernels::assumed(&workload, &Costs::h200()).unwrap();
    let options = Options { policy: Policy::VdnnAll, ..Options::default() };
    let mut schedule = plan(&workload, &kernels, &Costs::h200(), &options).unwrap().schedule;
    fault(&mut schedule);
    check(&workload, &schedule, budgets)
}

/// The place of the first step that is so.
fn find(schedule: &Schedule, is: impl Fn(&Schedule, &Step) -> bool) -> usize {
    schedule.steps.iter().position(|step| is(schedule, step)).expect("there is such a step")
}

fn offload(_: &Schedule, step: &Step) -> bool {
    matches!(step.action, Action::Offload(..))
}

fn prefetch(_: &Schedule, step: &Step) -> bool {
    matches!(step.action, Action::Prefetch(..))
}

/// Whether it is a pass of the layer of this place.
fn pass(layer: usize, pass: Pass) -> impl Fn(&Schedule, &Step) -> bool {
    move |_, step| matches!(&step.action, Action::Compute(of) if of.layer.index() == layer && of.pass == pass)
}

fn compute(schedule: &mut Schedule, at: usize) -> &mut Compute {
    match &mut schedule.steps[at].action {
        Action::Compute(compute) => compute,
        other => panic!("{other:?} is no computation"),
    }
}

/// Takes a step out, and points the waits after it to where their steps are now; those for itself to the step before.
fn remove(schedule: &mut Schedule, at: usize) {
    schedule.steps.remove(at);
    for step in &mut schedule.steps {
        if let Action::Wait(on) = &mut step.action
            && on.0 >= at
        {
            on.0 -= 1;
        }
    }
}

/// Makes a step come before that of another place.
fn insert(schedule: &mut Schedule, at: usize, step: Step) {
    for step in &mut schedule.steps {
        if let Action::Wait(on) = &mut step.action
            && on.0 >= at
        {
            on.0 += 1;
        }
    }
    schedule.steps.insert(at, step);
}

fn block_of(schedule: &Schedule, at: usize) -> BlockId {
    match schedule.steps[at].action {
        Action::Offload(block, _) | Action::Prefetch(_, block) | Action::Allocate(block) | Action::Release(block) => {
            block
        }
        _ => panic!("a step without a block of its own"),
    }
}

fn some(violations: &[Violation], is: impl Fn(&Violation) -> bool) {
    assert!(violations.iter().any(is), "{violations:#?}");
}

// Layers: 0 input, 1 a, 2 a.relu, 3 pool, 4 b, 5 b.relu, 6 c, 7 c.relu, 8 flatten, 9 fc, 10 fc.dropout, 11 loss.

#[test]
fn a_good_schedule_passes() {
    assert_eq!(violations(|_| {}), []);
}

#[test]
fn arenas_over_their_budgets() {
    let none = Budgets { device: Bytes(256), host: Bytes(512) };
    let found = violations_within(none, |_| {});
    some(&found, |v| matches!(v, Violation::OverBudget { arena: "device", budget: Bytes(256), .. }));
    some(&found, |v| matches!(v, Violation::OverBudget { arena: "host", budget: Bytes(512), .. }));
}

#[test]
fn blocks_outside_misaligned_too_small_or_of_no_tensor() {
    some(&violations(|s| s.device_bytes = Bytes(s.device_bytes.0 - 256)), |v| {
        matches!(v, Violation::Outside { arena: "device", .. })
    });
    some(&violations(|s| s.host_blocks[1].offset = u64::MAX - 255), |v| {
        matches!(v, Violation::Outside { arena: "host", index: 1, .. })
    });
    some(&violations(|s| s.blocks[3].offset += 4), |v| {
        matches!(v, Violation::Misaligned { arena: "device", index: 3, .. })
    });
    some(&violations(|s| s.blocks[3].bytes -= 4), |v| matches!(v, Violation::TooSmall { block: BlockId(3), .. }));
    some(&violations(|s| s.blocks[3].samples = 0..33), |v| {
        matches!(v, Violation::Samples { block: BlockId(3), first: 0, last: 33 })
    });
    let far: MapId = serde_json::from_str("99").unwrap();
    some(
        &violations(|s| s.blocks[3].tensor = Tensor::FeatureMap(far)),
        |v| matches!(v, Violation::NoSuch { what, .. } if what == "map 99"),
    );
}

#[test]
fn steps_that_name_what_is_not_there() {
    some(
        &violations(|s| s.steps.push(Step { stream: Stream::Compute, action: Action::Release(BlockId(999)) })),
        |v| matches!(v, Violation::NoSuch { what, .. } if what == "block 999"),
    );
    let later = |s: &mut Schedule| {
        let at = find(s, |_, step| matches!(step.action, Action::Wait(_)));
        s.steps[at].action = Action::Wait(StepId(at));
    };
    some(&violations(later), |v| matches!(v, Violation::NoSuch { what, .. } if what.starts_with("earlier step")));
    let host = |s: &mut Schedule| {
        let at = find(s, offload);
        s.steps[at].action = Action::Offload(block_of(s, at), HostBlockId(77));
    };
    some(&violations(host), |v| matches!(v, Violation::NoSuch { what, .. } if what == "host block 77"));
}

#[test]
fn work_on_the_wrong_stream() {
    let moved = |s: &mut Schedule| {
        let at = find(s, offload);
        s.steps[at].stream = Stream::Compute;
    };
    some(&violations(moved), |v| matches!(v, Violation::WrongStream { stream: Stream::Compute, .. }));
    let moved = |s: &mut Schedule| {
        let at = find(s, pass(4, Pass::Forward));
        s.steps[at].stream = Stream::Prefetch;
    };
    some(&violations(moved), |v| matches!(v, Violation::WrongStream { stream: Stream::Prefetch, .. }));
}

#[test]
fn a_map_that_is_not_brought_back_is_missed() {
    let forgotten = |s: &mut Schedule| {
        let at = find(s, prefetch);
        remove(s, at);
    };
    some(&violations(forgotten), |v| matches!(v, Violation::NeverWritten { tensor: Tensor::FeatureMap(_), .. }));
}

#[test]
fn use_of_a_block_that_was_given_back_or_never_taken() {
    let early = |s: &mut Schedule| {
        let written = find(s, pass(1, Pass::Forward));
        let block = compute(s, written).operands.iter().find(|operand| operand.role == Role::Y).unwrap().block;
        let release = find(s, |_, step| matches!(step.action, Action::Release(of) if of == block));
        remove(s, release);
        insert(s, written + 1, Step { stream: Stream::Compute, action: Action::Release(block) });
    };
    some(&violations(early), |v| matches!(v, Violation::NotLive { tensor: Tensor::FeatureMap(_), .. }));
    let twice = |s: &mut Schedule| {
        let at = find(s, |_, step| matches!(step.action, Action::Allocate(_)));
        insert(s, at, s.steps[at].clone());
    };
    some(&violations(twice), |v| matches!(v, Violation::AllocatedTwice { .. }));
}

#[test]
fn a_leak() {
    let forgotten = |s: &mut Schedule| {
        let at = find(s, |_, step| matches!(step.action, Action::Release(_)));
        remove(s, at);
    };
    some(&violations(forgotten), |v| matches!(v, Violation::Leak { .. }));
}

#[test]
fn bytes_in_common() {
    let moved = |s: &mut Schedule| {
        let at = find(s, pass(3, Pass::Forward));
        let operands = compute(s, at).operands.clone();
        s.blocks[operands[1].block.0].offset = s.blocks[operands[0].block.0].offset;
    };
    some(&violations(moved), |v| matches!(v, Violation::Overlap { .. }));
    let resident = |s: &mut Schedule| {
        let weights: Vec<usize> = (0..s.blocks.len()).filter(|&block| s.blocks[block].resident).collect();
        s.blocks[weights[1]].offset = s.blocks[weights[0]].offset;
    };
    some(&violations(resident), |v| matches!(v, Violation::Overlap { .. }));
}

#[test]
fn two_homes_of_what_stays() {
    // The update of `c` takes its momentum from a second block, in bytes of its own.
    let doubled = |s: &mut Schedule| {
        let at = find(s, pass(6, Pass::Update));
        let place = compute(s, at).operands.iter().position(|operand| operand.role == Role::Momentum).unwrap();
        let first = compute(s, at).operands[place].block;
        let mut second = s.blocks[first.0].clone();
        second.offset = s.device_bytes.0;
        s.device_bytes = Bytes(s.device_bytes.0 + second.bytes.next_multiple_of(256));
        compute(s, at).operands[place].block = BlockId(s.blocks.len());
        s.blocks.push(second);
    };
    let found = violations(doubled);
    assert!(matches!(found[..], [Violation::ResidentTwice { tensor: Tensor::Momentum(_), .. }]), "{found:#?}");
}

/// Gives the probabilities back as soon as `last` has run, and their bytes to a block that is taken later.
fn results_taken(workload: &Workload<'_>, last: (usize, Pass), is_taken: bool) -> Vec<Violation> {
    let kernels = Kernels::assumed(workload, &Costs::h200()).unwrap();
    let options = Options { policy: Policy::VdnnAll, ..Options::default() };
    let mut schedule = plan(workload, &kernels, &Costs::h200(), &options).unwrap().schedule;
    let at = find(&schedule, pass(11, Pass::Forward));
    let result = compute(&mut schedule, at).operands.iter().find(|operand| operand.role == Role::Y).unwrap().block;
    let release = find(&schedule, |_, step| matches!(step.action, Action::Release(of) if of == result));
    remove(&mut schedule, release);
    let last = find(&schedule, pass(last.0, last.1));
    insert(&mut schedule, last + 1, Step { stream: Stream::Compute, action: Action::Release(result) });
    if is_taken {
        // A block of its own that nothing ever writes.
        let mut taker = schedule.blocks[result.0].clone();
        taker.tensor = Tensor::Labels;
        taker.bytes = taker.bytes.max(256);
        schedule.device_bytes = Bytes(schedule.device_bytes.0 + 256);
        let block = BlockId(schedule.blocks.len());
        schedule.blocks.push(taker);
        for action in [Action::Allocate(block), Action::Release(block)] {
            schedule.steps.push(Step { stream: Stream::Compute, action });
        }
    }
    check(workload, &schedule, Budgets::default())
}

#[test]
fn results_that_are_gone_when_the_step_has_ended() {
    let network = network();
    for (inference, last) in [(false, (11, Pass::BackwardData)), (true, (11, Pass::Forward))] {
        let workload = Workload::new(&network, 32, Types::F32, inference).unwrap();
        assert_eq!(results_taken(&workload, last, false), [], "nobody takes the bytes");
        let found = results_taken(&workload, last, true);
        assert!(matches!(found[..], [Violation::ResultLost { tensor: Tensor::FeatureMap(_), .. }]), "{found:#?}");
    }
}

#[test]
fn the_end_of_a_copy_that_nobody_waits_for() {
    // The compute stream waits for each copy at the end of the layer; without that, what comes next is too early.
    let unheeded = |is: fn(&Schedule, &Step) -> bool| {
        move |s: &mut Schedule| {
            let waits = |s: &Schedule, step: &Step| match step.action {
                Action::Wait(on) => step.stream == Stream::Compute && is(s, &s.steps[on.0]),
                _ => false,
            };
            while s.steps.iter().any(|step| waits(s, step)) {
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
            |_: &Schedule, step: &Step| matches!(step.action, Action::Wait(_)) && step.stream == Stream::Offload;
        while s.steps.iter().any(|step| waits(s, step)) {
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
        let block = compute(s, at).operands[0].block;
        let copy = find(s, |_, step| matches!(step.action, Action::Offload(of, _) if of == block));
        let step = s.steps[copy].clone();
        remove(s, copy);
        insert(s, at, step);
        let writer = find(s, pass(1, Pass::Forward));
        insert(s, at, Step { stream: Stream::Offload, action: Action::Wait(StepId(writer)) });
    };
    some(&violations(hasty), |v| matches!(v, Violation::ChangedWhileCopied { .. }));
}

#[test]
fn copies_to_and_from_the_wrong_place() {
    let swapped = |s: &mut Schedule| {
        let at = find(s, prefetch);
        let Action::Prefetch(host, block) = s.steps[at].action else { unreachable!() };
        s.steps[at].action = Action::Prefetch(HostBlockId((host.0 + 1) % s.host_blocks.len()), block);
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
        s.steps[at].stream = Stream::Prefetch;
    };
    some(&violations(stream), |v| matches!(v, Violation::HostUnordered { .. }));
}

#[test]
fn operands_that_are_missing_or_something_else() {
    let missing = |s: &mut Schedule| {
        let at = find(s, pass(4, Pass::BackwardFilter));
        compute(s, at).operands.retain(|operand| operand.role != Role::Dy);
    };
    some(&violations(missing), |v| matches!(v, Violation::MissingRole { role: Role::Dy, .. }));
    let other = |s: &mut Schedule| {
        let at = find(s, pass(4, Pass::BackwardFilter));
        let operands = &mut compute(s, at).operands;
        (operands[0].block, operands[1].block) = (operands[1].block, operands[0].block);
    };
    some(&violations(other), |v| matches!(v, Violation::WrongRole { .. }));
    let access = |s: &mut Schedule| {
        let at = find(s, pass(4, Pass::Forward));
        compute(s, at).operands[0].access = Access::Write;
    };
    some(&violations(access), |v| matches!(v, Violation::WrongRole { role: Role::X(0), .. }));
}

#[test]
fn configurations_that_do_not_fit() {
    let candidate = |micro_batch, workspace| Candidate {
        algorithm: Algorithm::new("gemm"),
        micro_batch,
        time: Nanos(1),
        workspace: Bytes(workspace),
    };
    for other in [None, Some(candidate(16, 0)), Some(candidate(32, 1))] {
        let configuration = other.map(|candidate| Configuration::new(vec![candidate], DivisionCost::default()));
        let spoiled = |s: &mut Schedule| {
            let at = find(s, pass(4, Pass::Forward));
            compute(s, at).configuration.clone_from(&configuration);
        };
        some(&violations(spoiled), |v| matches!(v, Violation::WrongConfiguration { .. }));
    }
    let part = |s: &mut Schedule| {
        let at = find(s, pass(4, Pass::Forward));
        compute(s, at).samples = 0..16;
    };
    some(&violations(part), |v| matches!(v, Violation::PartOfBatch { .. }));
}

#[test]
fn passes_that_do_not_run_or_run_twice() {
    let missing = |s: &mut Schedule| {
        let at = find(s, pass(6, Pass::Update));
        remove(s, at);
    };
    some(&violations(missing), |v| matches!(v, Violation::MissingPass { pass: Pass::Update, .. }));
    let twice = |s: &mut Schedule| {
        let at = find(s, pass(6, Pass::Update));
        insert(s, at, s.steps[at].clone());
    };
    some(&violations(twice), |v| matches!(v, Violation::RunTwice { pass: Pass::Update, .. }));
}

#[test]
fn content_that_is_not_what_the_network_says() {
    // Without its rectified unit the map of `b` is not what `c` should read.
    let skipped = |s: &mut Schedule| {
        let at = find(s, pass(5, Pass::Forward));
        remove(s, at);
    };
    some(&violations(skipped), |v| matches!(v, Violation::WrongContent { role: Role::X(0), .. }));
    // Nor is its gradient complete.
    let skipped = |s: &mut Schedule| {
        let at = find(s, pass(5, Pass::BackwardData));
        remove(s, at);
    };
    some(&violations(skipped), |v| matches!(v, Violation::WrongContent { role: Role::Dy, .. }));
    // Weights that have been updated are too new for the data gradient.
    let hasty = |s: &mut Schedule| {
        let update = find(s, pass(6, Pass::Update));
        let step = s.steps[update].clone();
        remove(s, update);
        let data = find(s, pass(6, Pass::BackwardData));
        insert(s, data, step);
    };
    some(&violations(hasty), |v| matches!(v, Violation::WrongContent { role: Role::W, .. }));
}

#[test]
fn gradients_that_should_add_up() {
    let mut net = Builder::new("fork");
    let fork = net.input(Shape::flat(8)).fully_connected("a", 4).here();
    let left = net.fully_connected("b", 4).here();
    let right = net.at(fork).fully_connected("c", 4).here();
    net.add("sum", &[left, right]).softmax_loss();
    let network = net.finish().unwrap();
    let workload = Workload::new(&network, 4, Types::F32, false).unwrap();
    let mut schedule = plan(&workload, &Kernels::default(), &Costs::cpu(), &Options::default()).unwrap().schedule;
    assert_eq!(check(&workload, &schedule, Budgets::default()), []);
    let at = find(
        &schedule,
        |_, step| matches!(&step.action, Action::Compute(of) if of.operands.iter().any(|o| matches!(o.role, Role::Dx(_)) && o.access == Access::Add)),
    );
    compute(&mut schedule, at).operands.iter_mut().for_each(|operand| {
        if matches!(operand.role, Role::Dx(_)) {
            operand.access = Access::Write;
        }
    });
    let found = check(&workload, &schedule, Budgets::default());
    some(&found, |v| matches!(v, Violation::WrongContent { role: Role::Dy, .. }));
}
