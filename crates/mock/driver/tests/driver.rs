//! The driver's rules, one test each.

use std::ffi::c_void;
use std::ptr;

use tightfit_test_support::driver::cuda;

const SUCCESS: i32 = 0;
const NOT_READY: i32 = 600;
const ILLEGAL_ADDRESS: i32 = 700;
const CAPTURE_UNSUPPORTED: i32 = 900;
const CAPTURE_INVALIDATED: i32 = 901;
const CAPTURE_UNJOINED: i32 = 904;

#[test]
fn work_waits_for_work_of_another_stream() {
    let cuda = cuda();
    cuda.begin();
    let (slow, fast, event) = (cuda.stream(), cuda.stream(), cuda.event());
    let (a, b) = (cuda.allocate(64), cuda.allocate(64));
    cuda.tightfitMockCudaDelay(0, 100_000);
    cuda.cuMemsetD8Async(a, 7, 64, slow);
    cuda.cuEventRecord(event, slow);
    assert_eq!(cuda.cuEventQuery(event), NOT_READY);
    assert_eq!(cuda.cuStreamQuery(slow), NOT_READY);
    cuda.cuStreamWaitEvent(fast, event, 0);
    cuda.cuMemcpyDtoDAsync_v2(b, a, 64, fast);
    cuda.cuStreamSynchronize(fast);
    assert_eq!(cuda.bytes(b, 64), [7; 64]);
}

#[test]
fn without_waiting_the_other_stream_is_ahead() {
    let cuda = cuda();
    cuda.begin();
    let (slow, fast) = (cuda.stream(), cuda.stream());
    let (a, b) = (cuda.allocate(64), cuda.allocate(64));
    cuda.tightfitMockCudaDelay(0, 200_000);
    cuda.cuMemsetD8Async(a, 7, 64, slow);
    cuda.cuMemcpyDtoDAsync_v2(b, a, 64, fast);
    cuda.cuStreamSynchronize(fast);
    assert_eq!(cuda.bytes(b, 64), [0xFF; 64], "the copy ran before the late fill");
}

#[test]
fn default_stream_waits_for_blocking_streams_only() {
    let cuda = cuda();
    cuda.begin();
    let (mut blocking, free) = (0, cuda.stream());
    cuda.cuStreamCreate(&mut blocking, 0);
    let a = cuda.allocate(2);
    cuda.tightfitMockCudaDelay(0, 100_000);
    cuda.tightfitMockCudaDelay(1, 20_000);
    cuda.cuMemsetD8Async(a, 2, 1, free);
    cuda.cuMemsetD8Async(a, 1, 1, blocking);
    assert_eq!(cuda.bytes(a, 1), [1]);
    assert_eq!(cuda.cuStreamQuery(free), NOT_READY, "a non-blocking stream is not waited for");
    cuda.cuStreamSynchronize(free);
    assert_eq!(cuda.bytes(a, 1), [2]);
}

#[test]
fn a_copy_from_pageable_memory_may_be_overtaken() {
    let cuda = cuda();
    cuda.begin();
    let (stream, a) = (cuda.stream(), cuda.allocate(64));
    let host = [7u8; 64];
    // All work begins late, also on the default stream. The call returns before.
    cuda.tightfitMockCudaDelay(u64::MAX, 50_000);
    cuda.cuMemcpyHtoD_v2(a, host.as_ptr().cast(), 64);
    cuda.tightfitMockCudaDelay(0, 0);
    cuda.cuMemsetD8Async(a, 9, 64, stream);
    cuda.cuStreamSynchronize(stream);
    cuda.cuCtxSynchronize();
    assert_eq!(cuda.bytes(a, 64), [7; 64], "a stream that does not wait for the default stream went ahead");
}

#[test]
fn access_out_of_bounds_is_lasting() {
    let cuda = cuda();
    cuda.begin();
    let (a, stream) = (cuda.allocate(64), cuda.stream());
    assert_eq!(cuda.cuMemsetD8Async(a, 0, 65, stream), SUCCESS, "the work has not run yet");
    assert_eq!(cuda.cuStreamSynchronize(stream), ILLEGAL_ADDRESS);
    let mut b = 0;
    assert_eq!(cuda.cuMemAlloc_v2(&mut b, 1), ILLEGAL_ADDRESS);
    assert_eq!(cuda.cuMemFree_v2(a), ILLEGAL_ADDRESS);
    assert_eq!(cuda.count("allocations"), 0, "freed in spite of the answer");
    cuda.cuStreamDestroy_v2(stream);
    cuda.cuDevicePrimaryCtxRelease_v2(0);
    cuda.begin();
    cuda.allocate(1);
}

#[test]
fn access_after_free_is_an_error() {
    let cuda = cuda();
    cuda.begin();
    let (a, stream) = (cuda.allocate(64), cuda.stream());
    cuda.tightfitMockCudaDelay(0, 100_000);
    cuda.cuMemsetD8Async(a, 0, 64, stream);
    assert_eq!(cuda.cuMemFree_v2(a), SUCCESS);
    assert_eq!(cuda.cuStreamSynchronize(stream), ILLEGAL_ADDRESS);
}

#[test]
fn pinned_copies_are_late_and_pageable_ones_are_not() {
    let cuda = cuda();
    cuda.begin();
    let (a, stream, pinned) = (cuda.allocate(1), cuda.stream(), cuda.pinned(1));
    cuda.tightfitMockCudaDelay(0, 100_000);
    let mut pageable = 1u8;
    cuda.cuMemcpyHtoDAsync_v2(a, ptr::from_ref(&pageable).cast(), 1, stream);
    pageable = 2;
    let before = cuda.count("synchronizations");
    // SAFETY: one live pinned byte, which no work uses yet.
    unsafe { pinned.write(3) };
    cuda.cuMemcpyDtoHAsync_v2(pinned.cast(), a, 1, stream);
    // SAFETY: as above; the copy is held up by the delay.
    assert_eq!(unsafe { pinned.read_volatile() }, 3, "not copied yet");
    assert_eq!(cuda.count("synchronizations"), before);
    let to: *mut c_void = ptr::from_mut(&mut pageable).cast();
    cuda.cuMemcpyDtoHAsync_v2(to, a, 1, stream);
    assert_eq!((pageable, cuda.count("synchronizations")), (1, before + 1));
    // SAFETY: the stream is idle.
    assert_eq!(unsafe { pinned.read_volatile() }, 1);
    cuda.cuMemFreeHost(pinned.cast());
    assert_eq!(cuda.count("host-allocations"), 0);
}

#[test]
fn an_unjoined_fork_gives_no_graph() {
    let cuda = cuda();
    cuda.begin();
    let (origin, other, fork, a) = (cuda.stream(), cuda.stream(), cuda.event(), cuda.allocate(4));
    cuda.cuStreamBeginCapture_v2(origin, 0);
    cuda.cuEventRecord(fork, origin);
    cuda.cuStreamWaitEvent(other, fork, 0);
    cuda.cuMemsetD8Async(a, 5, 4, other);
    let mut graph = 1;
    assert_eq!(cuda.cuStreamEndCapture(origin, &mut graph), CAPTURE_UNJOINED);
    assert_eq!(graph, 0);
}

#[test]
fn a_forbidden_call_breaks_the_capture() {
    let cuda = cuda();
    cuda.begin();
    let (stream, a) = (cuda.stream(), cuda.allocate(4));
    let forbidden: [&dyn Fn() -> i32; 4] = [
        &|| cuda.cuStreamSynchronize(stream),
        &|| cuda.cuMemAlloc_v2(&mut 0, 4),
        &|| cuda.cuMemsetD8_v2(a, 0, 4),
        &|| cuda.cuCtxSynchronize(),
    ];
    for call in forbidden {
        cuda.cuStreamBeginCapture_v2(stream, 0);
        assert_eq!(call(), CAPTURE_UNSUPPORTED);
        assert_eq!(cuda.cuStreamEndCapture(stream, &mut 0), CAPTURE_INVALIDATED);
        assert_eq!(cuda.cuMemsetD8_v2(a, 0, 4), SUCCESS, "over with the capture");
    }
}

#[test]
fn devices_have_their_own_memory_and_errors() {
    let cuda = cuda();
    cuda.tightfitMockCudaSetDevices(2);
    cuda.tightfitMockCudaSetMemory(100);
    cuda.begin_on(1);
    let a = cuda.allocate(100);
    cuda.begin_on(0);
    cuda.allocate(100);
    cuda.cuMemsetD8_v2(a + 100, 0, 1);
    assert_eq!(cuda.cuCtxSynchronize(), ILLEGAL_ADDRESS);
    let mut first = 0;
    cuda.cuDevicePrimaryCtxRetain(&mut first, 1);
    cuda.cuCtxSetCurrent(first);
    assert_eq!(cuda.cuCtxSynchronize(), SUCCESS);
}

#[test]
fn a_released_context_counts_leaked_objects() {
    let cuda = cuda();
    cuda.begin();
    cuda.allocate(1);
    cuda.stream();
    assert_eq!(cuda.cuDevicePrimaryCtxRelease_v2(0), SUCCESS);
    assert_eq!((cuda.count("leaked"), cuda.count("allocations"), cuda.count("streams")), (2, 0, 0));
    assert_eq!(cuda.cuMemAlloc_v2(&mut 0, 1), 201);
}

#[test]
fn a_graph_never_keeps_pageable_memory() {
    let cuda = cuda();
    cuda.begin();
    let (stream, a, mut byte) = (cuda.stream(), cuda.allocate(1), 0u8);
    cuda.cuStreamBeginCapture_v2(stream, 2);
    assert_eq!(cuda.cuMemcpyDtoHAsync_v2(ptr::from_mut(&mut byte).cast(), a, 1, stream), CAPTURE_UNSUPPORTED);
    assert_eq!(cuda.cuStreamEndCapture(stream, &mut 0), CAPTURE_INVALIDATED);
}
