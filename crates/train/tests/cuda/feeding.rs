//! The next mini-batch, fed while a step runs.

use super::*;

/// Losses of four steps: each mini-batch is fed alone before its step, or all but the first while the step before runs.
fn fed<M: Machine>(workload: &Workload<'_>, schedule: &Schedule, machine: M, meanwhile: bool) -> Vec<f64> {
    let budgets = Budgets { device: schedule.device_bytes, host: schedule.host_bytes };
    let schedule = Checked::new(&workload.lower().unwrap().step, schedule.clone(), budgets).unwrap();
    let mut engine = Engine::new(workload, &schedule, machine, Solver::default(), Poison::Freed).unwrap();
    let batch = |step| {
        let (samples, labels) = batch(workload, step);
        Batch { samples, labels, counted: workload.batch }
    };
    let mut losses = Vec::new();
    for step in 0..4 {
        if step == 0 || !meanwhile {
            engine.feed(&batch(step).samples, &batch(step).labels).unwrap();
        }
        losses.push(engine.run(|| (meanwhile && step < 3).then(|| Ok(batch(step + 1)))).unwrap().loss);
    }
    losses
}

#[test]
fn the_next_mini_batch_is_fed_while_a_step_runs() {
    let mocks = Mocks::new();
    let network = fork_and_join();
    let workload = Workload::new(&network, BATCH, Types::F32, Mode::Training).unwrap();
    let schedule = everything_resident(&workload, "direct", BATCH);
    let cpu = || CpuMachine::new(CpuOptions { threads: Some(THREADS), ..CpuOptions::default() });
    assert_eq!(fed(&workload, &schedule, cpu(), true), fed(&workload, &schedule, cpu(), false), "on the CPU");
    let schedule = for_cuda(&workload, schedule, &mocks.options(), Division::MicroBatches(BATCH));
    let cuda = |graph| CudaMachine::open(&mocks.options(), Modes { graph, ..Modes::default() }).unwrap();
    let alone = fed(&workload, &schedule, cuda(false), false);
    assert!(alone.windows(2).all(|two| two[0] != two[1]), "{alone:?}");
    for (graph, delay) in [(false, 0), (false, 300), (true, 0), (true, 300)] {
        mocks.delay(delay);
        assert_eq!(fed(&workload, &schedule, cuda(graph), true), alone, "graph: {graph}, {delay} us late");
    }
    mocks.delay(0);
    mocks.assert_nothing_left("feeding");
}

#[test]
fn a_step_counts_whose_next_mini_batch_cannot_be_fed() {
    let network = fork_and_join();
    let workload = Workload::new(&network, BATCH, Types::F32, Mode::Training).unwrap();
    let schedule = everything_resident(&workload, "direct", BATCH);
    let checked = Checked::assume(&workload.lower().unwrap().step, schedule);
    let machine = CpuMachine::new(CpuOptions { threads: Some(THREADS), ..CpuOptions::default() });
    let mut engine = Engine::new(&workload, &checked, machine, Solver::default(), Poison::Nothing).unwrap();
    assert!(engine.run(|| None).unwrap_err().to_string().contains("none was fed"));
    let (samples, labels) = batch(&workload, 0);
    engine.feed(&samples, &labels).unwrap();
    let short = Batch { samples: samples[1..].to_vec(), labels, counted: BATCH };
    assert!(engine.run(|| Some(Ok(short))).unwrap().loss > 0.0);
    assert!(matches!(engine.run(|| None).unwrap_err(), Error::Batch { .. }));
}
