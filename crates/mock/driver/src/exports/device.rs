//! Initialization, devices, primary contexts.

use std::ffi::{c_char, c_int, c_uint};
use std::ptr;

use super::{Handle, Out, put};
use crate::call::{call, release};
use crate::control::{self, count_synchronization, description};
use crate::error::Code;
use crate::state::{self, context_of, device_of, state};

fn checked(device: c_int) -> Result<usize, Code> {
    usize::try_from(device).ok().filter(|&d| d < description().devices).ok_or(Code::INVALID_DEVICE)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: c_uint) -> c_int {
    call("cuInit", || match (flags, control::description().devices) {
        (0, 0) => Err(Code::NO_DEVICE),
        (0, _) => Ok(()),
        _ => Err(Code::INVALID_VALUE),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDriverGetVersion(version: Out<c_int>) -> c_int {
    call("cuDriverGetVersion", || put(version, description().version))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetCount(count: Out<c_int>) -> c_int {
    call("cuDeviceGetCount", || put(count, c_int::try_from(description().devices).unwrap_or(c_int::MAX)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) -> c_int {
    call("cuDeviceGet", || {
        checked(ordinal)?;
        put(device, ordinal)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) -> c_int {
    call("cuDeviceGetName", || {
        checked(device)?;
        let len = usize::try_from(len).ok().filter(|&l| l > 0 && !name.is_null()).ok_or(Code::INVALID_VALUE)?;
        let text = description().name;
        let shown = &text.as_bytes()[..text.len().min(len - 1)];
        // SAFETY: the caller gives room for `len` bytes at `name`; the text and its end take at most that.
        unsafe {
            ptr::copy_nonoverlapping(shown.as_ptr(), name.cast(), shown.len());
            name.add(shown.len()).write(0);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: c_int) -> c_int {
    call("cuDevicePrimaryCtxRetain", || {
        let device = checked(device)?;
        put(context, context_of(device))?;
        state().contexts.entry(device).or_default().retained += 1;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> c_int {
    release("cuDevicePrimaryCtxRelease_v2", || {
        let device = checked(device)?;
        let mut state = state();
        let context = state.contexts.get_mut(&device).filter(|c| c.retained > 0).ok_or(Code::INVALID_CONTEXT)?;
        context.retained -= 1;
        if context.retained == 0 {
            state.end_context(device);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: Handle) -> c_int {
    call("cuCtxSetCurrent", || {
        let device = match context {
            0 => None,
            handle => {
                Some(device_of(handle).filter(|d| state().contexts.contains_key(d)).ok_or(Code::INVALID_CONTEXT)?)
            }
        };
        state::set_current(device);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetCurrent(context: Out<Handle>) -> c_int {
    call("cuCtxGetCurrent", || put(context, state::current().map_or(0, context_of)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetDevice(device: Out<c_int>) -> c_int {
    call("cuCtxGetDevice", || {
        let current = state::current().ok_or(Code::INVALID_CONTEXT)?;
        put(device, c_int::try_from(current).map_err(|_| Code::INVALID_VALUE)?)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> c_int {
    call("cuCtxSynchronize", || {
        let (device, streams) = {
            let mut state = state();
            let device = state.healthy_device()?;
            state.refuse_beside_capture(device)?;
            let default = state.contexts.get(&device).and_then(|c| c.default.clone());
            let streams: Vec<_> =
                state.streams.values().filter(|s| s.device == device).cloned().chain(default).collect();
            (device, streams)
        };
        count_synchronization();
        streams.iter().for_each(|s| s.synchronize());
        let mut state = state();
        state.memory.on_wait(device);
        state.health(device)
    })
}
