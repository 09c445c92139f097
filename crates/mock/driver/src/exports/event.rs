//! Events.

use std::ffi::{c_int, c_uint};
use std::sync::Arc;

use super::{Handle, Out, put, room};
use crate::call::{call, release};
use crate::clock;
use crate::control::count_synchronization;
use crate::error::Code;
use crate::state::{Event, State, state};
use crate::stream::Mark;

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: c_uint = 2;

#[unsafe(no_mangle)]
pub extern "C" fn cuEventCreate(event: Out<Handle>, flags: c_uint) -> c_int {
    call("cuEventCreate", || {
        let event = room(event)?;
        let mut state = state();
        state.healthy_device()?;
        if flags > 7 {
            return Err(Code::INVALID_VALUE);
        }
        let handle = state.new_handle();
        state.events.insert(handle, Event { timing: flags & DISABLE_TIMING == 0, mark: None, captured: None });
        event.write(handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: Handle) -> c_int {
    release("cuEventDestroy_v2", || state().events.remove(&event).map(|_| ()).ok_or(Code::INVALID_HANDLE))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> c_int {
    call("cuEventRecord", || {
        let mut state = state();
        let recorded = state.stream(stream)?;
        state.health(recorded.device)?;
        let captured = state.capture(stream).map(|(id, c)| (id, c.seen(stream)));
        let event = state.events.get_mut(&event).ok_or(Code::INVALID_HANDLE)?;
        event.mark = captured.is_none().then(|| recorded.record());
        event.captured = captured;
        Ok(())
    })
}

/// The point an event was recorded at, if it was; refused while it belongs to a capture.
fn mark_of(state: &State, event: Handle) -> Result<Option<Arc<Mark>>, Code> {
    let event = state.events.get(&event).ok_or(Code::INVALID_HANDLE)?;
    if event.captured.is_some() { Err(Code::CAPTURED_EVENT) } else { Ok(event.mark.clone()) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: Handle) -> c_int {
    call("cuEventQuery", || {
        let mut state = state();
        let device = state.healthy_device()?;
        let mark = mark_of(&state, event)?;
        state.refuse_under_capture()?;
        if mark.is_some_and(|m| m.time().is_none()) { Err(Code::NOT_READY) } else { state.health(device) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: Handle) -> c_int {
    call("cuEventSynchronize", || {
        let (device, mark) = {
            let mut state = state();
            let device = state.healthy_device()?;
            let mark = mark_of(&state, event)?;
            state.refuse_under_capture()?;
            (device, mark)
        };
        count_synchronization();
        if let Some(mark) = mark {
            clock::host_waited_until(mark.wait());
        }
        let mut state = state();
        state.memory.on_wait(device);
        state.health(device)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) -> c_int {
    call("cuEventElapsedTime", || {
        let state = state();
        state.healthy_device()?;
        let time = |event: Handle| {
            let mark = mark_of(&state, event)?.filter(|_| state.events.get(&event).is_some_and(|e| e.timing));
            mark.ok_or(Code::INVALID_HANDLE)?.time().ok_or(Code::NOT_READY)
        };
        let (start, end) = (time(start)?, time(end)?);
        put(milliseconds, (end as f64 - start as f64) as f32 * 1e-6)
    })
}
