//! Measuring inside a running program: on its stream, in memory that is taken before and given back after each measurement;
//! on the mock libraries.

#![allow(non_snake_case)] // the functions' names are cuDNN's

use std::sync::Arc;

use tightfit_conv::backend::Scale;
use tightfit_conv::{Algorithm, Candidate, Configuration, DivisionCost, Problem};
use tightfit_cuda::sys::{cudnn, driver};
use tightfit_cuda::{Course, CourseResult, CudaError, Guest, GuestProgram, Host, load};
use tightfit_test_support::driver::{Cuda, Library};
use tightfit_test_support::functions;
use tightfit_test_support::libraries::library;
use tightfit_test_support::mocks::Mocks;
use tightfit_units::{Bytes, Nanos};

use crate::reference::Data;

functions!(Dnn {
    fn cudnnCreate(handle: *mut usize) -> i32;
    fn cudnnSetStream(handle: usize, stream: usize) -> i32;
});

/// A program with a handle and a stream, and the library inside it.
struct Inside {
    cuda: Cuda,
    stream: usize,
    host: Host,
    guest: Guest,
    /// On a separate handle.
    other: Guest,
}

impl Inside {
    fn new(_: &Mocks) -> Inside {
        // SAFETY: the mocks' initializers only set up Rust's own state.
        let [cuda, dnn] = ["mock_cuda", "mock_cudnn"].map(|name| unsafe { Library::new(library(name)) }.unwrap());
        let (cuda, dnn) = (Cuda(cuda), Dnn(dnn));
        cuda.begin();
        let stream = cuda.stream();
        let host = Host::open(Arc::new(load::cudnn_of_program(&library("mock_cudnn")).unwrap())).unwrap();
        let guest = || {
            let mut handle = 0;
            assert_eq!((dnn.cudnnCreate(&mut handle), dnn.cudnnSetStream(handle, stream)), (0, 0));
            // SAFETY: the handle was just made on device 0, is never destroyed, and used by this thread only.
            unsafe { host.guest(0, cudnn::Handle(handle as *mut _)) }.unwrap()
        };
        let (guest, other) = (guest(), guest());
        Inside { cuda, stream, host, guest, other }
    }

    fn program(&mut self, problem: &Problem, parts: &[(usize, &str)]) -> Arc<GuestProgram> {
        let part = |&(micro_batch, name): &(usize, &str)| {
            let (algorithm, part) = (Algorithm::new(name), problem.with_batch(micro_batch).unwrap());
            let workspace = self.guest.workspace(&part, &algorithm).unwrap().unwrap();
            Candidate { micro_batch, algorithm, time: Nanos(1), workspace }
        };
        let parts = parts.iter().map(part).collect();
        let configuration = Configuration::new(parts, DivisionCost::default());
        Arc::new(self.guest.program(problem, &configuration, Scale::OVERWRITE, 16).unwrap())
    }

    /// Runs a course to its end.
    fn run(&self, course: Course<'_>) -> Result<CourseResult, CudaError> {
        // SAFETY: the stream is never destroyed, and the handle works on it for this thread alone.
        let trial = unsafe { self.host.trial(0, driver::Stream(self.stream as *mut _), course) }?;
        self.cuda.cuStreamSynchronize(self.stream);
        Ok(trial.outcome()?.expect("all is done"))
    }
}

const PROBLEM: &str = "forward n5 c3 h7 w7 k4 r3 s3 pad1 f32";
/// Its data is longer than the random numbers, which repeat.
const LONG: &str = "forward n5 c12 h70 w70 k2 r1 s1 f32";

/// Its whole mini-batch at once, and divided.
fn programs(inside: &mut Inside, problem: &Problem) -> [Arc<GuestProgram>; 2] {
    [inside.program(problem, &[(5, "engine1")]), inside.program(problem, &[(3, "engine2:k25=0"), (2, "engine0")])]
}

#[test]
fn every_run_is_timed_and_the_first_outputs_are_those_of_the_data() {
    for (text, repeats) in [(PROBLEM, false), (LONG, true)] {
        let mocks = Mocks::new();
        runs_as_the_reference(&mocks, &text.parse().unwrap());
        assert_eq!(mocks.calls("cuMemcpyDtoDAsync_v2") > 0, repeats, "{text}");
    }
}

fn runs_as_the_reference(mocks: &Mocks, problem: &Problem) {
    let mut inside = Inside::new(mocks);
    let programs = programs(&mut inside, problem);
    let before = mocks.count("allocations");
    let outputs = [0, 17, problem.output_len() - 1];
    let course = Course { programs: &programs, rounds: 4, outputs: &outputs, reserve: Bytes::ZERO };
    let outcome = inside.run(course).unwrap();
    // The same calls take the same virtual time, by program and in every round.
    let [whole, divided] = &outcome.times[..] else { panic!("{outcome:?}") };
    assert!(whole.len() == 4 && divided.len() == 4 && whole != divided, "{outcome:?}");
    for times in &outcome.times {
        assert!(times[0] > Nanos::ZERO && times.iter().all(|time| *time == times[0]), "{outcome:?}");
    }
    let runs: Nanos = outcome.times.iter().flatten().copied().sum();
    assert!(outcome.took > runs, "filling takes time too: {outcome:?}");
    let pattern = inside.host.pattern(0, problem.types().storage()).unwrap();
    let values = |tensor, len| (0..len).map(|index| pattern.element(tensor, index)).collect();
    let data = Data {
        data: values(0, problem.input_len()),
        other: values(1, problem.filter_len()),
        output: values(2, problem.output_len()),
    };
    let expected = data.expected(problem, Scale::OVERWRITE);
    assert_eq!(outcome.outputs.len(), 2);
    for got in &outcome.outputs {
        for (got, at) in got.iter().zip(outputs) {
            let (want, size) = expected[at];
            assert!((f64::from(*got) - want).abs() <= 1e-5 * size, "{at}: {got} {want}");
        }
    }
    assert_eq!(mocks.count("allocations"), before, "memory was given back");
    // Again, with the pinned memory of before and without outputs.
    let host_bytes = mocks.count("host-bytes");
    assert_eq!(inside.run(course).unwrap(), outcome);
    let timed_only = inside.run(Course { outputs: &[], ..course }).unwrap();
    assert_eq!((timed_only.times, timed_only.outputs), (outcome.times, vec![Vec::<f32>::new(); 2]));
    assert_eq!((mocks.count("allocations"), mocks.count("host-bytes")), (before, host_bytes));
    assert_eq!(mocks.count("events"), 0);
}

#[test]
fn nothing_is_waited_for_and_nothing_shown_before_the_end() {
    let mocks = Mocks::new();
    let mut inside = Inside::new(&mocks);
    let problem: Problem = PROBLEM.parse().unwrap();
    let programs = programs(&mut inside, &problem);
    let waits = mocks.count("synchronizations");
    mocks.delay(20_000);
    let course = Course { programs: &programs, rounds: 2, outputs: &[0], reserve: Bytes::ZERO };
    // SAFETY: as in `run`.
    let trial = unsafe { inside.host.trial(0, driver::Stream(inside.stream as *mut _), course) }.unwrap();
    assert_eq!((trial.outcome().unwrap(), mocks.count("synchronizations")), (None, waits));
    assert_eq!(inside.cuda.cuStreamSynchronize(inside.stream), 0);
    assert!(trial.outcome().unwrap().is_some());
    // A course that is dropped before its end keeps its host memory, and the stream gives its device memory back.
    let before = mocks.count("allocations");
    // SAFETY: as in `run`.
    let trial = unsafe { inside.host.trial(0, driver::Stream(inside.stream as *mut _), course) }.unwrap();
    drop(trial);
    assert_eq!(inside.cuda.cuStreamSynchronize(inside.stream), 0);
    assert_eq!(mocks.count("allocations"), before);
}

#[test]
fn memory_beyond_the_reserve_alone_is_used() {
    let mocks = Mocks::new();
    let mut inside = Inside::new(&mocks);
    let problem: Problem = PROBLEM.parse().unwrap();
    let programs = programs(&mut inside, &problem);
    let course = Course { programs: &programs, rounds: 1, outputs: &[], reserve: Bytes::ZERO };
    inside.run(course).unwrap();
    let free = inside.host.free_memory(0).unwrap();
    let calls = mocks.calls("cuMemAllocFromPoolAsync");
    for reserve in [free, Bytes(free.0 - 4096), Bytes(u64::MAX)] {
        let refused = inside.run(Course { reserve, ..course });
        assert!(matches!(refused, Err(CudaError::OutOfMemory { .. })), "{reserve}: {refused:?}");
    }
    assert_eq!(mocks.calls("cuMemAllocFromPoolAsync"), calls, "nothing was taken");
    inside.run(Course { reserve: Bytes(free.0 - (1 << 20)), ..course }).unwrap();
}

#[test]
fn a_failure_at_any_call_leaves_no_device_memory_behind() {
    let mocks = Mocks::new();
    let problem: Problem = PROBLEM.parse().unwrap();
    let outputs = [0, 9];
    let run = |inside: &Inside, programs: &[Arc<GuestProgram>]| {
        inside.run(Course { programs, rounds: 2, outputs: &outputs, reserve: Bytes::ZERO })
    };
    let functions = [
        "cuMemGetInfo_v2",
        "cuMemHostAlloc",
        "cuMemAllocFromPoolAsync",
        "cuMemFreeAsync",
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuEventCreate",
        "cuEventRecord",
        "cuEventQuery",
        "cuEventElapsedTime",
        "cuCtxSetCurrent",
        "cudnnBackendExecute",
    ];
    let mut right = None;
    for function in functions {
        let mut nth = 0;
        loop {
            nth += 1;
            mocks.reset();
            let mut inside = Inside::new(&mocks);
            let programs = programs(&mut inside, &problem);
            let (before, calls) = (mocks.count("allocations"), mocks.calls(function));
            mocks.fail(function, nth, if function.starts_with("cudnn") { 4000 } else { 2 });
            let outcome = run(&inside, &programs);
            let after = format!("{function} {nth}");
            assert_eq!(inside.cuda.cuStreamSynchronize(inside.stream), 0, "{after}");
            assert_eq!(mocks.count("allocations"), before, "{after}");
            if mocks.calls(function) - calls < nth {
                // The function was called less often: nothing failed.
                assert!(nth > 1, "{function} was never called");
                let whole = outcome.unwrap_or_else(|error| panic!("{after}: {error}"));
                assert_eq!(*right.get_or_insert(whole.clone()), whole, "{after}");
                break;
            }
            // Giving memory back may fail at no cost; every other failure is an error, after which a run goes well.
            let is_giving_back =
                matches!((function, nth), ("cuMemFreeAsync" | "cuCtxSetCurrent", _) | ("cuEventQuery", 2..));
            assert!(outcome.is_err() || is_giving_back, "{after}");
            // The refusal of a destructor is an error of the next call.
            let again = run(&inside, &programs).or_else(|_| run(&inside, &programs));
            let again = again.unwrap_or_else(|error| panic!("after {after}: {error}"));
            assert_eq!(*right.get_or_insert(again.clone()), again, "{after}");
        }
    }
}

#[test]
fn a_plan_built_on_another_thread_goes_to_one_handle() {
    let mocks = Mocks::new();
    let mut inside = Inside::new(&mocks);
    let (problem, algorithm) = (PROBLEM.parse().unwrap(), Algorithm::new("engine1"));
    let mut builder = inside.host.builder(0).unwrap();
    let part = |guest: &mut Guest| {
        let before = mocks.calls("cudnnBackendFinalize");
        let program = Arc::new(guest.part(&problem, &algorithm).unwrap());
        (mocks.calls("cudnnBackendFinalize") - before, program)
    };
    for again in [false, true] {
        builder.build(&problem, &algorithm).unwrap();
        let (taken, program) = part(&mut inside.guest);
        let (built, other) = part(&mut inside.other);
        if again {
            assert_eq!((taken, built), (0, 0), "each has its own by now");
        } else {
            assert_eq!(built, taken + 1, "the second builds a plan in place");
        }
        let course = Course { programs: &[program, other], rounds: 1, outputs: &[0, 17], reserve: Bytes::ZERO };
        let outputs = inside.run(course).unwrap().outputs;
        assert_eq!(outputs[0], outputs[1]);
    }
    let configuration = Candidate { micro_batch: 5, algorithm, time: Nanos(1), workspace: Bytes(1 << 20) };
    let configuration = Configuration::new(vec![configuration], DivisionCost::default());
    builder.build_configuration(&problem, &configuration, Scale { alpha: 2.0, beta: 1.0 }, 4).unwrap();
    inside.host.forget_plans(0);
    // The plans of a builder that is gone may not be used.
    std::mem::forget(builder);
}
