//! The driver's calls. Every object passed in came from the same table and is alive, and the context it belongs to is
//! current on the calling thread, unless a function's `# Safety` says otherwise.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::CudaError;
use crate::sys::DevicePtr;
use crate::sys::driver::*;

fn check(call: &'static str, status: DriverStatus) -> Result<(), CudaError> {
    if status == DriverStatus::SUCCESS { Ok(()) } else { Err(CudaError::Driver { call, status }) }
}

/// Declares thin calls: name, C name, arguments as passed.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident = $field:ident $symbol:literal ($($argument:ident: $type:ty),*);)*) => {$(
        $(#[$doc])*
        pub unsafe fn $name(driver: &Driver, $($argument: $type),*) -> Result<(), CudaError> {
            // SAFETY: forwarded to the caller.
            check($symbol, unsafe { (driver.$field)($($argument),*) })
        }
    )*};
}

/// Declares calls whose first parameter is where the answer goes.
macro_rules! answers {
    ($($(#[$doc:meta])* $name:ident = $field:ident $symbol:literal ($($argument:ident: $type:ty),*) -> $answer:ty = $empty:expr;)*) => {$(
        $(#[$doc])*
        pub unsafe fn $name(driver: &Driver, $($argument: $type),*) -> Result<$answer, CudaError> {
            let mut answer: $answer = $empty;
            // SAFETY: `answer` is a place for the value; the rest is forwarded to the caller.
            check($symbol, unsafe { (driver.$field)(&mut answer, $($argument),*) })?;
            Ok(answer)
        }
    )*};
}

calls! {
    /// Starts the driver.
    ///
    /// # Safety
    /// None beyond the table's: may be called again, from any thread.
    init = init "cuInit" (flags: c_uint);
    /// Returns the primary context.
    ///
    /// # Safety
    /// Retained once more than released, and nothing of it is used after the last release.
    primary_ctx_release = primary_ctx_release "cuDevicePrimaryCtxRelease" (device: Device);
    /// Makes a context current on the calling thread.
    ///
    /// # Safety
    /// The context is alive.
    ctx_set_current = ctx_set_current "cuCtxSetCurrent" (context: Context);
    /// Waits for all work of the current context.
    ///
    /// # Safety
    /// As the module's.
    ctx_synchronize = ctx_synchronize "cuCtxSynchronize" ();
    /// Frees device memory.
    ///
    /// # Safety
    /// From [`mem_alloc`], freed once, and no work still queued uses it.
    mem_free = mem_free "cuMemFree" (address: DevicePtr);
    /// Frees device memory once the stream has done its work so far.
    ///
    /// # Safety
    /// From [`mem_alloc_async`], freed once, and no work on other streams uses it then.
    mem_free_async = mem_free_async "cuMemFreeAsync" (address: DevicePtr, stream: Stream);
    /// Returns memory that no work uses any more to the device, except this number of bytes. Never waits.
    ///
    /// # Safety
    /// As the module's.
    mem_pool_trim_to = mem_pool_trim_to "cuMemPoolTrimTo" (pool: MemPool, bytes: usize);
    /// Ends a pool.
    ///
    /// # Safety
    /// Nothing is taken from it any more.
    mem_pool_destroy = mem_pool_destroy "cuMemPoolDestroy" (pool: MemPool);
    /// Frees pinned host memory.
    ///
    /// # Safety
    /// From [`mem_host_alloc`], freed once, and no copy still queued uses it.
    mem_free_host = mem_free_host "cuMemFreeHost" (address: *mut c_void);
    /// Copies host memory to the device and waits.
    ///
    /// # Safety
    /// `bytes` are readable at `from` and belong to one device buffer at `to`.
    memcpy_htod = memcpy_htod "cuMemcpyHtoD" (to: DevicePtr, from: *const c_void, bytes: usize);
    /// Copies device memory to the host and waits.
    ///
    /// # Safety
    /// `bytes` are writable at `to` and belong to one device buffer at `from`.
    memcpy_dtoh = memcpy_dtoh "cuMemcpyDtoH" (to: *mut c_void, from: DevicePtr, bytes: usize);
    /// Enqueues a copy from pinned host memory to the device.
    ///
    /// # Safety
    /// As [`memcpy_htod`], and both sides stay alive and the source unchanged until the stream has done it.
    memcpy_htod_async = memcpy_htod_async "cuMemcpyHtoDAsync"
        (to: DevicePtr, from: *const c_void, bytes: usize, stream: Stream);
    /// Enqueues a copy from the device to pinned host memory.
    ///
    /// # Safety
    /// As [`memcpy_dtoh`], and both sides stay alive and the target untouched until the stream has done it.
    memcpy_dtoh_async = memcpy_dtoh_async "cuMemcpyDtoHAsync"
        (to: *mut c_void, from: DevicePtr, bytes: usize, stream: Stream);
    /// Enqueues a copy within the device.
    ///
    /// # Safety
    /// Both ranges belong to live device buffers, do not overlap, and stay alive until the stream has finished the
    /// copy.
    memcpy_dtod_async = memcpy_dtod_async "cuMemcpyDtoDAsync"
        (to: DevicePtr, from: DevicePtr, bytes: usize, stream: Stream);
    /// Enqueues a copy of rows within the device.
    ///
    /// # Safety
    /// All rows of both sides belong to live device buffers, do not overlap, and stay alive until the stream has done it;
    /// the description is read during the call.
    memcpy_2d_async = memcpy_2d_async "cuMemcpy2DAsync" (copy: *const Memcpy2d, stream: Stream);
    /// Enqueues filling device memory with one byte.
    ///
    /// # Safety
    /// The range belongs to a device buffer that stays alive until the stream has done it.
    memset_d8_async = memset_d8_async "cuMemsetD8Async" (to: DevicePtr, value: u8, bytes: usize, stream: Stream);
    /// Destroys a stream once its work is done.
    ///
    /// # Safety
    /// Destroyed once.
    stream_destroy = stream_destroy "cuStreamDestroy" (stream: Stream);
    /// Waits for a stream's work.
    ///
    /// # Safety
    /// As the module's.
    stream_synchronize = stream_synchronize "cuStreamSynchronize" (stream: Stream);
    /// Makes later work of a stream wait for an event.
    ///
    /// # Safety
    /// As the module's; `flags` is 0.
    stream_wait_event = stream_wait_event "cuStreamWaitEvent" (stream: Stream, event: Event, flags: c_uint);
    /// Records work into a graph from here on, in place of running it.
    ///
    /// # Safety
    /// As the module's.
    stream_begin_capture = stream_begin_capture "cuStreamBeginCapture" (stream: Stream, mode: CaptureMode);
    /// Enqueues a graph.
    ///
    /// # Safety
    /// All memory that the captured work uses is still alive, and stays so until the stream has done it.
    graph_launch = graph_launch "cuGraphLaunch" (graph: GraphExec, stream: Stream);
    /// Destroys a graph that was ready to launch.
    ///
    /// # Safety
    /// Destroyed once.
    graph_exec_destroy = graph_exec_destroy "cuGraphExecDestroy" (graph: GraphExec);
    /// Destroys a captured graph.
    ///
    /// # Safety
    /// Destroyed once.
    graph_destroy = graph_destroy "cuGraphDestroy" (graph: Graph);
    /// Unloads a module.
    ///
    /// # Safety
    /// Unloaded once, and none of its kernels is queued.
    module_unload = module_unload "cuModuleUnload" (module: Module);
    /// Enqueues an event.
    ///
    /// # Safety
    /// As the module's.
    event_record = event_record "cuEventRecord" (event: Event, stream: Stream);
    /// Waits for an event.
    ///
    /// # Safety
    /// As the module's.
    event_synchronize = event_synchronize "cuEventSynchronize" (event: Event);
    /// Destroys an event.
    ///
    /// # Safety
    /// Destroyed once.
    event_destroy = event_destroy "cuEventDestroy" (event: Event);
}

answers! {
    /// The newest CUDA version that the driver serves, as 1000 · major + 10 · minor.
    ///
    /// # Safety
    /// None beyond the table's.
    driver_get_version = driver_get_version "cuDriverGetVersion" () -> c_int = 0;
    /// How many devices there are.
    ///
    /// # Safety
    /// After [`init`].
    device_get_count = device_get_count "cuDeviceGetCount" () -> c_int = 0;
    /// A device by its ordinal.
    ///
    /// # Safety
    /// After [`init`].
    device_get = device_get "cuDeviceGet" (ordinal: c_int) -> Device = Device(0);
    /// The context that all users of a device in this process share.
    ///
    /// # Safety
    /// Given back by [`primary_ctx_release`].
    primary_ctx_retain = primary_ctx_retain "cuDevicePrimaryCtxRetain" (device: Device) -> Context = Context::NULL;
    /// The calling thread's context; null if it has none.
    ///
    /// # Safety
    /// After [`init`].
    ctx_get_current = ctx_get_current "cuCtxGetCurrent" () -> Context = Context::NULL;
    /// The device of the current context.
    ///
    /// # Safety
    /// As the module's.
    ctx_get_device = ctx_get_device "cuCtxGetDevice" () -> Device = Device(0);
    /// Takes device memory.
    ///
    /// # Safety
    /// As the module's; `bytes` is not 0.
    mem_alloc = mem_alloc "cuMemAlloc" (bytes: usize) -> DevicePtr = DevicePtr(0);
    /// A new pool of device memory.
    ///
    /// # Safety
    /// `of` points to live properties of the pool.
    mem_pool_create = mem_pool_create "cuMemPoolCreate" (of: *const MemPoolProps) -> MemPool = MemPool::NULL;
    /// Takes device memory of a pool for the stream's work from here on.
    ///
    /// # Safety
    /// As the module's; `bytes` is not 0.
    mem_alloc_async = mem_alloc_async "cuMemAllocFromPoolAsync" (bytes: usize, pool: MemPool, stream: Stream) -> DevicePtr = DevicePtr(0);
    /// Takes pinned host memory.
    ///
    /// # Safety
    /// As the module's; `bytes` is not 0.
    mem_host_alloc = mem_host_alloc "cuMemHostAlloc" (bytes: usize, flags: c_uint) -> *mut c_void = std::ptr::null_mut();
    /// A new stream.
    ///
    /// # Safety
    /// As the module's.
    stream_create = stream_create "cuStreamCreate" (flags: c_uint) -> Stream = Stream::NULL;
    /// Code from PTX, compiled here for the device.
    ///
    /// # Safety
    /// As the module's; `image` is PTX that ends with a zero.
    module_load_data = module_load_data "cuModuleLoadData" (image: *const c_void) -> Module = Module::NULL;
    /// A kernel by its name.
    ///
    /// # Safety
    /// As the module's; `name` ends with a zero.
    module_get_function = module_get_function "cuModuleGetFunction"
        (module: Module, name: *const c_char) -> Function = Function::NULL;
    /// A new event.
    ///
    /// # Safety
    /// As the module's.
    event_create = event_create "cuEventCreate" (flags: c_uint) -> Event = Event::NULL;
    /// Milliseconds between two events that have happened.
    ///
    /// # Safety
    /// As the module's; both take the time.
    event_elapsed_time = event_elapsed_time "cuEventElapsedTime" (start: Event, end: Event) -> f32 = 0.0;
    /// A graph ready to launch.
    ///
    /// # Safety
    /// As the module's; `flags` is 0.
    graph_instantiate = graph_instantiate "cuGraphInstantiate" (graph: Graph, flags: u64) -> GraphExec = GraphExec::NULL;
}

/// The graph of the work enqueued since the capture began.
///
/// # Safety
/// The stream is capturing.
pub unsafe fn stream_end_capture(driver: &Driver, stream: Stream) -> Result<Graph, CudaError> {
    let mut graph = Graph::NULL;
    // SAFETY: `graph` is a place for the value; the rest is forwarded to the caller.
    check("cuStreamEndCapture", unsafe { (driver.stream_end_capture)(stream, &mut graph) })?;
    Ok(graph)
}

/// Free and total bytes of the current context's device.
///
/// # Safety
/// As the module's.
pub unsafe fn mem_get_info(driver: &Driver) -> Result<(usize, usize), CudaError> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both are places for the values; the rest is forwarded to the caller.
    check("cuMemGetInfo", unsafe { (driver.mem_get_info)(&mut free, &mut total) })?;
    Ok((free, total))
}

/// Whether a stream is capturing; for the default stream, this is an error while other streams are.
///
/// # Safety
/// As the module's.
pub unsafe fn stream_is_capturing(driver: &Driver, stream: Stream) -> Result<CaptureStatus, CudaError> {
    let mut answer = CaptureStatus::NONE;
    // SAFETY: `answer` is a place for the value; the rest is forwarded to the caller.
    check("cuStreamIsCapturing", unsafe { (driver.stream_is_capturing)(stream, &mut answer) })?;
    Ok(answer)
}

/// A stream's number, which is unique within the process, even over time. The threads' default streams have one each.
///
/// # Safety
/// As the module's.
pub unsafe fn stream_get_id(driver: &Driver, stream: Stream) -> Result<u64, CudaError> {
    let mut answer = 0;
    // SAFETY: `answer` is a place for the value; the rest is forwarded to the caller.
    check("cuStreamGetId", unsafe { (driver.stream_get_id)(stream, &mut answer) })?;
    Ok(answer)
}

/// The number of the capture that a stream takes part in, or `None` outside of one. Streams of one capture have the same
/// number.
///
/// # Safety
/// As the module's.
pub unsafe fn stream_capture_id(driver: &Driver, stream: Stream) -> Result<Option<u64>, CudaError> {
    let (mut status, mut id) = (CaptureStatus::NONE, 0);
    let (graph, dependencies, count) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: `status` and `id` are places for the values, and the others may be null; the rest is forwarded to the caller.
    let answer = unsafe { (driver.stream_get_capture_info)(stream, &mut status, &mut id, graph, dependencies, count) };
    check("cuStreamGetCaptureInfo", answer)?;
    Ok((status != CaptureStatus::NONE).then_some(id))
}

/// Sets which captures of other threads forbid calls on this one; returns the previous setting.
///
/// # Safety
/// As the module's.
pub unsafe fn thread_exchange_capture_mode(driver: &Driver, mode: CaptureMode) -> Result<CaptureMode, CudaError> {
    let mut mode = mode;
    // SAFETY: `mode` is a place for both values; the rest is forwarded to the caller.
    check("cuThreadExchangeStreamCaptureMode", unsafe { (driver.thread_exchange_capture_mode)(&mut mode) })?;
    Ok(mode)
}

/// A device's name, such as `NVIDIA H200`.
///
/// # Safety
/// As the module's.
pub unsafe fn device_get_name(driver: &Driver, device: Device) -> Result<String, CudaError> {
    let mut name = [0 as c_char; 256];
    // One byte less than the buffer has, so that the text always ends. SAFETY: `name` has room for the length given; the
    // rest is forwarded to the caller.
    check("cuDeviceGetName", unsafe { (driver.device_get_name)(name.as_mut_ptr(), 255, device) })?;
    // SAFETY: the last byte was never given to the driver and is 0.
    Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
}

/// Whether an event has happened.
///
/// # Safety
/// As the module's.
pub unsafe fn event_query(driver: &Driver, event: Event) -> Result<bool, CudaError> {
    // SAFETY: forwarded to the caller.
    match unsafe { (driver.event_query)(event) } {
        DriverStatus::NOT_READY => Ok(false),
        status => check("cuEventQuery", status).map(|()| true),
    }
}

/// Enqueues a kernel on a grid of blocks of `threads` threads.
///
/// # Safety
/// As the module's. `arguments` points to one value of the right type for each parameter of the kernel, and the kernel's
/// inputs and outputs stay alive until the stream has done the work.
pub unsafe fn launch_kernel(
    driver: &Driver,
    function: Function,
    grid: [c_uint; 2],
    threads: c_uint,
    stream: Stream,
    arguments: &mut [*mut c_void],
) -> Result<(), CudaError> {
    let (at, none) = (arguments.as_mut_ptr(), std::ptr::null_mut());
    // SAFETY: forwarded to the caller; the driver copies the arguments before it returns.
    check("cuLaunchKernel", unsafe {
        (driver.launch_kernel)(function, grid[0], grid[1], 1, threads, 1, 1, 0, stream, at, none)
    })
}
