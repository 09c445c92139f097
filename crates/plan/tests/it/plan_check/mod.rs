//! The checker of schedules: good ones pass, and each fault is found, by name.

mod copies;
mod parts;
mod reruns;
mod sums;

use tightfit_conv::{Algorithm, Candidate, Configuration, DivisionCost, Types};
use tightfit_network::{Builder, Filters, Network, Shape, Window};
use tightfit_plan::step::OperationId;
use tightfit_plan::{
    Access, Action, BlockId, Budgets, Checked, Compute, CostModel, Fronts, Holding, HostBlockId, Instruction,
    InstructionId, Kind, Mode, NetworkTensor, Options, Pass, Policy, Role, Schedule, Step, Stream, TensorId, Violation,
    Workload, check, plan,
};
use tightfit_units::{Bytes, Error, Nanos};

fn network() -> Network {
    let mut net = Builder::new("chain");
    net.input(Shape::image(2, 8, 8)).conv("a", Filters::new(4, 3)).relu().max_pool("pool", Window::new(2, 2));
    net.conv("b", Filters::new(4, 1)).relu().conv("c", Filters::new(4, 1)).relu();
    net.flatten().fully_connected("fc", 3).dropout(0.5).softmax_loss();
    net.finish().unwrap()
}

/// The checker's violations for a plan of the network under vDNN's policy for all maps, after `fault` has spoiled it.
fn violations(fault: impl FnOnce(&mut Schedule)) -> Vec<Violation> {
    violations_within(Budgets::default(), fault)
}

fn violations_within(budgets: Budgets, fault: impl FnOnce(&mut Schedule)) -> Vec<Violation> {
    let network = network();
    let workload = Workload::new(&network, 32, Types::F32, Mode::Training).unwrap();
    let step = step_of(&workload);
    let options = Options { policy: Policy::VdnnAll, ..Options::default() };
    let mut schedule = plan(&step, &CostModel::h200(), &options).unwrap().schedule.into_schedule();
    fault(&mut schedule);
    check(&step, &schedule, budgets)
}

fn step_of(workload: &Workload<'_>) -> Step {
    workload.step(&Fronts::assumed(workload, &CostModel::h200()).unwrap(), &CostModel::h200()).unwrap()
}

/// The roles of the blocks of a pass for its layer.
fn roles(operation: OperationId) -> Vec<Role> {
    let network = network();
    let workload = Workload::new(&network, 32, Types::F32, Mode::Training).unwrap();
    workload.lower().unwrap().passes[operation.0].roles.clone()
}

/// Which of the uses of a pass has this role.
fn place(operation: OperationId, role: Role) -> usize {
    roles(operation).iter().position(|known| *known == role).unwrap()
}

/// The pass of the layer of this place, as an operation.
fn operation(layer: usize, pass: Pass) -> OperationId {
    let network = network();
    let workload = Workload::new(&network, 32, Types::F32, Mode::Training).unwrap();
    let passes = workload.lower().unwrap().passes;
    OperationId(passes.iter().position(|one| one.layer.index() == layer && one.pass == pass).unwrap())
}

/// The kind of content of a block.
fn kind(holds: Holding) -> Kind {
    let network = network();
    step_of(&Workload::new(&network, 32, Types::F32, Mode::Training).unwrap()).kind(holds)
}

/// The position of the first instruction for which `is` holds.
fn find(schedule: &Schedule, is: impl Fn(&Schedule, &Instruction) -> bool) -> usize {
    schedule.instructions.iter().position(|step| is(schedule, step)).expect("there is such a step")
}

fn offload(_: &Schedule, step: &Instruction) -> bool {
    matches!(step.action, Action::Offload(..))
}

fn prefetch(_: &Schedule, step: &Instruction) -> bool {
    matches!(step.action, Action::Prefetch(..))
}

/// Whether it is a pass of the layer of this place.
fn pass(layer: usize, pass: Pass) -> impl Fn(&Schedule, &Instruction) -> bool {
    let operation = operation(layer, pass);
    move |_, step| matches!(&step.action, Action::Compute(of) if of.operation == operation)
}

fn compute(schedule: &mut Schedule, at: usize) -> &mut Compute {
    match &mut schedule.instructions[at].action {
        Action::Compute(compute) => compute,
        other => panic!("{other:?} is no computation"),
    }
}

/// Takes a step out, and points the waits after it to where their steps are now; those for itself to the step before.
fn remove(schedule: &mut Schedule, at: usize) {
    schedule.instructions.remove(at);
    for step in &mut schedule.instructions {
        if let Action::Wait(on) = &mut step.action
            && on.0 >= at
        {
            on.0 -= 1;
        }
    }
}

/// Inserts an instruction before position `at`.
fn insert(schedule: &mut Schedule, at: usize, step: Instruction) {
    for step in &mut schedule.instructions {
        if let Action::Wait(on) = &mut step.action
            && on.0 >= at
        {
            on.0 += 1;
        }
    }
    schedule.instructions.insert(at, step);
}

fn block_of(schedule: &Schedule, at: usize) -> BlockId {
    match schedule.instructions[at].action {
        Action::Offload(block, _) | Action::Prefetch(_, block) | Action::Allocate(block) | Action::Release(block) => {
            block
        }
        _ => panic!("a step without a block of its own"),
    }
}

fn some(violations: &[Violation], is: impl Fn(&Violation) -> bool) {
    assert!(violations.iter().any(is), "{violations:#?}");
}

/// Whether an operation reads something else as its operand of this role.
fn wrong_content(violation: &Violation, role: Role) -> bool {
    matches!(violation, Violation::WrongContent { operation, operand, .. } if roles(*operation)[*operand] == role)
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
    some(
        &violations(|s| s.blocks[3].holds = Holding::Tensor(TensorId(999))),
        |v| matches!(v, Violation::NoSuch { what, .. } if what.contains("TensorId(999)")),
    );
    some(&violations(|s| s.blocks[3].resident = !s.blocks[3].resident), |v| {
        matches!(v, Violation::Residence { block: BlockId(3), .. })
    });
}

#[test]
fn steps_that_name_missing_objects() {
    some(
        &violations(|s| {
            s.instructions.push(Instruction { stream: Stream::Compute, action: Action::Release(BlockId(999)) })
        }),
        |v| matches!(v, Violation::NoSuch { what, .. } if what == "block 999"),
    );
    let later = |s: &mut Schedule| {
        let at = find(s, |_, step| matches!(step.action, Action::Wait(_)));
        s.instructions[at].action = Action::Wait(InstructionId(at));
    };
    some(
        &violations(later),
        |v| matches!(v, Violation::NoSuch { what, .. } if what.starts_with("earlier instruction")),
    );
    let host = |s: &mut Schedule| {
        let at = find(s, offload);
        s.instructions[at].action = Action::Offload(block_of(s, at), HostBlockId(77));
    };
    some(&violations(host), |v| matches!(v, Violation::NoSuch { what, .. } if what == "host block 77"));
}

#[test]
fn work_on_the_wrong_stream() {
    let moved = |s: &mut Schedule| {
        let at = find(s, offload);
        s.instructions[at].stream = Stream::Compute;
    };
    some(&violations(moved), |v| matches!(v, Violation::WrongStream { stream: Stream::Compute, .. }));
    let moved = |s: &mut Schedule| {
        let at = find(s, pass(4, Pass::Forward));
        s.instructions[at].stream = Stream::Prefetch;
    };
    some(&violations(moved), |v| matches!(v, Violation::WrongStream { stream: Stream::Prefetch, .. }));
}

#[test]
fn missing_prefetches_are_found() {
    let forgotten = |s: &mut Schedule| {
        let at = find(s, prefetch);
        remove(s, at);
    };
    some(
        &violations(forgotten),
        |v| matches!(v, Violation::NeverWritten { holds, .. } if kind(*holds) == Kind::FeatureMaps),
    );
}

#[test]
fn use_of_unallocated_blocks_is_found() {
    let early = |s: &mut Schedule| {
        let written = find(s, pass(1, Pass::Forward));
        let block = compute(s, written).blocks[place(operation(1, Pass::Forward), Role::Y)];
        let release = find(s, |_, step| matches!(step.action, Action::Release(of) if of == block));
        remove(s, release);
        insert(s, written + 1, Instruction { stream: Stream::Compute, action: Action::Release(block) });
    };
    some(&violations(early), |v| matches!(v, Violation::NotLive { holds, .. } if kind(*holds) == Kind::FeatureMaps));
    let twice = |s: &mut Schedule| {
        let at = find(s, |_, step| matches!(step.action, Action::Allocate(_)));
        insert(s, at, s.instructions[at].clone());
    };
    some(&violations(twice), |v| matches!(v, Violation::AllocatedTwice { .. }));
}

#[test]
fn a_block_that_is_never_released() {
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
        let blocks = compute(s, at).blocks.clone();
        s.blocks[blocks[1].0].offset = s.blocks[blocks[0].0].offset;
    };
    some(&violations(moved), |v| matches!(v, Violation::Overlap { .. }));
    let resident = |s: &mut Schedule| {
        let weights: Vec<usize> = (0..s.blocks.len()).filter(|&block| s.blocks[block].resident).collect();
        s.blocks[weights[1]].offset = s.blocks[weights[0]].offset;
    };
    some(&violations(resident), |v| matches!(v, Violation::Overlap { .. }));
}

#[test]
fn a_resident_tensor_in_two_blocks() {
    // The update of `c` takes its momentum from a second block, with separate bytes.
    let doubled = |s: &mut Schedule| {
        let at = find(s, pass(6, Pass::Update));
        let place = place(operation(6, Pass::Update), Role::Momentum);
        let first = compute(s, at).blocks[place];
        let mut second = s.blocks[first.0].clone();
        second.offset = s.device_bytes.0;
        s.device_bytes = Bytes(s.device_bytes.0 + second.bytes.next_multiple_of(256));
        compute(s, at).blocks[place] = BlockId(s.blocks.len());
        s.blocks.push(second);
    };
    let found = violations(doubled);
    assert!(
        matches!(found[..], [Violation::ResidentTwice { holds, .. }] if kind(holds) == Kind::Momentum),
        "{found:#?}"
    );
}

/// Releases the probabilities as soon as `last` has run. A later block takes their bytes if `is_taken`.
fn results_taken(workload: &Workload<'_>, last: (usize, Pass), is_taken: bool) -> Vec<Violation> {
    let step = step_of(workload);
    let options = Options { policy: Policy::VdnnAll, ..Options::default() };
    let mut schedule = plan(&step, &CostModel::h200(), &options).unwrap().schedule.into_schedule();
    let at = find(&schedule, pass(11, Pass::Forward));
    let result = compute(&mut schedule, at).blocks[place(operation(11, Pass::Forward), Role::Y)];
    let release = find(&schedule, |_, step| matches!(step.action, Action::Release(of) if of == result));
    remove(&mut schedule, release);
    let last = find(&schedule, pass(last.0, last.1));
    insert(&mut schedule, last + 1, Instruction { stream: Stream::Compute, action: Action::Release(result) });
    if is_taken {
        // A separate block that no instruction writes.
        let mut taker = schedule.blocks[result.0].clone();
        let lowered = workload.lower().unwrap();
        let labels = lowered.tensors.iter().position(|tensor| *tensor == NetworkTensor::Labels).unwrap();
        taker.holds = Holding::Tensor(TensorId(labels));
        taker.bytes = taker.bytes.max(256);
        schedule.device_bytes = Bytes(schedule.device_bytes.0 + 256);
        let block = BlockId(schedule.blocks.len());
        schedule.blocks.push(taker);
        for action in [Action::Allocate(block), Action::Release(block)] {
            schedule.instructions.push(Instruction { stream: Stream::Compute, action });
        }
    }
    check(&step, &schedule, Budgets::default())
}

#[test]
fn lost_results_are_found() {
    let network = network();
    for (mode, last) in [(Mode::Training, (11, Pass::BackwardData)), (Mode::Inference, (11, Pass::Forward))] {
        let workload = Workload::new(&network, 32, Types::F32, mode).unwrap();
        assert_eq!(results_taken(&workload, last, false), [], "nobody takes the bytes");
        let found = results_taken(&workload, last, true);
        assert!(matches!(found[..], [Violation::ResultLost { .. }]), "{found:#?}");
    }
}

#[test]
fn missing_and_wrong_operands_are_found() {
    let missing = |s: &mut Schedule| {
        let at = find(s, pass(4, Pass::BackwardFilter));
        compute(s, at).blocks.pop();
    };
    some(&violations(missing), |v| matches!(v, Violation::WrongOperands { given: 2, wanted: 3, .. }));
    let other = |s: &mut Schedule| {
        let at = find(s, pass(4, Pass::BackwardFilter));
        compute(s, at).blocks.swap(0, 1);
    };
    some(&violations(other), |v| matches!(v, Violation::WrongTensor { operand: 0, .. }));
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
}

#[test]
fn passes_that_do_not_run_or_run_twice() {
    let missing = |s: &mut Schedule| {
        let at = find(s, pass(6, Pass::Update));
        remove(s, at);
    };
    some(
        &violations(missing),
        |v| matches!(v, Violation::Missing { operation: missed } if *missed == operation(6, Pass::Update)),
    );
    let twice = |s: &mut Schedule| {
        let at = find(s, pass(6, Pass::Update));
        insert(s, at, s.instructions[at].clone());
    };
    some(
        &violations(twice),
        |v| matches!(v, Violation::RunTwice { operation: twice, .. } if *twice == operation(6, Pass::Update)),
    );
}

#[test]
fn content_that_contradicts_the_network() {
    // Without its rectified unit the map of `b` is not what `c` should read.
    let skipped = |s: &mut Schedule| {
        let at = find(s, pass(5, Pass::Forward));
        remove(s, at);
    };
    some(&violations(skipped), |v| wrong_content(v, Role::X(0)));
    // Nor is its gradient complete.
    let skipped = |s: &mut Schedule| {
        let at = find(s, pass(5, Pass::BackwardData));
        remove(s, at);
    };
    some(&violations(skipped), |v| wrong_content(v, Role::Dy));
    // Weights that have been updated are too new for the data gradient.
    let hasty = |s: &mut Schedule| {
        let update = find(s, pass(6, Pass::Update));
        let step = s.instructions[update].clone();
        remove(s, update);
        let data = find(s, pass(6, Pass::BackwardData));
        insert(s, data, step);
    };
    some(&violations(hasty), |v| wrong_content(v, Role::W));
}

#[test]
fn gradients_that_should_add_up() {
    let mut net = Builder::new("fork");
    let fork = net.input(Shape::flat(8)).fully_connected("a", 4).here();
    let left = net.fully_connected("b", 4).here();
    let right = net.at(fork).fully_connected("c", 4).here();
    net.add("sum", &[left, right]).softmax_loss();
    let network = net.finish().unwrap();
    let workload = Workload::new(&network, 4, Types::F32, Mode::Training).unwrap();
    let step = workload.step(&Fronts::default(), &CostModel::cpu()).unwrap();
    let mut schedule = plan(&step, &CostModel::cpu(), &Options::default()).unwrap().schedule.into_schedule();
    assert_eq!(check(&step, &schedule, Budgets::default()), []);
    // Of the two gradients of `a` the second, which is added to the first, is left out.
    let adds = |instruction: &Instruction| match &instruction.action {
        Action::Compute(of) => step
            .operation(of.operation)
            .uses
            .iter()
            .any(|used| used.access == Access::Add && step.tensor(used.tensor).kind == Kind::GradientMaps),
        _ => false,
    };
    let at = find(&schedule, |_, instruction| adds(instruction));
    let Action::Compute(left_out) = schedule.instructions[at].action.clone() else { unreachable!() };
    remove(&mut schedule, at);
    let found = check(&step, &schedule, Budgets::default());
    some(&found, |v| matches!(v, Violation::WrongContent { .. }));
    some(&found, |v| matches!(v, Violation::Missing { operation } if *operation == left_out.operation));
}

#[test]
fn a_plan_is_checked_against_its_step_alone() {
    let network = network();
    let workload = Workload::new(&network, 32, Types::F32, Mode::Training).unwrap();
    let step = step_of(&workload);
    let plan = plan(&step, &CostModel::h200(), &Options::default()).unwrap();
    assert_eq!(*plan.schedule.step(), workload.lower().unwrap().step);
    let other = Workload::new(&network, 31, Types::F32, Mode::Training).unwrap();
    assert_ne!(*plan.schedule.step(), other.lower().unwrap().step, "checked against another mini-batch");
    let less = Schedule { device_bytes: Bytes(plan.peak.0 - 256), ..plan.schedule.into_schedule() };
    let error = Checked::new(&step, less, Budgets::default()).unwrap_err();
    assert!(matches!(&error, Error::Unsound { what } if what.contains("Outside")), "{error}");
}
