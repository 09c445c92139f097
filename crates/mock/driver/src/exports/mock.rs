//! Functions that no real driver has: additional controls for tests, and functions with which mock-cudnn enqueues work.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use super::Handle;
use crate::control;
use crate::error::Code;
use crate::memory::Block;
use crate::state::state;
use crate::stream::Work;

/// Makes each piece of work of a stream, by its order of creation, begin later by this time (all streams: `u64::MAX`).
#[unsafe(no_mangle)]
pub extern "C" fn tightfitMockCudaDelay(ordinal: u64, micros: u64) {
    control::set_delay(ordinal, Duration::from_micros(micros));
}

/// Sets the number of devices.
#[unsafe(no_mangle)]
pub extern "C" fn tightfitMockCudaSetDevices(devices: u64) {
    control::describe(|d| d.devices = usize::try_from(devices).unwrap_or(usize::MAX));
}

/// Sets the bytes of each device.
#[unsafe(no_mangle)]
pub extern "C" fn tightfitMockCudaSetMemory(bytes: u64) {
    control::describe(|d| d.memory = bytes);
}

/// The data of foreign work, released when the work is dropped.
struct Foreign {
    run: extern "C" fn(*mut c_void) -> c_int,
    forget: extern "C" fn(*mut c_void),
    data: *mut c_void,
}

// SAFETY: the caller owes data that any thread may use, see `tightfitMockCudaEnqueue`.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

impl Drop for Foreign {
    fn drop(&mut self) {
        (self.forget)(self.data);
    }
}

/// Puts work into a stream, into the graph it is capturing, or into a graph itself. `run` may be called many times and
/// from any thread, until `forget` is called once; it answers a `CUresult`. On an error `forget` has been called.
#[unsafe(no_mangle)]
pub extern "C" fn tightfitMockCudaEnqueue(
    stream: Handle,
    run: extern "C" fn(*mut c_void) -> c_int,
    forget: extern "C" fn(*mut c_void),
    data: *mut c_void,
    nanos: u64,
) -> c_int {
    let foreign = Foreign { run, forget, data };
    let run = move || {
        let whole = &foreign;
        match (whole.run)(whole.data) {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    };
    let work = Work { run: Arc::new(run), nanos };
    let mut state = state();
    if let Some(graph) = state.graphs.get_mut(&stream) {
        Arc::make_mut(graph).push(work);
        return Code::SUCCESS.0;
    }
    state.submit(stream, work).err().unwrap_or(Code::SUCCESS).0
}

/// Keeps the block of a range alive until [`tightfitMockCudaLetGo`]; null if the range is not within one live block.
#[unsafe(no_mangle)]
pub extern "C" fn tightfitMockCudaHold(address: u64, bytes: u64) -> *const c_void {
    let (Ok(address), Ok(bytes)) = (usize::try_from(address), usize::try_from(bytes)) else { return std::ptr::null() };
    state().memory.hold(address, bytes).map_or(std::ptr::null(), |block| Arc::into_raw(block).cast())
}

/// Ends a result of [`tightfitMockCudaHold`]; does nothing for null.
#[unsafe(no_mangle)]
pub extern "C" fn tightfitMockCudaLetGo(held: *const c_void) {
    if !held.is_null() {
        // SAFETY: the caller passes a result of `tightfitMockCudaHold`, once.
        drop(unsafe { Arc::from_raw(held.cast::<Block>()) });
    }
}
