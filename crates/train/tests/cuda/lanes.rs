//! Branches side by side: the bits equal one stream's, whichever stream is late, and a missing wait is noticed.

use tightfit_plan::{Violation, check};

use super::*;

/// A plan of these kernels whose branches run side by side, on a machine that gains by it; or the same on one stream.
fn planned(workload: &Workload<'_>, kernels: &Fronts, lanes: bool) -> Checked {
    let costs = CostModel { side_by_side: 1.9, launch: Nanos::ZERO, ..CostModel::h200() };
    let options = PlanOptions { algorithms: Algorithms::Memory, divide: false, lanes, ..PlanOptions::default() };
    let schedule = plan(&workload.step(kernels, &costs).unwrap(), &costs, &options).unwrap().schedule;
    assert_eq!(schedule.lanes() > 1, lanes);
    schedule
}

/// The mocks number streams in the order of creation: first the streams of every session, then the lanes as tasks need
/// them.
fn ordinals(schedule: &Schedule) -> Vec<Stream> {
    let mut order = vec![Stream::Compute, Stream::Offload, Stream::Prefetch];
    for instruction in &schedule.instructions {
        if matches!(instruction.action, Action::Compute(_)) && !order.contains(&instruction.stream) {
            order.push(instruction.stream);
        }
    }
    order
}

/// Three steps with poison: an early read, or a read of bytes with another owner, is NaN.
fn steps(workload: &Workload<'_>, schedule: &Checked, machine: CudaMachine) -> Result<Vec<bits::Step>, Error> {
    let observed = Observation::of(workload, schedule)?;
    let mut engine = Engine::new(workload, &observed.schedule, machine, Solver::default(), Poison::Freed)?;
    bits::bits(&mut engine, &observed, (0..3).map(|step| batch(workload, step))).map(|(steps, _)| steps)
}

#[test]
fn lanes_give_the_bits_of_one_stream_whichever_is_late() {
    for network in [fork_and_join(), sums()] {
        let workload = Workload::new(&network, 2, Types::F32, Mode::Training).unwrap();
        let mocks = Mocks::new();
        let kernels = kernels(&workload, &mocks.options());
        let machine = |graph| CudaMachine::open(&mocks.options(), Modes { graph, ..Modes::default() }).unwrap();
        let want = steps(&workload, &planned(&workload, &kernels, false), machine(false)).unwrap();
        let schedule = planned(&workload, &kernels, true);
        for late in (0..ordinals(&schedule).len() as u64).map(Some).chain([None]) {
            for graph in [false, true] {
                mocks.reset();
                late.iter().for_each(|&ordinal| mocks.delay_stream(ordinal, 300));
                let same = steps(&workload, &schedule, machine(graph)).unwrap() == want;
                assert!(same, "{}, late {late:?}, graph {graph}", network.name());
                mocks.assert_nothing_left("a plan with lanes");
            }
        }
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn lanes_give_the_bits_of_one_stream_on_a_gpu() {
    let options = Options::default();
    for network in [fork_and_join(), sums()] {
        let workload = Workload::new(&network, BATCH, Types::F32, Mode::Training).unwrap();
        let kernels = kernels(&workload, &options);
        let machine = |graph| CudaMachine::open(&options, Modes { graph, ..Modes::default() }).unwrap();
        let want = steps(&workload, &planned(&workload, &kernels, false), machine(false)).unwrap();
        for graph in [false, true] {
            let same = steps(&workload, &planned(&workload, &kernels, true), machine(graph)).unwrap() == want;
            assert!(same, "{}, graph {graph}", network.name());
        }
    }
}

/// The schedule without an instruction.
fn without(schedule: &Schedule, at: usize) -> Schedule {
    let mut schedule = schedule.clone();
    schedule.instructions.remove(at);
    for instruction in &mut schedule.instructions {
        if let Action::Wait(on) = &mut instruction.action
            && on.0 > at
        {
            on.0 -= 1;
        }
    }
    schedule
}

#[test]
fn a_missing_wait_between_lanes_is_refused_and_changes_the_gradients() {
    let network = fork_and_join();
    let workload = Workload::new(&network, 2, Types::F32, Mode::Training).unwrap();
    let step = workload.lower().unwrap().step;
    let mocks = Mocks::new();
    let schedule = planned(&workload, &kernels(&workload, &mocks.options()), true);
    let machine = || CudaMachine::open(&mocks.options(), Modes::default()).unwrap();
    let want = steps(&workload, &schedule, machine()).unwrap();
    let [mut refused, mut spare] = [0; 2];
    for (at, instruction) in schedule.instructions.iter().enumerate() {
        let Action::Wait(on) = instruction.action else { continue };
        let broken = without(&schedule, at);
        let found = check(&step, &broken, Budgets::default());
        if found.is_empty() {
            // Where blocks lie, nothing is accessed too early without it.
            spare += 1;
            continue;
        }
        assert!(found.iter().any(|violation| matches!(violation, Violation::Unordered { .. })), "{at}: {found:?}");
        refused += 1;
        mocks.reset();
        let late = schedule.instructions[on.0].stream;
        let ordinal = ordinals(&schedule).iter().position(|stream| *stream == late).unwrap();
        mocks.delay_stream(ordinal as u64, 1000);
        let got = steps(&workload, &Checked::assume(&step, broken), machine());
        assert!(got.is_err() || got.is_ok_and(|got| got != want), "without the wait at {at}, {instruction:?}");
    }
    assert!(refused > 10 && spare < 6, "{refused} refused, {spare} spare");
}

#[test]
fn a_lane_opens_once_for_all_schedules_and_has_its_own_spans() {
    let network = fork_and_join();
    let workload = Workload::new(&network, 2, Types::F32, Mode::Training).unwrap();
    let mocks = Mocks::new();
    let schedule = planned(&workload, &kernels(&workload, &mocks.options()), true);
    mocks.reset();
    let mut machine = CudaMachine::open(&mocks.options(), Modes { trace: true, ..Modes::default() }).unwrap();
    for _ in 0..2 {
        let solver = Solver::default();
        let mut engine = Engine::new(&workload, &schedule, &mut machine, solver, Poison::Nothing).unwrap();
        let (samples, labels) = batch(&workload, 0);
        engine.step(&samples, &labels).unwrap();
        let spans = engine.spans();
        for (place, span) in &spans {
            assert_eq!(schedule.instructions[*place].stream, span.stream, "{place}");
        }
        let computes = schedule.instructions.iter().filter(|next| matches!(next.action, Action::Compute(_))).count();
        assert_eq!(spans.len(), computes);
        drop(engine);
        assert_eq!(mocks.count("handles"), schedule.lanes() as u64, "one of cuDNN's for each lane");
        assert_eq!(mocks.count("blas-handles"), 1, "no branch has a matrix product");
    }
    drop(machine);
    mocks.assert_nothing_left("two plans with lanes");
}
