//! The simulator on schedules small enough to follow by hand, and against sums that any run must obey.

use tightfit_core::network::{Builder, LayerId, Network, Shape};
use tightfit_core::plan::{
    Access, Action, Block, BlockId, Compute, Costs, HostBlock, HostBlockId, Kernels, Kind, Operand, Options, Pass,
    Policy, Role, Schedule, Span, Step, StepId, Stream, Tensor, Workload, plan, simulate,
};
use tightfit_core::{Bytes, Nanos, Types};

/// Rates of one byte a nanosecond alone and half a byte each way at once; layers take what is measured, in nanoseconds.
fn costs(network: &Network, forward: &[(usize, u64)]) -> Costs {
    let costs = Costs { offload_rate: 1e9, prefetch_rate: 1e9, both_rate: 0.5e9, launch: Nanos(0), ..Costs::cpu() };
    forward.iter().fold(costs, |costs, &(layer, ns)| costs.with_measured(id(network, layer), Pass::Forward, Nanos(ns)))
}

fn id(network: &Network, layer: usize) -> LayerId {
    network.iter().map(|(id, _)| id).nth(layer).unwrap()
}

/// input, fc, relu.
fn network() -> Network {
    let mut net = Builder::new("three");
    net.input(Shape::flat(64)).fully_connected("fc", 64).relu();
    net.finish().unwrap()
}

fn step(stream: Stream, action: Action) -> Step {
    Step { stream, action }
}

fn compute(network: &Network, layer: usize, block: usize) -> Step {
    let compute = Compute {
        layer: id(network, layer),
        pass: Pass::Forward,
        operands: vec![Operand { role: Role::Y, block: BlockId(block), access: Access::Write }],
        samples: 0..1,
        configuration: None,
        again: false,
    };
    step(Stream::Compute, Action::Compute(Box::new(compute)))
}

/// Two blocks of 256 bytes; the steps as given.
fn schedule(workload: &Workload<'_>, steps: Vec<Step>) -> Schedule {
    let map = |layer| Tensor::FeatureMap(workload.maps.written_by(id(workload.network, layer)));
    let block = |tensor, offset| Block { tensor, offset, bytes: 200, samples: 0..1, resident: false };
    let host = |offset| HostBlock { tensor: map(0), offset, bytes: 200 };
    Schedule {
        batch: 1,
        types: Types::F32,
        device_bytes: Bytes(512),
        host_bytes: Bytes(512),
        blocks: vec![block(map(0), 0), block(map(1), 256)],
        host_blocks: vec![host(0), host(256)],
        steps,
    }
}

fn span(start: u64, end: u64) -> Span {
    Span { start: Nanos(start), end: Nanos(end) }
}

/// ```text
/// compute   |--100--|-50-|.....|-30-|     allocates 0, allocates 1, waits for the copy, releases 0
/// offload           |----200---|
/// ```
#[test]
fn a_copy_beside_a_layer_and_a_wait_for_it() {
    let network = network();
    let workload = Workload::new(&network, 1, Types::F32, true).unwrap();
    let (compute_stream, offload) = (Stream::Compute, Stream::Offload);
    let steps = vec![
        step(compute_stream, Action::Allocate(BlockId(0))),
        compute(&network, 0, 0),
        step(offload, Action::Wait(StepId(1))),
        step(offload, Action::Offload(BlockId(0), HostBlockId(0))),
        step(compute_stream, Action::Allocate(BlockId(1))),
        compute(&network, 1, 1),
        step(compute_stream, Action::Wait(StepId(3))),
        step(compute_stream, Action::Release(BlockId(0))),
        compute(&network, 2, 1),
        step(compute_stream, Action::Release(BlockId(1))),
    ];
    let schedule = schedule(&workload, steps);
    let simulation = simulate(&workload, &schedule, &costs(&network, &[(0, 100), (1, 50), (2, 30)]));
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
    assert_eq!((simulation.stalls[0].step, simulation.stalls[0].waits_for), (StepId(6), StepId(3)));
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
    let network = network();
    let workload = Workload::new(&network, 1, Types::F32, true).unwrap();
    let copies = |prefetch| {
        vec![
            step(Stream::Offload, Action::Offload(BlockId(0), HostBlockId(0))),
            step(prefetch, Action::Prefetch(HostBlockId(1), BlockId(1))),
        ]
    };
    let costs = costs(&network, &[]);
    let both = simulate(&workload, &schedule(&workload, copies(Stream::Prefetch)), &costs);
    assert_eq!(both.spans, [span(0, 400), span(0, 400)]);
    assert_eq!(both.copying, Nanos(400));
    let one_stream = simulate(&workload, &schedule(&workload, copies(Stream::Offload)), &costs);
    assert_eq!(one_stream.spans, [span(0, 200), span(200, 400)]);
}

/// ```text
/// compute   |--------360--------|     260 alone: half as fast for the 200 of the copy
/// offload   |----200---|
/// ```
#[test]
fn a_copy_slows_the_layer_beside_it() {
    let network = network();
    let workload = Workload::new(&network, 1, Types::F32, true).unwrap();
    let steps = vec![step(Stream::Offload, Action::Offload(BlockId(0), HostBlockId(0))), compute(&network, 0, 1)];
    let costs = Costs { beside_copies: 1.0, ..costs(&network, &[(0, 260)]) };
    let simulation = simulate(&workload, &schedule(&workload, steps), &costs);
    assert_eq!(simulation.spans, [span(0, 200), span(0, 360)]);
    assert_eq!((simulation.compute, simulation.exposed), (Nanos(260), Nanos(100)));
}

#[test]
fn a_wait_that_never_ends_stands_still() {
    let network = network();
    let workload = Workload::new(&network, 1, Types::F32, true).unwrap();
    let steps = vec![
        step(Stream::Offload, Action::Wait(StepId(1))),
        step(Stream::Offload, Action::Offload(BlockId(0), HostBlockId(0))),
        compute(&network, 0, 0),
    ];
    let simulation = simulate(&workload, &schedule(&workload, steps), &costs(&network, &[(0, 7)]));
    assert_eq!((simulation.time, simulation.copying), (Nanos(7), Nanos(0)));
}

/// The end-of-layer synchronization costs time that free copies do not take.
#[test]
fn nothing_is_faster_than_its_computations_and_its_copies() {
    let network = Network::open("vgg16").unwrap();
    let workload = Workload::new(&network, 32, Types::F32, false).unwrap();
    // So that stalls are all that a step is longer by.
    let costs = Costs { beside_copies: 0.0, ..Costs::h200() };
    let kernels = Kernels::assumed(&workload, &costs).unwrap();
    let of = |policy, budget| {
        let options = Options { policy, budget, ..Options::default() };
        plan(&workload, &kernels, &costs, &options).unwrap()
    };
    let all = of(Policy::VdnnAll, Bytes::UNLIMITED);
    let copies = costs.copy(all.offloaded, true) + costs.copy(all.offloaded, false);
    assert!(all.step_time > all.simulation.compute);
    assert!(all.simulation.copying >= copies, "{} of {copies}", all.simulation.copying);
    assert!(all.step_time <= all.simulation.compute + all.simulation.copying);
    let stalled: Nanos = all.simulation.stalls.iter().map(|stall| stall.span.end - stall.span.start).sum();
    assert_eq!(all.simulation.exposed, stalled);
}
