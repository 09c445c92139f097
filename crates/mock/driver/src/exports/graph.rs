//! Graphs: the work that a capture recorded, launched as a whole.

use std::ffi::{c_int, c_uint, c_ulonglong};
use std::sync::Arc;

use super::{Handle, Out, room};
use crate::call::{call, release};
use crate::error::Code;
use crate::state::state;

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphCreate(graph: Out<Handle>, _flags: c_uint) -> c_int {
    call("cuGraphCreate", || {
        let graph = room(graph)?;
        let mut state = state();
        let handle = state.new_handle();
        state.graphs.insert(handle, Arc::default());
        graph.write(handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphInstantiateWithFlags(executable: Out<Handle>, graph: Handle, _flags: c_ulonglong) -> c_int {
    call("cuGraphInstantiateWithFlags", || {
        let executable = room(executable)?;
        let mut state = state();
        state.healthy_device()?;
        let work = state.graphs.get(&graph).cloned().ok_or(Code::INVALID_VALUE)?;
        let handle = state.new_handle();
        state.executables.insert(handle, work);
        executable.write(handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphLaunch(executable: Handle, stream: Handle) -> c_int {
    call("cuGraphLaunch", || {
        let mut state = state();
        let work = state.executables.get(&executable).cloned().ok_or(Code::INVALID_VALUE)?;
        work.iter().try_for_each(|piece| state.submit(stream, piece.clone()).map(|_| ()))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphExecDestroy(executable: Handle) -> c_int {
    release("cuGraphExecDestroy", || state().executables.remove(&executable).map(|_| ()).ok_or(Code::INVALID_VALUE))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGraphDestroy(graph: Handle) -> c_int {
    release("cuGraphDestroy", || state().graphs.remove(&graph).map(|_| ()).ok_or(Code::INVALID_VALUE))
}
