//! Streams: creation, waiting, capture.

use std::ffi::{c_int, c_uint, c_void};

use super::{Handle, Out, put, room};
use crate::call::{call, release};
use crate::capture::{Capture, exchange_mode};
use crate::control::{DEFAULT_STREAM, count_synchronization};
use crate::error::Code;
use crate::state::{State, state};
use std::sync::Arc;

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreate(stream: Out<Handle>, flags: c_uint) -> c_int {
    call("cuStreamCreate", || {
        let stream = room(stream)?;
        let mut state = state();
        let device = state.healthy_device()?;
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        stream.write(state.start_stream(device, flags == 0)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: Handle) -> c_int {
    release("cuStreamDestroy_v2", || {
        let mut state = state();
        let gone = state.streams.remove(&stream).ok_or(Code::INVALID_HANDLE)?;
        gone.close();
        if let Some((_, capture)) = state.capture(stream) {
            capture.invalid = true;
        }
        state.health(gone.device)
    })
}

/// Breaks the capture that the stream is part of, as touching it from the host does.
fn refuse_capturing(state: &mut State, stream: Handle) -> Result<(), Code> {
    match state.capture(stream) {
        Some((_, capture)) => {
            capture.invalid = true;
            Err(Code::CAPTURE_UNSUPPORTED)
        }
        None => Ok(()),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: Handle) -> c_int {
    call("cuStreamSynchronize", || {
        let waited = {
            let mut state = state();
            let waited = state.stream(stream)?;
            refuse_capturing(&mut state, stream)?;
            state.health(waited.device)?;
            waited
        };
        count_synchronization();
        waited.synchronize();
        let mut state = state();
        state.memory.on_wait(waited.device);
        state.health(waited.device)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(stream: Handle) -> c_int {
    call("cuStreamQuery", || {
        let mut state = state();
        let asked = state.stream(stream)?;
        refuse_capturing(&mut state, stream)?;
        state.health(asked.device)?;
        if asked.is_idle() { Ok(()) } else { Err(Code::NOT_READY) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) -> c_int {
    call("cuStreamWaitEvent", || {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        let mut state = state();
        let waiting = state.stream(stream)?;
        state.health(waiting.device)?;
        let event = state.events.get(&event).ok_or(Code::INVALID_HANDLE)?;
        let (mark, captured) = (event.mark.clone(), event.captured.clone());
        let own = state.capture(stream).map(|(id, _)| id);
        match (captured, own) {
            (Some((capture, _)), Some(own)) if capture != own => Err(Code::CAPTURE_MERGE),
            (Some((capture, seen)), _) => {
                state.captures.get_mut(&capture).ok_or(Code::CAPTURED_EVENT)?.join(stream, &seen);
                Ok(())
            }
            // A captured stream cannot depend on work outside the capture.
            (None, Some(own)) if mark.is_some() => {
                state.captures.get_mut(&own).into_iter().for_each(|c| c.invalid = true);
                Err(Code::CAPTURE_ISOLATION)
            }
            (None, _) => {
                mark.into_iter().for_each(|m| waiting.wait_for(m));
                Ok(())
            }
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamIsCapturing(stream: Handle, status: Out<c_int>) -> c_int {
    call("cuStreamIsCapturing", || {
        let mut state = state();
        state.stream(stream)?;
        put(status, state.capture(stream).map_or(0, |(_, c)| if c.invalid { 2 } else { 1 }))
    })
}

/// The default stream has a number of each device, after all others.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetId(stream: Handle, id: Out<u64>) -> c_int {
    call("cuStreamGetId", || {
        let found = state().stream(stream)?;
        let defaults = u64::MAX - found.device as u64;
        put(id, if found.ordinal == DEFAULT_STREAM { defaults } else { found.ordinal })
    })
}

/// Status and number of the capture; other requests are not answered.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: Handle,
    status: Out<c_int>,
    id: Out<u64>,
    _graph: *mut c_void,
    _dependencies: *mut c_void,
    _count: *mut usize,
) -> c_int {
    call("cuStreamGetCaptureInfo_v2", || {
        let mut state = state();
        state.stream(stream)?;
        let captured = state.capture(stream).map(|(handle, capture)| (handle, capture.invalid));
        let (status_now, id_now) = captured.map_or((0, 0), |(handle, invalid)| (1 + c_int::from(invalid), handle));
        put(status, status_now)?;
        put(id, id_now as u64)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) -> c_int {
    call("cuThreadExchangeStreamCaptureMode", || {
        if mode.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller gives a place for the mode.
        let asked = unsafe { *mode };
        if !(0..=2).contains(&asked) {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: as above.
        unsafe { *mode = exchange_mode(asked) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: Handle, mode: c_int) -> c_int {
    call("cuStreamBeginCapture_v2", || {
        let mut state = state();
        let device = state.stream(stream)?.device;
        state.health(device)?;
        if !(0..=2).contains(&mode) {
            return Err(Code::INVALID_VALUE);
        }
        if stream <= 1 {
            return Err(Code::CAPTURE_UNSUPPORTED);
        }
        if state.capture(stream).is_some() {
            return Err(Code::ILLEGAL_STATE);
        }
        let handle = state.new_handle();
        state.captures.insert(handle, Capture::begin(stream, mode));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) -> c_int {
    call("cuStreamEndCapture", || {
        let graph = room(graph)?;
        graph.write(0);
        let mut state = state();
        state.stream(stream)?;
        let (id, origin) = state.capture(stream).map(|(id, c)| (id, c.origin)).ok_or(Code::ILLEGAL_STATE)?;
        if origin != stream {
            return Err(Code::CAPTURE_UNMATCHED);
        }
        let capture = state.captures.remove(&id).ok_or(Code::ILLEGAL_STATE)?;
        if capture.invalid {
            return Err(Code::CAPTURE_INVALIDATED);
        }
        if !capture.is_joined() {
            return Err(Code::CAPTURE_UNJOINED);
        }
        let handle = state.new_handle();
        state.graphs.insert(handle, Arc::new(capture.finish()));
        graph.write(handle);
        Ok(())
    })
}
