//! Every function fails when asked to, with any status; and a program of all of them notices each.

use std::ptr;

use tightfit_test_support::driver::{Cuda, cuda};

/// Calls every function of the driver once or more. Returns each answer by name.
fn program(cuda: &Cuda) -> Vec<(&'static str, i32)> {
    let mut answers = Vec::new();
    macro_rules! step {
        ($name:ident($($argument:expr),*)) => { answers.push((stringify!($name), cuda.$name($($argument),*))) };
    }
    let (mut int, mut context, mut text, mut uuid) = (0, 0, [0; 9], [0; 16]);
    let (mut id, mut mode) = (0, 0);
    let (mut free, mut total, mut a, mut pinned) = (0, 0, 0, ptr::null_mut());
    let (mut stream, mut event, mut graph, mut executable, mut time) = (0, 0, 0, 0, 0.0);
    let mut host = [0u8; 8];
    let host = host.as_mut_ptr().cast();
    step!(cuInit(0));
    step!(cuDriverGetVersion(&mut int));
    step!(cuDeviceGetCount(&mut int));
    step!(cuDeviceGet(&mut int, 0));
    step!(cuDeviceGetName(text.as_mut_ptr(), 9, 0));
    step!(cuDeviceGetUuid_v2(&mut uuid, 0));
    step!(cuDeviceGetAttribute(&mut int, 16, 0));
    step!(cuDeviceTotalMem_v2(&mut total, 0));
    step!(cuDevicePrimaryCtxRetain(&mut context, 0));
    step!(cuCtxSetCurrent(context));
    step!(cuCtxGetCurrent(&mut context));
    step!(cuMemGetInfo_v2(&mut free, &mut total));
    step!(cuMemAlloc_v2(&mut a, 16));
    step!(cuMemHostAlloc(&mut pinned, 8, 0));
    step!(cuStreamCreate(&mut stream, 1));
    step!(cuEventCreate(&mut event, 0));
    step!(cuMemcpyHtoD_v2(a, host, 8));
    step!(cuMemcpyDtoD_v2(a + 8, a, 8));
    step!(cuMemcpyDtoH_v2(host, a, 8));
    step!(cuMemsetD8_v2(a, 0, 8));
    step!(cuMemcpyHtoDAsync_v2(a, host, 8, stream));
    step!(cuMemcpyDtoDAsync_v2(a + 8, a, 8, stream));
    step!(cuMemcpyDtoHAsync_v2(host, a, 8, stream));
    step!(cuEventRecord(event, stream));
    step!(cuEventSynchronize(event));
    step!(cuEventQuery(event));
    step!(cuEventElapsedTime(&mut time, event, event));
    step!(cuStreamWaitEvent(stream, event, 0));
    step!(cuStreamIsCapturing(stream, &mut int));
    step!(cuStreamGetId(stream, &mut id));
    step!(cuStreamGetCaptureInfo_v2(stream, &mut int, &mut id, ptr::null_mut(), ptr::null_mut(), ptr::null_mut()));
    step!(cuThreadExchangeStreamCaptureMode(&mut mode));
    step!(cuStreamSynchronize(stream));
    step!(cuStreamBeginCapture_v2(stream, 0));
    step!(cuMemsetD8Async(a, 1, 8, stream));
    step!(cuMemsetD32Async(a, 1, 2, stream));
    step!(cuStreamEndCapture(stream, &mut graph));
    step!(cuGraphInstantiateWithFlags(&mut executable, graph, 0));
    step!(cuGraphLaunch(executable, stream));
    step!(cuCtxSynchronize());
    step!(cuStreamQuery(stream));
    step!(cuGraphExecDestroy(executable));
    step!(cuGraphDestroy(graph));
    step!(cuEventDestroy_v2(event));
    step!(cuStreamDestroy_v2(stream));
    step!(cuMemFreeHost(pinned));
    step!(cuMemFree_v2(a));
    step!(cuDevicePrimaryCtxRelease_v2(0));
    answers
}

fn live(cuda: &Cuda) -> u64 {
    let kinds = ["allocations", "host-allocations", "streams", "events", "graphs", "executable-graphs", "contexts"];
    kinds.iter().map(|kind| cuda.count(kind)).sum::<u64>() + cuda.count("leaked")
}

#[test]
fn the_program_runs_and_leaves_nothing() {
    let cuda = cuda();
    for (name, answer) in program(&cuda) {
        assert_eq!((answer, cuda.calls(name)), (0, 1), "{name}");
    }
    assert_eq!((live(&cuda), cuda.calls("*")), (0, program(&cuda).len() as u64));
    assert_eq!(cuda.count("nonsense"), u64::MAX);
}

#[test]
fn every_function_fails_in_turn() {
    let cuda = cuda();
    let names: Vec<&str> = program(&cuda).into_iter().map(|(name, _)| name).collect();
    for status in [999, 99999] {
        for name in &names {
            cuda.tightfitMockCudaReset();
            cuda.fail(name, 1, status);
            let answers = program(&cuda);
            assert!(answers.contains(&(name, status)), "{name} did not fail");
            if name.contains("Free") || name.contains("Destroy") || name.contains("Release") {
                assert_eq!(live(&cuda), 0, "{name} gives back even if it fails");
            }
        }
    }
}

#[test]
fn the_nth_call_of_any_function_fails() {
    let cuda = cuda();
    cuda.fail("*", 4, 700);
    assert_eq!(cuda.cuInit(0), 0);
    let mut context = 0;
    assert_eq!(cuda.cuDevicePrimaryCtxRetain(&mut context, 0), 0);
    assert_eq!(cuda.cuCtxSetCurrent(context), 0);
    assert_eq!(cuda.cuMemAlloc_v2(&mut 0, 1), 700);
    assert_eq!(cuda.cuMemAlloc_v2(&mut 0, 1), 700, "a lasting error stays");
}

#[test]
fn unknown_codes_have_no_name() {
    let cuda = cuda();
    let mut text = ptr::null();
    assert_eq!((cuda.cuGetErrorName(99999, &mut text), text.is_null()), (1, true));
    assert_eq!((cuda.cuGetErrorName(2, &mut text), text.is_null()), (0, false));
}
