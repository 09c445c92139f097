//! A failure is an error with its reason, leaves nothing behind, and a lost device differs from a candidate that failed; on
//! the mock libraries.

use std::error::Error as _;

use tightfit_conv::backend::{Effort, Scale};
use tightfit_conv::{Algorithm, Backend, Candidate, Configuration, Offer, Problem};
use tightfit_cuda::safe::DeviceBuffer;
use tightfit_cuda::{CudaBackend, CudaError, Options};
use tightfit_test_support::mocks::Mocks;
use tightfit_units::{Error, Nanos};

use crate::reference::Data;

/// Both families, divided, in f32 and with half-precision sums: every function of both libraries is called. Returns the
/// offers.
fn scenario(options: &Options) -> Result<Vec<Offer>, Error> {
    let mut backend = CudaBackend::open(&Options { untimed: true, ..options.clone() })?;
    let mut offers = Vec::new();
    for (text, names) in [
        ("forward n3 c4 h5 w5 k4 r3 s3 pad1 f32", ["legacy:gemm", "engine2:k25=1"]),
        ("backward-data n3 c4 h5 w5 k4 r3 s3 pad1 tf32", ["legacy:algo-1", "engine1"]),
        ("backward-filter n3 c8 h5 w5 k8 r3 s3 pad1 f16-f32", ["legacy:algo-1", "engine0"]),
    ] {
        let problem: Problem = text.parse()?;
        let data = Data::whole(&problem);
        let cost = backend.division_cost(&problem)?;
        offers.extend(backend.offers(&problem)?);
        for name in names.map(Algorithm::new) {
            let mut parts = Vec::new();
            for micro_batch in [2, 1] {
                let part = problem.with_batch(micro_batch)?;
                let measurement = backend.measure(&part, &name, &Effort { least: 1, most: 1, ..Effort::default() })?;
                parts.push(measurement.candidate());
            }
            let configuration = Configuration::new(parts, cost);
            let scale = Scale { alpha: 1.0, beta: 1.0 };
            let run = backend.run(&problem, &configuration, data.tensors(), scale)?;
            for (got, (want, _)) in run.output.iter().zip(data.expected(&problem, scale)) {
                assert_eq!(f64::from(*got), want, "{name} of {problem}");
            }
        }
    }
    let mut buffer = DeviceBuffer::new(backend.handle().context(), 11)?;
    buffer.slice_mut(0..3)?.upload(&[1, 2, 3])?;
    buffer.slice_mut(0..11)?.repeat(3, backend.handle().stream())?;
    let mut bytes = [0; 11];
    buffer.slice(0..11)?.download(&mut bytes)?;
    assert_eq!(bytes, [1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2]);
    let (free, total) = backend.memory()?;
    assert!(free <= total);
    Ok(offers)
}

/// Functions whose failure need not be an error. Destructors and their calls are recorded for a call that may never come.
/// When an engine's support check fails, another way is taken and the result is still right.
fn may_pass(function: &str) -> bool {
    ["Destroy", "Free", "Release", "CtxSetCurrent", "CtxSynchronize"].iter().any(|part| function.contains(part))
        || function.starts_with("cudnnBackend")
}

const FUNCTIONS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventElapsedTime",
    "cuEventDestroy_v2",
    "cudnnCreate",
    "cudnnDestroy",
    "cudnnSetStream",
    "cudnnCreateTensorDescriptor",
    "cudnnSetTensorNdDescriptor",
    "cudnnDestroyTensorDescriptor",
    "cudnnCreateFilterDescriptor",
    "cudnnSetFilterNdDescriptor",
    "cudnnDestroyFilterDescriptor",
    "cudnnCreateConvolutionDescriptor",
    "cudnnSetConvolutionNdDescriptor",
    "cudnnSetConvolutionGroupCount",
    "cudnnSetConvolutionMathType",
    "cudnnDestroyConvolutionDescriptor",
    "cudnnGetConvolutionForwardWorkspaceSize",
    "cudnnGetConvolutionBackwardDataWorkspaceSize",
    "cudnnGetConvolutionBackwardFilterWorkspaceSize",
    "cudnnConvolutionForward",
    "cudnnConvolutionBackwardData",
    "cudnnConvolutionBackwardFilter",
    "cudnnBackendCreateDescriptor",
    "cudnnBackendDestroyDescriptor",
    "cudnnBackendSetAttribute",
    "cudnnBackendGetAttribute",
    "cudnnBackendFinalize",
    "cudnnBackendExecute",
];

#[test]
fn the_failure_of_any_function_is_an_error_and_leaves_nothing() {
    fail_in_turn(2);
}

#[test]
#[ignore = "takes minutes"]
fn the_failure_of_any_call_is_an_error_and_leaves_nothing() {
    fail_in_turn(20);
}

/// Each function fails at its first call, at its last, and at others between, up to `most` calls.
fn fail_in_turn(most: u64) {
    let mocks = Mocks::new();
    let options = mocks.options();
    let offers = scenario(&options).unwrap();
    mocks.assert_nothing_left("a good run");
    let calls: Vec<u64> = FUNCTIONS.iter().map(|function| mocks.calls(function)).collect();
    for (function, calls) in FUNCTIONS.iter().zip(calls) {
        assert!(calls > 0, "{function} is never called");
        let places: std::collections::BTreeSet<u64> =
            (0..most).map(|step| 1 + (calls - 1) * step / (most - 1)).collect();
        for nth in places {
            mocks.reset();
            let status = if function.starts_with("cudnn") { 4000 } else { 1 };
            mocks.fail(function, nth, status);
            let result = scenario(&options);
            // While offers are asked for, it may be one of them that fails, and is refused then.
            let seen = result.as_ref().map_or(true, |offered| *offered != offers);
            assert!(seen || may_pass(function), "call {nth} of {function} failed unseen");
            mocks.assert_nothing_left(&format!("call {nth} of {function} failed"));
        }
    }
}

fn forward(backend: &mut CudaBackend, name: &str) -> Result<(), Error> {
    let problem: Problem = "forward n3 c4 h5 w5 k4 r3 s3 pad1 f32".parse()?;
    backend.measure(&problem, &Algorithm::new(name), &Effort::default()).map(|_| ())
}

#[test]
fn a_failed_candidate_is_refused_with_its_reason_and_the_next_one_runs() {
    let mocks = Mocks::new();
    let mut backend = mocks.backend();
    mocks.fail("cudnnConvolutionForward", 1, 5000);
    let error = forward(&mut backend, "legacy:gemm").unwrap_err();
    assert!(
        matches!(&error, Error::Refused { reason, .. } if reason.contains("CUDNN_STATUS_EXECUTION_FAILED")),
        "{error}"
    );
    forward(&mut backend, "legacy:gemm").unwrap();
}

#[test]
fn an_unknown_status_prints_its_number() {
    let mocks = Mocks::new();
    let mut backend = mocks.backend();
    mocks.fail("cudnnGetConvolutionForwardWorkspaceSize", 1, 7777);
    let error = forward(&mut backend, "legacy:gemm").unwrap_err();
    assert!(error.to_string().contains("unknown code 7777"), "{error}");
    mocks.fail("cuEventRecord", 1, 12345);
    let error = forward(&mut backend, "legacy:gemm").unwrap_err();
    assert!(!error.is_fatal() && error.to_string().contains("unknown code 12345"), "{error}");
}

#[test]
fn a_lost_context_differs_from_a_failed_candidate_and_drops_cleanly() {
    let mocks = Mocks::new();
    let mut backend = mocks.backend();
    forward(&mut backend, "engine0").unwrap();
    mocks.fail("cuEventSynchronize", 1, 700);
    let error = forward(&mut backend, "engine0").unwrap_err();
    assert!(error.is_fatal(), "{error}");
    assert!(error.source().unwrap().downcast_ref::<CudaError>().unwrap().is_sticky());
    let again = forward(&mut backend, "legacy:gemm").unwrap_err();
    assert!(again.is_fatal(), "{again}");
    drop(backend);
    mocks.assert_nothing_left("the context was lost");
}

#[test]
fn out_of_memory_says_how_much_and_smaller_sizes_go_on() {
    let mocks = Mocks::new();
    mocks.set_memory(1 << 20);
    let mut backend = mocks.backend();
    let problem: Problem = "forward n64 c16 h16 w16 k16 r3 s3 pad1 f32".parse().unwrap();
    let algorithm = Algorithm::new("legacy:gemm");
    let error = backend.measure(&problem, &algorithm, &Effort::default()).unwrap_err();
    assert!(!error.is_fatal() && matches!(error, Error::Backend { .. }), "{error}");
    assert!(error.to_string().contains("out of device memory"), "{error}");
    backend.measure(&problem.with_batch(2).unwrap(), &algorithm, &Effort::default()).unwrap();
}

#[test]
fn measuring_buffers_are_freed_when_memory_is_short() {
    let mocks = Mocks::new();
    mocks.set_memory(2 << 20);
    let mut backend = mocks.backend();
    let algorithm = Algorithm::new("legacy:implicit-gemm");
    // 1 MiB of x with little of y, then the other way round.
    for text in ["forward n64 c64 h8 w8 k1 r1 s1 f32", "forward n64 c1 h8 w8 k64 r1 s1 f32"] {
        backend.measure(&text.parse().unwrap(), &algorithm, &Effort::default()).unwrap();
    }
}

#[test]
fn writing_outside_the_workspace_is_detected() {
    let mocks = Mocks::new();
    let mut backend = mocks.backend();
    let problem: Problem = "forward n2 c4 h5 w5 k4 r3 s3 pad1 f32".parse().unwrap();
    let algorithm = Algorithm::new("legacy:gemm");
    mocks.lie_workspace(-128);
    let workspace = backend.workspace(&problem, &algorithm).unwrap();
    let part = Candidate { micro_batch: 2, algorithm, time: Nanos(1), workspace };
    let data = Data::whole(&problem);
    let configuration = Configuration::new(vec![part], Default::default());
    let error = backend.run(&problem, &configuration, data.tensors(), Scale::OVERWRITE).unwrap_err();
    assert!(error.to_string().contains("wrote outside its workspace"), "{error}");
}

#[test]
fn tensors_and_configurations_of_another_problem_are_refused() {
    let mocks = Mocks::new();
    let mut backend = mocks.backend();
    let problem: Problem = "forward n2 c4 h5 w5 k4 r3 s3 pad1 f32".parse().unwrap();
    let algorithm = Algorithm::new("legacy:gemm");
    let workspace = backend.workspace(&problem, &algorithm).unwrap();
    let part = Candidate { micro_batch: 2, algorithm, time: Nanos(1), workspace };
    let (good, data) = (Configuration::new(vec![part.clone()], Default::default()), Data::whole(&problem));
    let mut short = Data::whole(&problem);
    short.other.pop();
    let mut small = part.clone();
    small.workspace.0 -= 1;
    let small = Configuration::new(vec![small], Default::default());
    let twice = Configuration::new(vec![part.clone(), part], Default::default());
    for (configuration, data, word) in
        [(&good, &short, "elements"), (&small, &data, "needs"), (&twice, &data, "4 samples")]
    {
        let error = backend.run(&problem, configuration, data.tensors(), Scale::OVERWRITE).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
    backend.run(&problem, &good, data.tensors(), Scale::OVERWRITE).unwrap();
}

#[test]
fn where_sums_cannot_be_converted_half_gradients_stay_whole() {
    let mocks = Mocks::new();
    let mut backend = mocks.backend();
    let problem: Problem = "backward-filter n3 c8 h5 w5 k8 r3 s3 pad1 f16-f32".parse().unwrap();
    // Each of the two shapes of the first elementwise step is refused.
    mocks.fail("cudnnBackendFinalize", 1, 3000);
    mocks.fail("cudnnBackendFinalize", 2, 3000);
    let cost = backend.division_cost(&problem).unwrap();
    assert_eq!(cost.workspace, tightfit_units::Bytes::UNLIMITED);
    assert_eq!(backend.division_cost(&problem).unwrap().workspace.0, 2304);
}
