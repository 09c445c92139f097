//! Allocation, copies, fills.
//!
//! A copy between host and device is a piece of work like any other. The host sees this of it:
//! ```text
//! host memory   host to device                      device to host
//! pinned        read when the stream gets there     written when the stream gets there
//! pageable      read during the call                the call waits for the stream (counted as a synchronization)
//! ```

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use super::{Handle, Out, put, room};
use crate::call::{call, release};
use crate::control::{count_synchronization, description};
use crate::error::Code;
use crate::memory::{Block, MemoryKind};
use crate::state::state;
use crate::stream::Work;

/// Virtual time of a transfer: a launch, then bytes at this rate per microsecond.
fn duration(bytes: usize, per_micro: u64) -> u64 {
    2_000 + (bytes as u64).saturating_mul(1_000) / per_micro
}
/// Bytes per microsecond between host and device.
const LINK: u64 = 50_000;
/// Bytes per microsecond on the device.
const DEVICE: u64 = 2_000_000;

#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> c_int {
    call("cuMemGetInfo_v2", || {
        let state = state();
        let used = state.memory.bytes(MemoryKind::Device(state.healthy_device()?));
        let memory = description().memory;
        put(free, usize::try_from(memory.saturating_sub(used)).unwrap_or(usize::MAX))?;
        put(total, usize::try_from(memory).unwrap_or(usize::MAX))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAlloc_v2(pointer: Out<u64>, bytes: usize) -> c_int {
    call("cuMemAlloc_v2", || {
        let pointer = room(pointer)?;
        let mut state = state();
        let device = state.healthy_device()?;
        state.refuse_under_capture()?;
        pointer.write(state.memory.allocate(bytes, MemoryKind::Device(device), description().memory)? as u64);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(pointer: u64) -> c_int {
    release("cuMemFree_v2", || free(pointer as usize, false))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocFromPoolAsync(pointer: Out<u64>, bytes: usize, pool: Handle, stream: Handle) -> c_int {
    call("cuMemAllocFromPoolAsync", || allocate_in_order(pointer, bytes, pool, stream))
}

fn allocate_in_order(pointer: Out<u64>, bytes: usize, pool: Handle, stream: Handle) -> Result<(), Code> {
    let pointer = room(pointer)?;
    let mut state = state();
    state.healthy_device()?;
    // In a captured stream it would become a node of the graph, which this library has none of.
    if let Some((_, capture)) = state.capture(stream) {
        capture.invalid = true;
        return Err(Code::CAPTURE_UNSUPPORTED);
    }
    pointer.write(state.memory.allocate_from(pool, bytes, description().memory)? as u64);
    Ok(())
}

/// The handle of the pool that a device has from the start, which is made when it is first asked for.
fn default_pool(device: usize) -> Handle {
    let handle = usize::MAX - device;
    state().memory.add_pool(handle, device);
    handle
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: c_int) -> c_int {
    call("cuDeviceGetDefaultMemPool", || {
        let device = usize::try_from(device).ok().filter(|device| *device < description().devices);
        put(pool, default_pool(device.ok_or(Code::INVALID_VALUE)?))
    })
}

/// The beginning of `CUmemPoolProps`.
#[repr(C)]
pub struct PoolProps {
    allocation: c_uint,
    handles: c_uint,
    location: c_uint,
    device: c_int,
}

/// Makes a pool.
///
/// # Safety
/// `of` points to a description.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolCreate(pool: Out<Handle>, of: *const PoolProps) -> c_int {
    call("cuMemPoolCreate", || {
        let pool = room(pool)?;
        // SAFETY: by the contract; null is refused.
        let of = unsafe { of.as_ref() }.ok_or(Code::INVALID_VALUE)?;
        let device = usize::try_from(of.device).ok().filter(|device| *device < description().devices);
        let device = device.filter(|_| (of.allocation, of.handles, of.location) == (1, 0, 1));
        let mut state = state();
        let handle = state.new_handle();
        state.memory.add_pool(handle, device.ok_or(Code::INVALID_VALUE)?);
        pool.write(handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolDestroy(pool: Handle) -> c_int {
    release("cuMemPoolDestroy", || state().memory.remove_pool(pool))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolTrimTo(pool: Handle, bytes: usize) -> c_int {
    call("cuMemPoolTrimTo", || state().memory.trim(pool, bytes as u64))
}

/// Sets the bytes that a pool keeps when the program waits (`CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`). Other attributes are not
/// supported.
///
/// # Safety
/// `value` points to a number of 64 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolSetAttribute(pool: Handle, attribute: c_int, value: *const u64) -> c_int {
    call("cuMemPoolSetAttribute", || {
        // SAFETY: by the contract; null is refused.
        let value = unsafe { value.as_ref() }.filter(|_| attribute == 4).ok_or(Code::INVALID_VALUE)?;
        state().memory.keep(pool, *value)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(pointer: u64, stream: Handle) -> c_int {
    release("cuMemFreeAsync", || {
        let run = move || state().memory.free(pointer as usize, false);
        submit(stream, Work { run: Arc::new(run), nanos: 0 }, false)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostAlloc(pointer: Out<*mut c_void>, bytes: usize, flags: c_uint) -> c_int {
    call("cuMemHostAlloc", || {
        let pointer = room(pointer)?;
        let mut state = state();
        state.healthy_device()?;
        state.refuse_under_capture()?;
        if flags > 7 {
            return Err(Code::INVALID_VALUE);
        }
        pointer.write(state.memory.allocate(bytes, MemoryKind::Host, u64::MAX)? as *mut c_void);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(pointer: *mut c_void) -> c_int {
    release("cuMemFreeHost", || free(pointer as usize, true))
}

fn free(address: usize, on_host: bool) -> Result<(), Code> {
    let mut state = state();
    let device = state.device()?;
    state.refuse_under_capture()?;
    if address == 0 && !on_host {
        return Ok(());
    }
    state.memory.free(address, on_host)?;
    state.health(device)
}

/// One side of a copy.
#[derive(Clone)]
enum Side {
    /// A range that must be alive when the copy runs.
    Tracked(usize),
    /// Pageable memory, taken during the call.
    Staged(Arc<[u8]>),
    /// Pageable memory that the caller keeps while it waits.
    Pageable(usize),
}

impl Side {
    /// The address, and the block that keeps it alive while the copy runs.
    fn hold(&self, len: usize) -> Result<(usize, Option<Arc<Block>>), Code> {
        match self {
            Side::Tracked(address) => Ok((*address, Some(state().memory.hold(*address, len)?))),
            Side::Staged(bytes) => Ok((bytes.as_ptr() as usize, None)),
            Side::Pageable(address) => Ok((*address, None)),
        }
    }
}

fn copy(to: Side, from: Side, len: usize, per_micro: u64) -> Work {
    let run = move || {
        let ((to, _to_block), (from, _from_block)) = (to.hold(len)?, from.hold(len)?);
        // SAFETY: a tracked range is alive and held until the end of the copy; staged bytes are owned by `from`; pageable
        // memory is the caller's, who waits for this very copy. `copy` allows overlap.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, len) };
        Ok(())
    };
    Work { run: Arc::new(run), nanos: duration(len, per_micro) }
}

/// Submits to a stream, and waits for it if the host must see the result at once.
fn submit(stream: Handle, work: Work, wait: bool) -> Result<(), Code> {
    let mut state = state();
    state.healthy_device()?;
    if wait {
        state.refuse_under_capture()?;
        // In relaxed mode too: a graph must not keep the address of memory that is only lent for the call.
        if let Some((_, capture)) = state.capture(stream) {
            capture.invalid = true;
            return Err(Code::CAPTURE_UNSUPPORTED);
        }
    }
    let stream = state.submit(stream, work)?;
    drop(state);
    if wait {
        count_synchronization();
        stream.synchronize();
        return crate::state::state().health(stream.device);
    }
    Ok(())
}

fn checked(address: usize, len: usize) -> Result<(), Code> {
    if address == 0 && len > 0 { Err(Code::INVALID_VALUE) } else { Ok(()) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> c_int {
    call("cuMemcpyHtoD_v2", || {
        checked(from as usize, bytes)?;
        let (to, from) = (Side::Tracked(to as usize), staged(from, bytes));
        if matches!(from, Side::Tracked(_)) {
            return submit(0, copy(to, from, bytes, LINK), true);
        }
        // From pageable memory the call waits for earlier work and returns once the bytes are staged: on their way, not
        // there. A stream that does not wait for the default stream may overtake them.
        submit(0, Work { run: Arc::new(|| Ok(())), nanos: 0 }, true)?;
        submit(0, copy(to, from, bytes, LINK), false)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> c_int {
    call("cuMemcpyDtoH_v2", || {
        checked(to as usize, bytes)?;
        submit(0, copy(host(to as usize), Side::Tracked(from as usize), bytes, LINK), true)
    })
}

/// Host memory that stays valid while the caller waits.
fn host(address: usize) -> Side {
    if state().memory.is_pinned(address) { Side::Tracked(address) } else { Side::Pageable(address) }
}

/// The source of a copy that may run after the call: pinned memory as it is, pageable memory as a copy of its bytes.
fn staged(from: *const c_void, bytes: usize) -> Side {
    if state().memory.is_pinned(from as usize) {
        Side::Tracked(from as usize)
    } else if bytes == 0 {
        Side::Staged(Arc::default())
    } else {
        // SAFETY: the caller of the copy gives `bytes` readable bytes at `from` for the time of the call.
        Side::Staged(unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) }.into())
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: Handle) -> c_int {
    call("cuMemcpyHtoDAsync_v2", || {
        checked(from as usize, bytes)?;
        let from = staged(from, bytes);
        submit(stream, copy(Side::Tracked(to as usize), from, bytes, LINK), false)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: Handle) -> c_int {
    call("cuMemcpyDtoHAsync_v2", || {
        checked(to as usize, bytes)?;
        let to = host(to as usize);
        let pageable = matches!(to, Side::Pageable(_));
        submit(stream, copy(to, Side::Tracked(from as usize), bytes, LINK), pageable)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle) -> c_int {
    call("cuMemcpyDtoDAsync_v2", || {
        submit(stream, copy(Side::Tracked(to as usize), Side::Tracked(from as usize), bytes, DEVICE), false)
    })
}

/// `CUDA_MEMCPY2D`
#[repr(C)]
pub struct Rows {
    from_x: usize,
    from_y: usize,
    from_type: c_uint,
    from_host: *const c_void,
    from: u64,
    from_array: *const c_void,
    from_pitch: usize,
    to_x: usize,
    to_y: usize,
    to_type: c_uint,
    to_host: *mut c_void,
    to: u64,
    to_array: *const c_void,
    to_pitch: usize,
    width: usize,
    height: usize,
}

/// Copies rows within the device.
///
/// # Safety
/// `rows` points to a description.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpy2DAsync_v2(rows: *const Rows, stream: Handle) -> c_int {
    call("cuMemcpy2DAsync_v2", || {
        // SAFETY: by the contract; null is refused.
        let rows = unsafe { rows.as_ref() }.ok_or(Code::INVALID_VALUE)?;
        let (width, height) = (rows.width, rows.height);
        let sides =
            [(rows.from, rows.from_x, rows.from_y, rows.from_pitch), (rows.to, rows.to_x, rows.to_y, rows.to_pitch)];
        let [from, to] = sides.map(|(address, x, y, pitch)| (address as usize + y * pitch + x, pitch));
        let is_device = |memory: c_uint| memory == 2;
        if !is_device(rows.from_type) || !is_device(rows.to_type) || width > from.1.min(to.1) {
            return Err(Code::INVALID_VALUE);
        }
        let span = move |pitch: usize| height.saturating_sub(1) * pitch + width;
        let run = move || {
            let _from_block = state().memory.hold(from.0, span(from.1))?;
            let _to_block = state().memory.hold(to.0, span(to.1))?;
            for row in 0..height {
                let (from, to) = (from.0 + row * from.1, to.0 + row * to.1);
                // SAFETY: both rows lie in ranges that are alive and held; `copy` allows overlap.
                unsafe { std::ptr::copy(from as *const u8, to as *mut u8, width) };
            }
            Ok(())
        };
        submit(stream, Work { run: Arc::new(run), nanos: duration(width * height, DEVICE) }, false)
    })
}

/// Fills with a repeated pattern of one or four bytes.
fn fill(to: u64, value: u8, count: usize) -> Work {
    let to = to as usize;
    let run = move || {
        let _block = state().memory.hold(to, count)?;
        // SAFETY: the range is alive and held.
        unsafe { std::slice::from_raw_parts_mut(to as *mut u8, count) }.fill(value);
        Ok(())
    };
    Work { run: Arc::new(run), nanos: duration(count, DEVICE) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8_v2(to: u64, value: u8, count: usize) -> c_int {
    call("cuMemsetD8_v2", || submit(0, fill(to, value, count), true))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: Handle) -> c_int {
    call("cuMemsetD8Async", || submit(stream, fill(to, value, count), false))
}
