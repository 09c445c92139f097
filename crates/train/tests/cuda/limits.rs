//! Calls that fail, memory that ends, and the arena's exact use.

use super::*;

/// The chain, with a schedule that offloads all it may.
fn small(options: &Options) -> (Network, Checked) {
    let network = chain();
    let workload = Workload::new(&network, 2, Types::F32, Mode::Training).unwrap();
    let schedule = plan_of(&workload, &kernels(&workload, options), Policy::VdnnAll).schedule;
    (network, schedule)
}

#[test]
fn the_failure_of_any_call_becomes_an_error() {
    let mocks = Mocks::new();
    let (network, schedule) = small(&mocks.options());
    let workload = Workload::new(&network, 2, Types::F32, Mode::Training).unwrap();
    let functions = [
        "cuModuleLoadData",
        "cuModuleGetFunction",
        "cuLaunchKernel",
        "cuMemAlloc_v2",
        "cuMemHostAlloc",
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuMemcpyHtoD_v2",
        "cuStreamCreate",
        "cuStreamWaitEvent",
        "cuStreamSynchronize",
        "cuStreamBeginCapture_v2",
        "cuStreamEndCapture",
        "cuGraphInstantiateWithFlags",
        "cuGraphLaunch",
        "cuEventCreate",
        "cuEventRecord",
        "cublasCreate_v2",
        "cublasSetStream_v2",
        "cublasSetWorkspace_v2",
        "cublasGemmEx",
        "cudnnCreatePoolingDescriptor",
        "cudnnSetPoolingNdDescriptor",
        "cudnnPoolingForward",
        "cudnnPoolingBackward",
        "cudnnCreateLRNDescriptor",
        "cudnnSetLRNDescriptor",
        "cudnnLRNCrossChannelForward",
        "cudnnLRNCrossChannelBackward",
        "cudnnSoftmaxForward",
        "cudnnAddTensor",
    ];
    for function in functions {
        for nth in [1, 3] {
            mocks.reset();
            mocks.fail(function, nth, 13);
            let modes = Modes { graph: true, ..Modes::default() };
            let result =
                CudaMachine::open(&mocks.options(), modes).and_then(|machine| train(&workload, &schedule, machine, 3));
            let reached = mocks.calls(function) >= nth;
            assert!(reached || nth > 1, "{function} is never called");
            if reached {
                let error =
                    result.err().unwrap_or_else(|| panic!("call {nth} of {function} failed, and nobody said so"));
                assert!(!error.to_string().is_empty());
            }
            // If the mock fails the end of a capture, the capture goes on, and nothing may be freed under it.
            if function != "cuStreamEndCapture" {
                mocks.assert_nothing_left(function);
            }
        }
    }
}

#[test]
fn the_arena_is_used_exactly() {
    let mocks = Mocks::new();
    let (network, schedule) = small(&mocks.options());
    let workload = Workload::new(&network, 2, Types::F32, Mode::Training).unwrap();
    let modes = Modes { watch: true, trace: true, ..Modes::default() };
    let machine = CudaMachine::open(&mocks.options(), modes).unwrap();
    let mut engine = Engine::new(&workload, &schedule, machine, Solver::default(), Poison::Nothing).unwrap();
    let (samples, labels) = batch(&workload, 0);
    let labels: Vec<u32> = labels.iter().map(|label| label % 3).collect();
    engine.step(&samples, &labels).unwrap();
    let allocations = mocks.calls("cuMemAlloc_v2") + mocks.calls("cuMemHostAlloc");
    let waits = mocks.count("synchronizations");
    engine.step(&samples, &labels).unwrap();
    assert_eq!(mocks.calls("cuMemAlloc_v2") + mocks.calls("cuMemHostAlloc"), allocations, "allocated in a step");
    // The ends of three streams, the read of the probabilities, and its waits.
    assert!(mocks.count("synchronizations") <= waits + 6, "waited inside a step");
    let touched = engine.machine().touched().unwrap().unwrap();
    assert!(
        touched <= schedule.device_bytes && touched.0 + ALIGNMENT > engine.peak().0,
        "{touched} of {}",
        engine.peak()
    );
    let (beside, _) = engine.machine().outside_arena().unwrap();
    assert!(beside.0 >= 32 << 20, "cuBLAS's workspace alone is as much: {beside}");
    let spans = engine.spans();
    let runs = |step: &&Instruction| !matches!(step.action, Action::Allocate(_) | Action::Release(_) | Action::Wait(_));
    assert_eq!(spans.len(), schedule.instructions.iter().filter(runs).count());
    assert!(spans.iter().all(|(_, span)| span.start <= span.end));
    assert!(engine.machine().step_time().unwrap() > Nanos::ZERO);
}

#[test]
fn out_of_memory_errors_state_a_sufficient_budget() {
    let mocks = Mocks::new();
    let (network, schedule) = small(&mocks.options());
    let workload = Workload::new(&network, 2, Types::F32, Mode::Training).unwrap();
    let arena = RESERVED + Bytes::mib(44);
    let schedule = Schedule { device_bytes: arena, ..schedule.into_schedule() };
    let open = || CudaMachine::open(&mocks.options(), Modes::default()).unwrap();
    let opened = open().outside_arena().unwrap().0;
    let with = |memory: Bytes| {
        mocks.set_memory(memory.0);
        let result = train(&workload, &schedule, open(), 1);
        mocks.assert_nothing_left("a training");
        result
    };
    let error = with(Bytes((opened + arena).0 - 1)).unwrap_err();
    assert!(matches!(error, Error::DeviceMemory { needed, .. } if needed == arena), "{error}");
    assert!(error.is_over_limit() && error.to_string().contains("a budget of 43 MiB or less"), "{error}");

    // The arena, but no scratch.
    let error = with(opened + arena).unwrap_err();
    let Error::LibraryMemory { budget, ref source, .. } = error else { panic!("{error}") };
    assert!(error.is_over_limit() && error.to_string().contains("a budget of 44 MiB or less"), "{error}");
    assert_eq!(budget, Bytes::mib(44));
    assert!(source.to_string().contains("out of device memory"), "{source}");

    with(opened + arena + RESERVED).unwrap();
}

#[test]
fn an_arena_of_one_unit_less_is_refused_before_anything_runs() {
    let mocks = Mocks::new();
    let (network, _) = small(&mocks.options());
    let workload = Workload::new(&network, 2, Types::F32, Mode::Training).unwrap();
    let kernels = kernels(&workload, &mocks.options());
    for policy in Policy::ALL {
        let plan = plan_of(&workload, &kernels, policy);
        let less = Bytes(plan.schedule.device_bytes.0 - ALIGNMENT);
        let schedule = Schedule { device_bytes: less, ..plan.schedule.into_schedule() };
        let error = Checked::new(&workload.lower().unwrap().step, schedule.clone(), Budgets::default()).unwrap_err();
        assert!(matches!(error, tightfit_units::Error::Unsound { .. }), "{policy}: {error}");
        mocks.reset();
        let mut machine = CudaMachine::open(&mocks.options(), Modes::default()).unwrap();
        // Nor does the machine itself give out bytes that are not there.
        let schedule = Checked::assume(&workload.lower().unwrap().step, schedule);
        let error = Engine::new(&workload, &schedule, &mut machine, Solver::default(), Poison::Nothing).err().unwrap();
        assert!(matches!(error, Error::Step { .. }), "{policy}: {error}");
        assert_eq!(mocks.calls("cuLaunchKernel"), 0, "{policy}");
    }
}
