//! Initialization, devices, primary contexts, error texts.

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
pub extern "C" fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: c_int) -> c_int {
    call("cuDeviceGetUuid_v2", || {
        let mut bytes = *b"tightfit-mock-00";
        bytes[15] += checked(device)? as u8;
        put(uuid, bytes)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int) -> c_int {
    call("cuDeviceGetAttribute", || {
        let ordinal = checked(device)?;
        let answer = match attribute {
            1 => 1024,                  // threads per block
            10 => 32,                   // warp size
            13 => 1_980_000,            // clock, kHz
            16 => 132,                  // multiprocessors
            31 | 41 | 115 => 1,         // concurrent kernels, unified addressing, memory pools
            33 => ordinal as c_int + 1, // PCI bus
            40 => 3,                    // copy engines
            75 => 9,                    // compute capability
            76 => 0,
            _ if (1..=200).contains(&attribute) => 0,
            _ => return Err(Code::INVALID_VALUE),
        };
        put(value, answer)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) -> c_int {
    call("cuDeviceTotalMem_v2", || {
        checked(device)?;
        put(bytes, usize::try_from(description().memory).unwrap_or(usize::MAX))
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

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(error: c_int, text: Out<*const c_char>) -> c_int {
    describe(Code(error).describe().map(|d| d.0.as_ptr()), text)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorString(error: c_int, text: Out<*const c_char>) -> c_int {
    describe(Code(error).describe().map(|d| d.1.as_ptr()), text)
}

/// Error texts can be asked for at any time, even before initialization, and never fail on request.
fn describe(known: Option<*const c_char>, text: Out<*const c_char>) -> c_int {
    let answer = put(text, known.unwrap_or(ptr::null()));
    if answer.is_ok() && known.is_some() { 0 } else { Code::INVALID_VALUE.0 }
}
