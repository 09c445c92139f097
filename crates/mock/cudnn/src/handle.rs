//! Library handles, versions and error texts.

use std::ffi::{c_char, c_int};
use std::ptr;
use std::sync::Mutex;

use tightfit_mock_support::{Table, driver, lock};

use crate::control::{self, call, release};
use crate::status::Status;
use crate::{Handle, Out, room};

/// Handles, each with its stream.
static HANDLES: Mutex<Table<usize>> = Mutex::new(Table::new(0x6000_0000));

/// The stream of a handle.
///
/// # Errors
/// [`Status::BAD_PARAM`] if there is no such handle.
pub fn stream_of(handle: Handle) -> Result<usize, Status> {
    Ok(*lock(&HANDLES).get(handle)?)
}

/// Live handles.
pub fn count(kind: &str) -> Option<u64> {
    (kind == "handles").then(|| lock(&HANDLES).live() as u64)
}

/// Forgets all handles.
pub fn reset() {
    lock(&HANDLES).clear();
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetVersion() -> usize {
    control::version()
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetErrorString(status: c_int) -> *const c_char {
    Status(status).name().unwrap_or(c"CUDNN_UNKNOWN_STATUS").as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetLastErrorString(message: *mut c_char, max_size: usize) {
    if message.is_null() || max_size == 0 {
        return;
    }
    let text = control::last_error();
    let shown = &text.as_bytes()[..text.as_bytes().len().min(max_size - 1)];
    // SAFETY: the caller gives room for `max_size` bytes; the text and its end take at most that.
    unsafe {
        ptr::copy_nonoverlapping(shown.as_ptr(), message.cast(), shown.len());
        message.add(shown.len()).write(0);
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnCreate(handle: Out<Handle>) -> c_int {
    call("cudnnCreate", || {
        let handle = room(handle)?;
        driver::check()?;
        handle.write(lock(&HANDLES).insert(0));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnDestroy(handle: Handle) -> c_int {
    // It waits for the device, as the real one does.
    driver::synchronize();
    release("cudnnDestroy", || Ok(lock(&HANDLES).remove(handle).map(drop)?))
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetStream(handle: Handle, stream: usize) -> c_int {
    call("cudnnSetStream", || {
        *lock(&HANDLES).get_mut(handle)? = stream;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetStream(handle: Handle, stream: Out<usize>) -> c_int {
    call("cudnnGetStream", || {
        room(stream)?.write(stream_of(handle)?);
        Ok(())
    })
}
