//! The simulator on schedules small enough to follow by hand, and against sums that any run must obey.

use tightfit_conv::Types;
use tightfit_network::Network;
use tightfit_plan::step::{
    Access, Again, Cost, Group, GroupId, Mode, Operation, OperationId, Phase, Rerun, Residence, Resource, Stage, Step,
    Tag, Tensor, TensorId, Use,
};
use tightfit_plan::{
    Action, Block, BlockId, Compute, CostModel, Direction, Fronts, Holding, HostBlock, HostBlockId, Instruction,
    InstructionId, Kind, Options, Policy, Schedule, Span, Stream, Workload, plan, simulate,
};
use tightfit_units::{Bytes, Nanos};

/// Rates of one byte a nanosecond alone and half a byte each way at once.
fn costs() -> CostModel {
    CostModel { offload_rate: 1e9, prefetch_rate: 1e9, both_rate: 0.5e9, launch: Nanos(0), ..CostModel::cpu() }
}

/// Two maps of 200 bytes, and three operations that write the first, the second, and the second again, which take so
/// many nanoseconds.
fn small(times: [u64; 3]) -> Step {
    let tensor = |name: &str| Tensor {
        name: name.to_owned(),
        bytes: Bytes(200),
        kind: Kind::FeatureMaps,
        residence: Residence::Movable,
        is_result: false,
        groups: Vec::new(),
        alias: None,
        in_place_of: None,
        sample_bytes: None,
    };
    let operation = |(place, time): (usize, u64)| Operation {
        group: GroupId(0),
        name: format!("operation {place}"),
        stage: Stage::Forward,
        tag: Tag::Other,
        resource: Resource::Device,
        uses: vec![Use { tensor: TensorId(place.min(1)), access: Access::Write, rerun: Rerun::Same }],
        cost: Cost::Fixed(Nanos(time)),
        again: Again::Never,
        independent_samples: false,
        sums: None,
        workspaces: Vec::new(),
    };
    let group = Group { name: "all".to_owned(), input: Bytes::ZERO, output: Bytes::ZERO, weights: Bytes::ZERO };
    let step = Step {
        name: "three".to_owned(),
        batch: 1,
        types: Types::F32,
        mode: Mode::Inference,
        tensors: vec![tensor("first"), tensor("second")],
        operations: times.into_iter().enumerate().map(operation).collect(),
        groups: vec![group],
    };
    step.check().unwrap();
    step
}

fn step(stream: Stream, action: Action) -> Instruction {
    Instruction { stream, action }
}

fn compute(operation: usize) -> Instruction {
    let compute = Compute {
        operation: OperationId(operation),
        phase: Phase::Whole,
        blocks: vec![BlockId(operation.min(1))],
        workspace: None,
        samples: 0..1,
        configuration: None,
        again: false,
        adds: false,
    };
    step(Stream::Compute, Action::Compute(Box::new(compute)))
}

/// Two blocks of 256 bytes; the instructions as given.
fn schedule(instructions: Vec<Instruction>) -> Schedule {
    let holds = |tensor| Holding::Tensor(TensorId(tensor));
    let block = |tensor, offset| Block { holds: holds(tensor), offset, bytes: 200, samples: 0..1, resident: false };
    let host = |offset| HostBlock { tensor: TensorId(0), offset, bytes: 200 };
    Schedule {
        batch: 1,
        types: Types::F32,
        device_bytes: Bytes(512),
        host_bytes: Bytes(512),
        blocks: vec![block(0, 0), block(1, 256)],
        host_blocks: vec![host(0), host(256)],
        instructions,
    }
}

fn span(start: u64, end: u64) -> Span {
    Span { start: Nanos(start), end: Nanos(end) }
}

/// ```text
/// compute   |--100 at 5/8--|-- 50 alone --|-30-|     waits for the lane
/// lane 2    |--50 at 5/8---|
/// ```
#[test]
fn lanes_share_the_device() {
    let beside = |operation: usize| Instruction { stream: Stream::Lane2, ..compute(operation) };
    let steps = vec![compute(0), beside(1), step(Stream::Compute, Action::Wait(InstructionId(1))), compute(2)];
    let costs = CostModel { side_by_side: 1.25, ..costs() };
    let simulation = simulate(&small([100, 50, 30]), &schedule(steps.clone()), &costs);
    assert_eq!(simulation.spans, [span(0, 130), span(0, 80), span(130, 130), span(130, 160)]);
    assert_eq!((simulation.time, simulation.compute), (Nanos(160), Nanos(160)));
    assert!(simulation.stalls.is_empty(), "only waits for copies count");
    let never = CostModel { side_by_side: 1.0, ..costs };
    let simulation = simulate(&small([100, 50, 30]), &schedule(steps), &never);
    assert_eq!((simulation.time, simulation.compute), (Nanos(180), Nanos(180)));
}

/// ```text
/// compute   |--100--|-50-|.....|-30-|     allocates 0, allocates 1, waits for the copy, releases 0
/// offload           |----200---|
/// ```
#[test]
fn a_copy_beside_a_layer_and_a_wait_for_it() {
    let (compute_stream, offload) = (Stream::Compute, Stream::Offload);
    let steps = vec![
        step(compute_stream, Action::Allocate(BlockId(0))),
        compute(0),
        step(offload, Action::Wait(InstructionId(1))),
        step(offload, Action::Offload(BlockId(0), HostBlockId(0))),
        step(compute_stream, Action::Allocate(BlockId(1))),
        compute(1),
        step(compute_stream, Action::Wait(InstructionId(3))),
        step(compute_stream, Action::Release(BlockId(0))),
        compute(2),
        step(compute_stream, Action::Release(BlockId(1))),
    ];
    let simulation = simulate(&small([100, 50, 30]), &schedule(steps), &costs());
    let spans = [
        (0, 0),
        (0, 100),
        (0, 100),
        (100, 300),
        (100, 100),
        (100, 150),
        (150, 300),
        (300, 300),
        (300, 330),
        (330, 330),
    ];
    assert_eq!(simulation.spans, spans.map(|(start, end)| span(start, end)));
    assert_eq!((simulation.time, simulation.compute, simulation.copying), (Nanos(330), Nanos(180), Nanos(200)));
    assert_eq!(simulation.exposed, Nanos(150));
    assert_eq!(simulation.stalls.len(), 1);
    assert_eq!(
        (simulation.stalls[0].instruction, simulation.stalls[0].waits_for),
        (InstructionId(6), InstructionId(3))
    );
    assert_eq!(simulation.stalls[0].span, span(150, 300));
    let levels: Vec<(u64, u64)> =
        simulation.levels.iter().map(|level| (level.at.0, level.live.get(Kind::FeatureMaps).0)).collect();
    assert_eq!(levels, [(0, 0), (0, 256), (100, 512), (300, 256), (330, 0)]);
    // 256 bytes for 100 ns, 512 for 200, 256 for 30.
    assert_eq!(simulation.average(|live| live.total()), Bytes((256 * 100 + 512 * 200 + 256 * 30) / 330));
    assert_eq!(simulation.maximum(|live| live.total()), Bytes(512));
}

/// Both directions at once go half as fast: 200 bytes out from 0, 200 in from 0, both end at 400.
#[test]
fn copies_both_ways_slow_each_other() {
    let copies = |prefetch| {
        vec![
            step(Stream::Offload, Action::Offload(BlockId(0), HostBlockId(0))),
            step(prefetch, Action::Prefetch(HostBlockId(1), BlockId(1))),
        ]
    };
    let both = simulate(&small([0; 3]), &schedule(copies(Stream::Prefetch)), &costs());
    assert_eq!(both.spans, [span(0, 400), span(0, 400)]);
    assert_eq!(both.copying, Nanos(400));
    let one_stream = simulate(&small([0; 3]), &schedule(copies(Stream::Offload)), &costs());
    assert_eq!(one_stream.spans, [span(0, 200), span(200, 400)]);
}

/// ```text
/// compute   |--------360--------|     260 alone: half as fast for the 200 of the copy
/// offload   |----200---|
/// ```
#[test]
fn a_copy_slows_the_layer_beside_it() {
    let steps = vec![step(Stream::Offload, Action::Offload(BlockId(0), HostBlockId(0))), compute(0)];
    let costs = CostModel { beside_copies: 1.0, ..costs() };
    let simulation = simulate(&small([260, 0, 0]), &schedule(steps), &costs);
    assert_eq!(simulation.spans, [span(0, 200), span(0, 360)]);
    assert_eq!((simulation.compute, simulation.exposed), (Nanos(260), Nanos(100)));
}

#[test]
fn endless_waits_leave_streams_unfinished() {
    let steps = vec![
        step(Stream::Offload, Action::Wait(InstructionId(1))),
        step(Stream::Offload, Action::Offload(BlockId(0), HostBlockId(0))),
        compute(0),
    ];
    let simulation = simulate(&small([7, 0, 0]), &schedule(steps), &costs());
    assert_eq!((simulation.time, simulation.copying), (Nanos(7), Nanos(0)));
}

/// The end-of-layer synchronization costs time that free copies do not take.
#[test]
fn steps_take_at_least_their_computations_and_copies() {
    let network = Network::open("vgg16").unwrap();
    let workload = Workload::new(&network, 32, Types::F32, Mode::Training).unwrap();
    // So that stalls are all that a step is longer by.
    let costs = CostModel { beside_copies: 0.0, ..CostModel::h200() };
    let kernels = Fronts::assumed(&workload, &costs).unwrap();
    let planned = |policy, budget| {
        let options = Options { policy, budget, ..Options::default() };
        plan(&workload.step(&kernels, &costs).unwrap(), &costs, &options).unwrap()
    };
    let all = planned(Policy::VdnnAll, Bytes::UNLIMITED);
    let copies = costs.copy(Direction::ToHost, all.offloaded) + costs.copy(Direction::FromHost, all.offloaded);
    assert!(all.step_time > all.simulation.compute);
    assert!(all.simulation.copying >= copies, "{} of {copies}", all.simulation.copying);
    assert!(all.step_time <= all.simulation.compute + all.simulation.copying);
    let stalled: Nanos = all.simulation.stalls.iter().map(|stall| stall.span.end - stall.span.start).sum();
    assert_eq!(all.simulation.exposed, stalled);
}
