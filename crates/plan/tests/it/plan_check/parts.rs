//! Parts of a mini-batch: schedules that cover every sample once pass the checker, and each fault is found, by name.

use tightfit_conv::{Candidate, Configuration, DivisionCost, Types};
use tightfit_network::{Builder, Filters, Network, Shape, Window};
use tightfit_plan::step::Cost;
use tightfit_plan::{
    Action, Block, BlockId, Budgets, Compute, CostModel, Fronts, Holding, Instruction, Mode, Options, Pass, Policy,
    Schedule, Step, Violation, Workload, check, footprint, plan,
};
use tightfit_units::Bytes;

const BATCH: usize = 8;

/// The samples of the two parts.
pub(super) const PARTS: [std::ops::Range<usize>; 2] = [0..2, 2..BATCH];

fn network() -> Network {
    let mut net = Builder::new("chain");
    net.input(Shape::image(2, 8, 8)).conv("a", Filters::new(4, 3)).relu().max_pool("pool", Window::new(2, 2));
    net.conv("b", Filters::new(4, 1)).batch_norm().relu();
    net.flatten().fully_connected("fc", 3).softmax_loss();
    net.finish().unwrap()
}

/// The configuration of a convolution for `samples` samples.
fn resized(configuration: &Configuration, samples: usize) -> Configuration {
    let parts = configuration.parts().iter().take(1).map(|one| Candidate { micro_batch: samples, ..one.clone() });
    Configuration::new(parts.collect(), DivisionCost::default())
}

/// The step, and a schedule with everything resident whose operations run in two parts if they can in one phase. The map of `a` has a block for each
/// part.
pub(super) fn divided() -> (Step, Schedule) {
    let network = network();
    let workload = Workload::new(&network, BATCH, Types::F32, Mode::Training).unwrap();
    let costs = CostModel::k40();
    let step = workload.step(&Fronts::assumed(&workload, &costs).unwrap(), &costs).unwrap();
    let options = Options { policy: Policy::Baseline, ..Options::default() };
    let mut schedule = plan(&step, &costs, &options).unwrap().schedule.into_schedule();
    let first = map_of_a(&step, &schedule);
    let second = BlockId(schedule.blocks.len());
    let each = step.tensors.iter().find(|tensor| tensor.name == "feature map a").unwrap().sample_bytes.unwrap().0;
    let offset = footprint(schedule.device_bytes.0);
    let of = &mut schedule.blocks[first.0];
    (of.samples, of.bytes) = (PARTS[0].clone(), 2 * each);
    let block = Block { samples: PARTS[1].clone(), bytes: 6 * each, offset, ..of.clone() };
    schedule.blocks.push(block);
    schedule.device_bytes = Bytes(offset + footprint(6 * each));
    let instructions = std::mem::take(&mut schedule.instructions);
    for Instruction { stream, action } in instructions {
        let both = |one: fn(BlockId) -> Action, block| {
            if block == first { vec![one(first), one(second)] } else { vec![one(block)] }
        };
        let actions = match action {
            Action::Allocate(block) => both(Action::Allocate, block),
            Action::Release(block) => both(Action::Release, block),
            Action::Compute(compute) if step.may_divide(compute.operation) => PARTS
                .map(|samples| {
                    let mut part = Compute { samples: samples.clone(), adds: samples.start > 0, ..(*compute).clone() };
                    part.configuration = part.configuration.map(|whole| resized(&whole, samples.len()));
                    let own = part.blocks.iter_mut().filter(|block| samples.start > 0 && **block == first);
                    own.for_each(|block| *block = second);
                    Action::Compute(Box::new(part))
                })
                .into(),
            other => vec![other],
        };
        schedule.instructions.extend(actions.into_iter().map(|action| Instruction { stream, action }));
    }
    (step, schedule)
}

fn map_of_a(step: &Step, schedule: &Schedule) -> BlockId {
    let is_it = |block: &Block| step.describe(block.holds) == "feature map a";
    BlockId(schedule.blocks.iter().position(is_it).unwrap())
}

fn map_block<'a>(step: &Step, schedule: &'a mut Schedule) -> &'a mut Block {
    let id = map_of_a(step, schedule);
    &mut schedule.blocks[id.0]
}

/// The checker's violations for that schedule after `fault` has spoiled it.
fn violations(fault: impl FnOnce(&Step, &mut Schedule)) -> Vec<Violation> {
    let (step, mut schedule) = divided();
    fault(&step, &mut schedule);
    check(&step, &schedule, Budgets::default())
}

/// The places of the parts of a pass.
pub(super) fn parts(step: &Step, schedule: &Schedule, layer: &str, pass: Pass) -> Vec<usize> {
    let is_it = |instruction: &Instruction| match &instruction.action {
        Action::Compute(compute) => {
            let operation = step.operation(compute.operation);
            step.group_name(compute.operation) == layer && operation.name == pass.name()
        }
        _ => false,
    };
    (0..schedule.instructions.len()).filter(|at| is_it(&schedule.instructions[*at])).collect()
}

pub(super) fn computed<'a>(
    step: &Step,
    schedule: &'a mut Schedule,
    layer: &str,
    pass: Pass,
    part: usize,
) -> &'a mut Compute {
    let at = parts(step, schedule, layer, pass)[part];
    match &mut schedule.instructions[at].action {
        Action::Compute(compute) => compute,
        other => panic!("{other:?}"),
    }
}

pub(super) fn some(violations: &[Violation], is: impl Fn(&Violation) -> bool) {
    assert!(violations.iter().any(is), "{violations:?}");
}

#[test]
fn parts_that_cover_every_sample_once_pass() {
    let (step, schedule) = divided();
    assert_eq!(check(&step, &schedule, Budgets::default()), []);
    let count = |layer, pass| parts(&step, &schedule, layer, pass).len();
    assert_eq!([count("a", Pass::Forward), count("a", Pass::BackwardFilter), count("fc", Pass::BackwardData)], [2; 3]);
    assert_eq!([count("b.bn", Pass::Forward), count("a", Pass::Update)], [1; 2]);
    // A part may run again into the same block while its inputs are on the device.
    let mut again = schedule.clone();
    let [_, at] = parts(&step, &schedule, "pool", Pass::Forward)[..] else { panic!("two parts") };
    let mut instruction = again.instructions[at].clone();
    if let Action::Compute(compute) = &mut instruction.action {
        compute.again = true;
    }
    again.instructions.insert(at + 1, instruction.clone());
    assert_eq!(check(&step, &again, Budgets::default()), []);
    again.instructions.insert(at, instruction);
    some(&check(&step, &again, Budgets::default()), |v| matches!(v, Violation::RunTwice { .. }));
}

#[test]
fn samples_that_are_computed_twice_or_never() {
    let twice = |step: &Step, s: &mut Schedule| computed(step, s, "fc", Pass::Forward, 1).samples = 1..BATCH;
    some(&violations(twice), |v| matches!(v, Violation::RunTwice { .. }));
    let never = |step: &Step, s: &mut Schedule| computed(step, s, "fc", Pass::Forward, 1).samples = 3..BATCH;
    some(&violations(never), |v| matches!(v, Violation::Missing { .. }));
    let unread = violations(never);
    some(&unread, |v| matches!(v, Violation::NeverWritten { .. } | Violation::WrongContent { .. }));
    let none = |step: &Step, s: &mut Schedule| computed(step, s, "fc", Pass::Forward, 1).samples = 8..8;
    some(&violations(none), |v| matches!(v, Violation::PartOfBatch { .. }));
}

#[test]
fn parts_that_come_too_early() {
    // The second part of the pooling comes before the same part of the activation that it reads.
    let early = |step: &Step, s: &mut Schedule| {
        let [relu, pool] = ["a.relu", "pool"].map(|layer| parts(step, s, layer, Pass::Forward)[1]);
        s.instructions.swap(relu, pool);
    };
    some(&violations(early), |v| matches!(v, Violation::WrongContent { operand: 0, .. }));
}

#[test]
fn sums_over_samples_that_are_not_whole() {
    let overwritten = |step: &Step, s: &mut Schedule| computed(step, s, "a", Pass::BackwardFilter, 1).adds = false;
    some(&violations(overwritten), |v| matches!(v, Violation::WrongContent { .. }));
    let to_the_last_step = |step: &Step, s: &mut Schedule| computed(step, s, "a", Pass::BackwardFilter, 0).adds = true;
    some(&violations(to_the_last_step), |v| matches!(v, Violation::WrongContent { .. }));
    let early = |step: &Step, s: &mut Schedule| {
        let (part, update) = (parts(step, s, "a", Pass::BackwardFilter)[1], parts(step, s, "a", Pass::Update)[0]);
        s.instructions.swap(part, update);
    };
    some(&violations(early), |v| matches!(v, Violation::WrongContent { operand: 1, .. }));
}

#[test]
fn operations_that_need_the_whole_mini_batch() {
    for (layer, pass) in [("b.bn", Pass::Forward), ("b.bn", Pass::BackwardData), ("b", Pass::Update)] {
        let part = |step: &Step, s: &mut Schedule| {
            let at = parts(step, s, layer, pass)[0];
            let mut second = s.instructions[at].clone();
            computed(step, s, layer, pass, 0).samples = PARTS[0].clone();
            if let Action::Compute(compute) = &mut second.action {
                (compute.samples, compute.adds) = (PARTS[1].clone(), true);
            }
            // Waits that name instructions behind it would name others.
            assert!(!s.instructions.iter().any(|instruction| matches!(instruction.action, Action::Wait(_))));
            s.instructions.insert(at + 1, second);
        };
        let found = violations(part);
        let parts = found.iter().filter(|v| matches!(v, Violation::PartOfBatch { .. })).count();
        assert_eq!(parts, 2, "{layer} {}: {found:?}", pass.name());
    }
}

#[test]
fn blocks_of_other_samples() {
    let swapped = |step: &Step, s: &mut Schedule| {
        let blocks = s.blocks.clone();
        let other = map_of_a(step, s);
        for block in &mut computed(step, s, "a", Pass::Forward, 1).blocks {
            let is_map = step.describe(blocks[block.0].holds) == "feature map a";
            *block = if is_map { other } else { *block };
        }
    };
    some(&violations(swapped), |v| matches!(v, Violation::OtherSamples { .. }));
    let beyond = |step: &Step, s: &mut Schedule| computed(step, s, "fc", Pass::Forward, 1).samples = 2..BATCH + 1;
    some(&violations(beyond), |v| matches!(v, Violation::OtherSamples { operand: 0, .. }));
    let small = |step: &Step, s: &mut Schedule| map_block(step, s).bytes -= 4;
    some(&violations(small), |v| matches!(v, Violation::TooSmall { .. }));
    for samples in [0..0, 7..9] {
        let wrong = |step: &Step, s: &mut Schedule| map_block(step, s).samples = samples.clone();
        some(&violations(wrong), |v| matches!(v, Violation::Samples { .. }));
    }
    // Weights have no samples.
    let weights = |_: &Step, s: &mut Schedule| {
        let block = s.blocks.iter_mut().find(|block| block.resident).unwrap();
        block.samples = PARTS[0].clone();
    };
    some(&violations(weights), |v| matches!(v, Violation::Samples { .. }));
}

#[test]
fn configurations_for_other_samples() {
    let whole = |step: &Step, s: &mut Schedule| {
        let compute = computed(step, s, "a", Pass::Forward, 0);
        compute.configuration = compute.configuration.as_ref().map(|part| resized(part, BATCH));
    };
    some(&violations(whole), |v| matches!(v, Violation::WrongConfiguration { .. }));
}

#[test]
fn results_that_are_lost_for_some_samples() {
    let lost = |step: &Step, s: &mut Schedule| {
        let result = |block: &Block| matches!(block.holds, Holding::Tensor(id) if step.tensor(id).is_result);
        let at = s.blocks.iter().position(result).unwrap();
        let (id, offset) = (BlockId(s.blocks.len()), s.blocks[at].offset);
        s.blocks.push(Block { offset, ..s.blocks[map_of_a(step, s).0].clone() });
        let stream = s.instructions[0].stream;
        s.instructions.push(Instruction { stream, action: Action::Allocate(id) });
        s.instructions.push(Instruction { stream, action: Action::Release(id) });
    };
    some(&violations(lost), |v| matches!(v, Violation::ResultLost { .. }));
}

#[test]
fn a_part_takes_its_share_and_a_launch() {
    let (step, schedule) = divided();
    let launch = CostModel::k40().launch;
    let times = |layer, pass| -> Vec<u64> {
        let places = parts(&step, &schedule, layer, pass).into_iter();
        let compute = |at: usize| match &schedule.instructions[at].action {
            Action::Compute(compute) => compute.clone(),
            other => panic!("{other:?}"),
        };
        let whole = |part: &Compute| Compute { samples: 0..BATCH, ..part.clone() };
        places
            .map(compute)
            .flat_map(|part| [step.time(&part, launch), step.time(&whole(&part), launch)])
            .map(|time| time.0)
            .collect()
    };
    let [first, whole, second, same] = times("pool", Pass::Forward)[..] else { panic!("two parts") };
    assert_eq!(whole, same);
    assert!(launch.0 < first && first < second && second < whole, "{first} {second} of {whole}");
    // A quarter and three quarters of the time without the launch; fractions of a nanosecond count as one.
    assert!((whole + launch.0..=whole + launch.0 + 2).contains(&(first + second)), "{first} {second} of {whole}");
    // The time of a configuration counts unchanged (the test gives every part the whole time), plus a share of the bias.
    let [first, whole, second, same] = times("a", Pass::Forward)[..] else { panic!("two parts") };
    let bias = step.operations.iter().find_map(|operation| match &operation.cost {
        Cost::Choice(front) => Some(front.besides.0).filter(|bias| *bias > 0),
        Cost::Fixed(_) | Cost::Listed(_) => None,
    });
    let own = whole - bias.expect("the first convolution has a bias");
    assert_eq!(whole, same);
    assert!(own < first && first < second && second < whole, "{own} {first} {second} of {whole}");
    assert!(
        (whole + own + launch.0..=whole + own + launch.0 + 2).contains(&(first + second)),
        "{own} {first} {second} {whole}"
    );
}
