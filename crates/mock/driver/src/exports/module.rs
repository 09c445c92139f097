//! Modules: text in which names of kernels are found, and their launches.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use super::{Handle, Out, room};
use crate::call::{call, release};
use crate::error::Code;
use crate::kernels::parameters;
use crate::launch::Launch;
use crate::state::state;
use crate::stream::Work;

/// The text at a C string.
///
/// # Safety
/// `text` is null or a string with its end, alive and unchanged for as long as the result is used.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, Code> {
    if text.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: it is not null, and the caller answers for the rest.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| Code::INVALID_VALUE)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleLoadData(module: Out<Handle>, image: *const c_void) -> c_int {
    call("cuModuleLoadData", || {
        // SAFETY: whoever calls the driver gives a string with its end, alive for the time of the call.
        let (module, image) = (room(module)?, unsafe { text(image.cast()) }?);
        let names = image.lines().filter_map(|line| line.split(".entry ").nth(1));
        let name =
            |rest: &str| rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or("").to_owned();
        let names = names.map(name).collect();
        let mut state = state();
        state.healthy_device()?;
        state.refuse_under_capture()?;
        let handle = state.new_handle();
        state.modules.insert(handle, names);
        module.write(handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: *const c_char) -> c_int {
    call("cuModuleGetFunction", || {
        // SAFETY: whoever calls the driver gives a string with its end, alive for the time of the call.
        let (function, name) = (room(function)?, unsafe { text(name) }?);
        let mut state = state();
        let names = state.modules.get(&module).ok_or(Code::INVALID_HANDLE)?;
        if !names.iter().any(|known| known == name) || parameters(name).is_none() {
            return Err(Code::NOT_FOUND);
        }
        let handle = state.new_handle();
        state.functions.insert(handle, (module, name.to_owned()));
        function.write(handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: Handle) -> c_int {
    release("cuModuleUnload", || {
        let mut state = state();
        state.functions.retain(|_, (of, _)| *of != module);
        state.modules.remove(&module).map(|_| ()).ok_or(Code::INVALID_HANDLE)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchKernel(
    function: Handle,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    _shared: c_uint,
    stream: Handle,
    values: *const *const c_void,
    _extra: *const c_void,
) -> c_int {
    call("cuLaunchKernel", || {
        let whole = [grid_x, grid_y, block_x].into_iter().all(|size| size > 0);
        if !whole || [grid_z, block_y, block_z] != [1; 3] || block_x != 256 || values.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let mut state = state();
        let name = state.functions.get(&function).ok_or(Code::INVALID_HANDLE)?.1.clone();
        let sizes = parameters(&name).ok_or(Code::INVALID_HANDLE)?;
        let value = |(place, size): (usize, &usize)| {
            let mut bytes = [0; 8];
            // SAFETY: the caller gives one pointer for each of the kernel's parameters, to a value of its size.
            unsafe {
                let at = values.add(place).read().cast::<u8>();
                std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), *size);
            }
            u64::from_ne_bytes(bytes)
        };
        let parameters = sizes.iter().enumerate().map(value).collect();
        let launch = Launch { name, grid: [grid_x as usize, grid_y as usize], parameters };
        let nanos = launch.nanos();
        state.submit(stream, Work { run: Arc::new(move || launch.run()), nanos }).map(|_| ())
    })
}
