//! The driver's interface (`libcuda.so.1`), with the header's names in each table entry.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

use super::{DevicePtr, functions, integers, objects, status};

status! {
    /// The result of a driver call (`CUresult`).
    DriverStatus, "CUDA_ERROR_",
    INVALID_VALUE = 1;
    OUT_OF_MEMORY = 2;
    NOT_INITIALIZED = 3;
    DEINITIALIZED = 4;
    PROFILER_DISABLED = 5;
    PROFILER_NOT_INITIALIZED = 6;
    PROFILER_ALREADY_STARTED = 7;
    PROFILER_ALREADY_STOPPED = 8;
    STUB_LIBRARY = 34;
    CALL_REQUIRES_NEWER_DRIVER = 36;
    DEVICE_UNAVAILABLE = 46;
    MULTICAST_RESOURCE_FULL = 47;
    NO_DEVICE = 100;
    INVALID_DEVICE = 101;
    DEVICE_NOT_LICENSED = 102;
    INVALID_IMAGE = 200;
    INVALID_CONTEXT = 201;
    CONTEXT_ALREADY_CURRENT = 202;
    MAP_FAILED = 205;
    UNMAP_FAILED = 206;
    ARRAY_IS_MAPPED = 207;
    ALREADY_MAPPED = 208;
    NO_BINARY_FOR_GPU = 209;
    ALREADY_ACQUIRED = 210;
    NOT_MAPPED = 211;
    NOT_MAPPED_AS_ARRAY = 212;
    NOT_MAPPED_AS_POINTER = 213;
    ECC_UNCORRECTABLE = 214;
    UNSUPPORTED_LIMIT = 215;
    CONTEXT_ALREADY_IN_USE = 216;
    PEER_ACCESS_UNSUPPORTED = 217;
    INVALID_PTX = 218;
    INVALID_GRAPHICS_CONTEXT = 219;
    NVLINK_UNCORRECTABLE = 220;
    JIT_COMPILER_NOT_FOUND = 221;
    UNSUPPORTED_PTX_VERSION = 222;
    JIT_COMPILATION_DISABLED = 223;
    UNSUPPORTED_EXEC_AFFINITY = 224;
    UNSUPPORTED_DEVSIDE_SYNC = 225;
    CONTAINED = 226;
    INSUFFICIENT_LOADER_VERSION = 227;
    INVALID_SOURCE = 300;
    FILE_NOT_FOUND = 301;
    SHARED_OBJECT_SYMBOL_NOT_FOUND = 302;
    SHARED_OBJECT_INIT_FAILED = 303;
    OPERATING_SYSTEM = 304;
    INVALID_HANDLE = 400;
    ILLEGAL_STATE = 401;
    LOSSY_QUERY = 402;
    NOT_FOUND = 500;
    NOT_READY = 600;
    ILLEGAL_ADDRESS = 700;
    LAUNCH_OUT_OF_RESOURCES = 701;
    LAUNCH_TIMEOUT = 702;
    LAUNCH_INCOMPATIBLE_TEXTURING = 703;
    PEER_ACCESS_ALREADY_ENABLED = 704;
    PEER_ACCESS_NOT_ENABLED = 705;
    PRIMARY_CONTEXT_ACTIVE = 708;
    CONTEXT_IS_DESTROYED = 709;
    ASSERT = 710;
    TOO_MANY_PEERS = 711;
    HOST_MEMORY_ALREADY_REGISTERED = 712;
    HOST_MEMORY_NOT_REGISTERED = 713;
    HARDWARE_STACK_ERROR = 714;
    ILLEGAL_INSTRUCTION = 715;
    MISALIGNED_ADDRESS = 716;
    INVALID_ADDRESS_SPACE = 717;
    INVALID_PC = 718;
    LAUNCH_FAILED = 719;
    COOPERATIVE_LAUNCH_TOO_LARGE = 720;
    TENSOR_MEMORY_LEAK = 721;
    NOT_PERMITTED = 800;
    NOT_SUPPORTED = 801;
    SYSTEM_NOT_READY = 802;
    SYSTEM_DRIVER_MISMATCH = 803;
    COMPAT_NOT_SUPPORTED_ON_DEVICE = 804;
    MPS_CONNECTION_FAILED = 805;
    MPS_RPC_FAILURE = 806;
    MPS_SERVER_NOT_READY = 807;
    MPS_MAX_CLIENTS_REACHED = 808;
    MPS_MAX_CONNECTIONS_REACHED = 809;
    MPS_CLIENT_TERMINATED = 810;
    CDP_NOT_SUPPORTED = 811;
    CDP_VERSION_MISMATCH = 812;
    STREAM_CAPTURE_UNSUPPORTED = 900;
    STREAM_CAPTURE_INVALIDATED = 901;
    STREAM_CAPTURE_MERGE = 902;
    STREAM_CAPTURE_UNMATCHED = 903;
    STREAM_CAPTURE_UNJOINED = 904;
    STREAM_CAPTURE_ISOLATION = 905;
    STREAM_CAPTURE_IMPLICIT = 906;
    CAPTURED_EVENT = 907;
    STREAM_CAPTURE_WRONG_THREAD = 908;
    TIMEOUT = 909;
    GRAPH_EXEC_UPDATE_FAILURE = 910;
    EXTERNAL_DEVICE = 911;
    INVALID_CLUSTER_SIZE = 912;
    FUNCTION_NOT_LOADED = 913;
    INVALID_RESOURCE_TYPE = 914;
    INVALID_RESOURCE_CONFIGURATION = 915;
    KEY_ROTATION = 916;
    STREAM_DETACHED = 917;
    GRAPH_RECAPTURE_FAILURE = 918;
    FABRIC_NOT_READY = 919;
    UNKNOWN = 999;
}

impl DriverStatus {
    /// The call succeeded or, if asynchronous, was enqueued.
    pub const SUCCESS: DriverStatus = DriverStatus(0);

    /// Whether a stream records a graph, during which the call is forbidden.
    pub fn is_of_capture(self) -> bool {
        (DriverStatus::STREAM_CAPTURE_UNSUPPORTED.0..=DriverStatus::CAPTURED_EVENT.0).contains(&self.0)
    }

    /// Whether the context is unusable from here on: every later call returns the same, and only a new process helps.
    ///
    /// These are the codes after which, according to `cuda.h`, the process must be terminated and relaunched: codes of
    /// failed memory and links, and of a context that is gone.
    pub fn is_sticky(self) -> bool {
        const STICKY: [DriverStatus; 14] = [
            DriverStatus::DEINITIALIZED,
            DriverStatus::ECC_UNCORRECTABLE,
            DriverStatus::NVLINK_UNCORRECTABLE,
            DriverStatus::CONTAINED,
            DriverStatus::ILLEGAL_ADDRESS,
            DriverStatus::LAUNCH_TIMEOUT,
            DriverStatus::CONTEXT_IS_DESTROYED,
            DriverStatus::ASSERT,
            DriverStatus::HARDWARE_STACK_ERROR,
            DriverStatus::ILLEGAL_INSTRUCTION,
            DriverStatus::MISALIGNED_ADDRESS,
            DriverStatus::INVALID_ADDRESS_SPACE,
            DriverStatus::INVALID_PC,
            DriverStatus::LAUNCH_FAILED,
        ];
        STICKY.contains(&self)
    }
}

integers! {
    /// A device by its place (`CUdevice`).
    Device:;
    /// Whether a stream is capturing (`CUstreamCaptureStatus`).
    CaptureStatus: NONE = 0, ACTIVE = 1, INVALIDATED = 2;
    /// The calls that a capture forbids (`CUstreamCaptureMode`).
    CaptureMode: GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2;
}

objects! {
    /// A context (`CUcontext`).
    Context;
    /// A stream (`CUstream`, the runtime's `cudaStream_t`).
    Stream;
    /// Where stream-ordered memory comes from (`CUmemoryPool`).
    MemPool;
    /// An event (`CUevent`).
    Event;
    /// A captured graph (`CUgraph`).
    Graph;
    /// A graph ready to launch (`CUgraphExec`).
    GraphExec;
    /// Loaded code (`CUmodule`).
    Module;
    /// A kernel of a module (`CUfunction`).
    Function;
}

/// Flag of a stream that does not wait for the default stream.
pub const STREAM_NON_BLOCKING: c_uint = 1;
/// Flag of an event that only orders streams.
pub const EVENT_DISABLE_TIMING: c_uint = 2;
/// Flag of an event that takes the time.
pub const EVENT_DEFAULT: c_uint = 0;
/// Flag of pinned memory that every context may use.
pub const MEMHOSTALLOC_PORTABLE: c_uint = 1;

/// A copy of rows (`CUDA_MEMCPY2D`, version 2); of both sides, only device memory is used here.
#[repr(C)]
#[derive(Debug)]
pub struct Memcpy2d {
    /// Bytes before a source row.
    pub from_x: usize,
    /// Source rows before the first.
    pub from_y: usize,
    /// [`MEMORY_DEVICE`].
    pub from_type: c_uint,
    /// Not used.
    pub from_host: *const c_void,
    /// Where source rows begin.
    pub from: DevicePtr,
    /// Not used.
    pub from_array: *const c_void,
    /// Bytes from a source row to the next.
    pub from_pitch: usize,
    /// Bytes before a target row.
    pub to_x: usize,
    /// Target rows before the first.
    pub to_y: usize,
    /// [`MEMORY_DEVICE`].
    pub to_type: c_uint,
    /// Not used.
    pub to_host: *mut c_void,
    /// Where target rows begin.
    pub to: DevicePtr,
    /// Not used.
    pub to_array: *const c_void,
    /// Bytes from a target row to the next.
    pub to_pitch: usize,
    /// Bytes of a row.
    pub width: usize,
    /// How many rows.
    pub height: usize,
}

/// Which memory a pool is of (`CUmemPoolProps`).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemPoolProps {
    /// [`ALLOCATION_PINNED`].
    pub allocation: c_uint,
    /// 0, because no other process uses it.
    pub handles: c_uint,
    /// [`LOCATION_DEVICE`].
    pub location: c_uint,
    /// The device's ordinal.
    pub device: c_int,
    /// Not used.
    pub security: *const c_void,
    /// 0 for all of it.
    pub most: usize,
    /// 0 for any use.
    pub usage: u16,
    /// 0.
    pub reserved: [u8; 54],
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, as device memory is said to be.
pub const ALLOCATION_PINNED: c_uint = 1;
/// `CU_MEM_LOCATION_TYPE_DEVICE`
pub const LOCATION_DEVICE: c_uint = 1;

/// `CU_MEMORYTYPE_DEVICE`
pub const MEMORY_DEVICE: c_uint = 2;

functions! {
    /// The driver's functions.
    Driver, "libcuda.so.1",
    init = "cuInit": fn(c_uint) -> DriverStatus;
    driver_get_version = "cuDriverGetVersion": fn(*mut c_int) -> DriverStatus;
    device_get_count = "cuDeviceGetCount": fn(*mut c_int) -> DriverStatus;
    device_get = "cuDeviceGet": fn(*mut Device, c_int) -> DriverStatus;
    device_get_name = "cuDeviceGetName": fn(*mut c_char, c_int, Device) -> DriverStatus;
    primary_ctx_retain = "cuDevicePrimaryCtxRetain": fn(*mut Context, Device) -> DriverStatus;
    primary_ctx_release = "cuDevicePrimaryCtxRelease_v2": fn(Device) -> DriverStatus;
    ctx_set_current = "cuCtxSetCurrent": fn(Context) -> DriverStatus;
    ctx_get_current = "cuCtxGetCurrent": fn(*mut Context) -> DriverStatus;
    ctx_get_device = "cuCtxGetDevice": fn(*mut Device) -> DriverStatus;
    ctx_synchronize = "cuCtxSynchronize": fn() -> DriverStatus;
    mem_get_info = "cuMemGetInfo_v2": fn(*mut usize, *mut usize) -> DriverStatus;
    mem_alloc = "cuMemAlloc_v2": fn(*mut DevicePtr, usize) -> DriverStatus;
    mem_free = "cuMemFree_v2": fn(DevicePtr) -> DriverStatus;
    mem_pool_create = "cuMemPoolCreate": fn(*mut MemPool, *const MemPoolProps) -> DriverStatus;
    mem_pool_destroy = "cuMemPoolDestroy": fn(MemPool) -> DriverStatus;
    mem_pool_trim_to = "cuMemPoolTrimTo": fn(MemPool, usize) -> DriverStatus;
    mem_alloc_async = "cuMemAllocFromPoolAsync": fn(*mut DevicePtr, usize, MemPool, Stream) -> DriverStatus;
    mem_free_async = "cuMemFreeAsync": fn(DevicePtr, Stream) -> DriverStatus;
    mem_host_alloc = "cuMemHostAlloc": fn(*mut *mut c_void, usize, c_uint) -> DriverStatus;
    mem_free_host = "cuMemFreeHost": fn(*mut c_void) -> DriverStatus;
    memcpy_htod = "cuMemcpyHtoD_v2": fn(DevicePtr, *const c_void, usize) -> DriverStatus;
    memcpy_dtoh = "cuMemcpyDtoH_v2": fn(*mut c_void, DevicePtr, usize) -> DriverStatus;
    memcpy_htod_async = "cuMemcpyHtoDAsync_v2": fn(DevicePtr, *const c_void, usize, Stream) -> DriverStatus;
    memcpy_dtoh_async = "cuMemcpyDtoHAsync_v2": fn(*mut c_void, DevicePtr, usize, Stream) -> DriverStatus;
    memcpy_dtod_async = "cuMemcpyDtoDAsync_v2": fn(DevicePtr, DevicePtr, usize, Stream) -> DriverStatus;
    memcpy_2d_async = "cuMemcpy2DAsync_v2": fn(*const Memcpy2d, Stream) -> DriverStatus;
    memset_d8_async = "cuMemsetD8Async": fn(DevicePtr, u8, usize, Stream) -> DriverStatus;
    stream_create = "cuStreamCreate": fn(*mut Stream, c_uint) -> DriverStatus;
    stream_destroy = "cuStreamDestroy_v2": fn(Stream) -> DriverStatus;
    stream_synchronize = "cuStreamSynchronize": fn(Stream) -> DriverStatus;
    stream_wait_event = "cuStreamWaitEvent": fn(Stream, Event, c_uint) -> DriverStatus;
    stream_is_capturing = "cuStreamIsCapturing": fn(Stream, *mut CaptureStatus) -> DriverStatus;
    stream_get_id = "cuStreamGetId": fn(Stream, *mut c_ulonglong) -> DriverStatus;
    stream_get_capture_info = "cuStreamGetCaptureInfo_v2": fn(
        Stream, *mut CaptureStatus, *mut c_ulonglong, *mut Graph, *mut *const c_void, *mut usize
    ) -> DriverStatus;
    thread_exchange_capture_mode = "cuThreadExchangeStreamCaptureMode": fn(*mut CaptureMode) -> DriverStatus;
    stream_begin_capture = "cuStreamBeginCapture_v2": fn(Stream, CaptureMode) -> DriverStatus;
    stream_end_capture = "cuStreamEndCapture": fn(Stream, *mut Graph) -> DriverStatus;
    graph_instantiate = "cuGraphInstantiateWithFlags": fn(*mut GraphExec, Graph, c_ulonglong) -> DriverStatus;
    graph_launch = "cuGraphLaunch": fn(GraphExec, Stream) -> DriverStatus;
    graph_exec_destroy = "cuGraphExecDestroy": fn(GraphExec) -> DriverStatus;
    graph_destroy = "cuGraphDestroy": fn(Graph) -> DriverStatus;
    module_load_data = "cuModuleLoadData": fn(*mut Module, *const c_void) -> DriverStatus;
    module_get_function = "cuModuleGetFunction": fn(*mut Function, Module, *const c_char) -> DriverStatus;
    module_unload = "cuModuleUnload": fn(Module) -> DriverStatus;
    launch_kernel = "cuLaunchKernel": fn(
        Function, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Stream, *mut *mut c_void, *mut *mut c_void
    ) -> DriverStatus;
    event_create = "cuEventCreate": fn(*mut Event, c_uint) -> DriverStatus;
    event_record = "cuEventRecord": fn(Event, Stream) -> DriverStatus;
    event_query = "cuEventQuery": fn(Event) -> DriverStatus;
    event_synchronize = "cuEventSynchronize": fn(Event) -> DriverStatus;
    event_elapsed_time = "cuEventElapsedTime": fn(*mut f32, Event, Event) -> DriverStatus;
    event_destroy = "cuEventDestroy_v2": fn(Event) -> DriverStatus;
}
