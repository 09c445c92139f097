//! The driver's rules, one test each.

use std::ffi::c_void;
use std::ptr;

use tightfit_test_support::driver::cuda;

const SUCCESS: i32 = 0;
const OUT_OF_MEMORY: i32 = 2;
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
fn event_times_are_virtual_and_exact() {
    let cuda = cuda();
    cuda.begin();
    let (stream, other) = (cuda.stream(), cuda.stream());
    let (start, end, joined) = (cuda.event(), cuda.event(), cuda.event());
    let a = cuda.allocate(2_000_000);
    cuda.cuEventRecord(start, stream);
    cuda.cuMemsetD8Async(a, 0, 2_000_000, stream);
    cuda.cuEventRecord(end, stream);
    cuda.cuStreamWaitEvent(other, end, 0);
    cuda.cuEventRecord(joined, other);
    cuda.cuEventSynchronize(joined);
    // 2 us of launch and 2 MB at 2 MB/us.
    assert_eq!(cuda.elapsed(start, end), 0.003);
    assert_eq!(cuda.elapsed(end, joined), 0.0);
}

#[test]
fn real_clock_sees_a_delay() {
    let cuda = cuda();
    cuda.begin();
    cuda.tightfitMockCudaVirtualClock(0);
    let (stream, start, end, a) = (cuda.stream(), cuda.event(), cuda.event(), cuda.allocate(1));
    cuda.tightfitMockCudaDelay(0, 10_000);
    cuda.cuEventRecord(start, stream);
    cuda.cuMemsetD8Async(a, 0, 1, stream);
    cuda.cuEventRecord(end, stream);
    cuda.cuStreamSynchronize(stream);
    // Sleeping never takes less than asked.
    assert!(cuda.elapsed(start, end) >= 10.0);
}

#[test]
fn memory_is_bounded_counted_and_poisoned() {
    let cuda = cuda();
    cuda.tightfitMockCudaSetMemory(1000);
    cuda.begin();
    let a = cuda.allocate(600);
    let mut b = 0;
    assert_eq!(cuda.cuMemAlloc_v2(&mut b, 401), OUT_OF_MEMORY);
    let b = cuda.allocate(400);
    assert_eq!((cuda.count("allocations"), cuda.count("bytes"), cuda.count("peak-bytes")), (2, 1000, 1000));
    assert_eq!(cuda.bytes(a, 600), [0xFF; 600]);
    assert_eq!(cuda.cuMemFree_v2(a), SUCCESS);
    assert_eq!(cuda.cuMemFree_v2(a), 1, "freed twice");
    let (mut free, mut total) = (0, 0);
    cuda.cuMemGetInfo_v2(&mut free, &mut total);
    assert_eq!((free, total), (600, 1000));
    assert_eq!(cuda.cuMemFree_v2(b), SUCCESS);
    assert_eq!((cuda.count("allocations"), cuda.count("bytes"), cuda.count("peak-bytes")), (0, 0, 1000));
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
fn a_captured_fork_runs_only_when_launched() {
    let cuda = cuda();
    cuda.begin();
    let (origin, other, fork, join) = (cuda.stream(), cuda.stream(), cuda.event(), cuda.event());
    let (a, b) = (cuda.allocate(4), cuda.allocate(4));
    cuda.cuStreamBeginCapture_v2(origin, 0);
    cuda.cuMemsetD32Async(a, 5, 1, origin);
    cuda.cuEventRecord(fork, origin);
    assert_eq!(cuda.cuStreamWaitEvent(other, fork, 0), SUCCESS);
    let mut status = 0;
    cuda.cuStreamIsCapturing(other, &mut status);
    assert_eq!(status, 1);
    cuda.cuMemcpyDtoDAsync_v2(b, a, 4, other);
    cuda.cuEventRecord(join, other);
    cuda.cuStreamWaitEvent(origin, join, 0);
    let (mut graph, mut executable) = (0, 0);
    assert_eq!(cuda.cuStreamEndCapture(origin, &mut graph), SUCCESS);
    assert_eq!(cuda.bytes(b, 4), [0xFF; 4]);
    cuda.cuGraphInstantiateWithFlags(&mut executable, graph, 0);
    cuda.cuGraphDestroy(graph);
    for _ in 0..2 {
        cuda.cuMemsetD8_v2(b, 0, 4);
        assert_eq!(cuda.cuGraphLaunch(executable, origin), SUCCESS);
        cuda.cuStreamSynchronize(origin);
        assert_eq!(cuda.bytes(b, 4), [5, 0, 0, 0]);
    }
    cuda.cuGraphExecDestroy(executable);
    assert_eq!(cuda.count("graphs") + cuda.count("executable-graphs"), 0);
}

#[test]
fn an_unjoined_fork_gives_no_graph() {
    let cuda = cuda();
    cuda.begin();
    let (origin, other, fork, a) = (cuda.stream(), cuda.stream(), cuda.event(), cuda.allocate(4));
    cuda.cuStreamBeginCapture_v2(origin, 0);
    cuda.cuEventRecord(fork, origin);
    cuda.cuStreamWaitEvent(other, fork, 0);
    cuda.cuMemsetD32Async(a, 5, 1, other);
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

/// In a child process, whose environment describes the driver. The name makes it the only test that runs there.
#[test]
fn the_environment_describes_the_driver() {
    const CHILD: &str = "TIGHTFIT_MOCK_TEST_CHILD";
    if std::env::var_os(CHILD).is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "the_environment_describes_the_driver"]).env(CHILD, "1");
        child.env("TIGHTFIT_MOCK_CUDA_DEVICES", "3").env("TIGHTFIT_MOCK_CUDA_MEMORY", "512");
        child.env("TIGHTFIT_MOCK_CUDA_VERSION", "12040").env("TIGHTFIT_MOCK_CUDA_FAIL", "cuMemAlloc_v2:2:2,nonsense");
        assert!(child.output().unwrap().status.success());
        return;
    }
    let cuda = cuda();
    cuda.begin();
    let (mut devices, mut version, mut bytes) = (0, 0, 0);
    cuda.cuDeviceGetCount(&mut devices);
    cuda.cuDriverGetVersion(&mut version);
    cuda.cuDeviceTotalMem_v2(&mut bytes, 2);
    assert_eq!((devices, version, bytes), (3, 12040, 512));
    assert_eq!([0; 3].map(|_| cuda.cuMemAlloc_v2(&mut 0, 1)), [0, OUT_OF_MEMORY, 0]);
}
