//! Every live object of the process, by its handle, and the rules that concern more than one of them.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use tightfit_mock_support::lock;

use crate::capture::{Capture, Seen};
use crate::control;
use crate::error::Code;
use crate::memory::Memory;
use crate::stream::{Mark, Stream, Work};

/// An event: the last point it was recorded at.
pub struct Event {
    /// Whether it keeps times.
    pub timing: bool,
    /// The point, once recorded outside a capture.
    pub mark: Option<Arc<Mark>>,
    /// The capture it was last recorded in, and the work it had seen there.
    pub captured: Option<(usize, Seen)>,
}

/// A device's primary context.
#[derive(Default)]
pub struct Context {
    /// Times retained and not released.
    pub retained: u32,
    /// The lasting error; 0 while healthy. Shared with the device's streams.
    pub sticky: Arc<AtomicI32>,
    /// The default stream.
    pub default: Option<Arc<Stream>>,
}

/// All live objects.
#[derive(Default)]
pub struct State {
    /// Device and pinned memory.
    pub memory: Memory,
    /// Contexts by device; entries remain after release, with `retained` 0.
    pub contexts: BTreeMap<usize, Context>,
    /// Streams by handle; the default ones are in their contexts.
    pub streams: BTreeMap<usize, Arc<Stream>>,
    /// Events by handle.
    pub events: BTreeMap<usize, Event>,
    /// Graphs by handle.
    pub graphs: BTreeMap<usize, Arc<Vec<Work>>>,
    /// Executable graphs by handle.
    pub executables: BTreeMap<usize, Arc<Vec<Work>>>,
    /// Names of the kernels of modules, by the module's handle.
    pub modules: BTreeMap<usize, Vec<String>>,
    /// A kernel's module and name, by the function's handle.
    pub functions: BTreeMap<usize, (usize, String)>,
    /// Captures in progress.
    pub captures: BTreeMap<usize, Capture>,
    /// Objects that were alive when their context ended.
    pub leaked: u64,
    created: u64,
    last_handle: usize,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

thread_local! {
    static CURRENT: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Handles of contexts: one page apart, so a device follows from its handle.
const CONTEXT_BASE: usize = 0x7c00_0000;
const CONTEXT_STEP: usize = 0x1000;

/// Exclusive use of all objects.
pub fn state() -> MutexGuard<'static, State> {
    lock(&STATE)
}

/// Live objects of a kind and bytes in use, see [`State::count`].
pub fn count(kind: &str) -> Option<u64> {
    state().count(kind)
}

/// Forgets every object.
pub fn reset() {
    let old = std::mem::take(&mut *state());
    let defaults = old.contexts.values().filter_map(|c| c.default.as_ref());
    for stream in old.streams.values().chain(defaults) {
        stream.synchronize();
        stream.close();
    }
}

/// The device of a context handle.
pub fn device_of(context: usize) -> Option<usize> {
    let offset = context.checked_sub(CONTEXT_BASE)?;
    (offset.is_multiple_of(CONTEXT_STEP)).then_some(offset / CONTEXT_STEP)
}

/// The handle of a device's context.
pub fn context_of(device: usize) -> usize {
    CONTEXT_BASE + device * CONTEXT_STEP
}

/// The device whose context is current in this thread, retained or not.
pub fn current() -> Option<usize> {
    CURRENT.get()
}

/// Makes a device's context, or none, current in this thread.
pub fn set_current(device: Option<usize>) {
    CURRENT.set(device);
}

/// A status that a test injected loses the current context, if it is of the lasting kind.
pub fn lose_context(code: Code) {
    if code.is_sticky()
        && let Some(context) = current().and_then(|d| state().contexts.get(&d).map(|c| c.sticky.clone()))
    {
        context.store(code.0, Ordering::SeqCst);
    }
}

impl State {
    /// A handle never given before.
    pub fn new_handle(&mut self) -> usize {
        self.last_handle += 16;
        0x5000_0000 + self.last_handle
    }

    /// The device current in this thread, if its context lives; a lasting error counts as alive.
    ///
    /// # Errors
    /// [`Code::INVALID_CONTEXT`].
    pub fn device(&self) -> Result<usize, Code> {
        let device = current().ok_or(Code::INVALID_CONTEXT)?;
        match self.contexts.get(&device) {
            Some(context) if context.retained > 0 => Ok(device),
            _ => Err(Code::INVALID_CONTEXT),
        }
    }

    /// Passes on a device's lasting error.
    ///
    /// # Errors
    /// The code that the context was lost with.
    pub fn health(&self, device: usize) -> Result<(), Code> {
        match self.contexts.get(&device).map_or(0, |c| c.sticky.load(Ordering::SeqCst)) {
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }

    /// The device current in this thread, if its context is healthy.
    ///
    /// # Errors
    /// [`Code::INVALID_CONTEXT`], or the code that the context was lost with.
    pub fn healthy_device(&self) -> Result<usize, Code> {
        let device = self.device()?;
        self.health(device).map(|()| device)
    }

    /// Refuses a call that may not happen during a capture, and breaks the captures it disturbs.
    ///
    /// # Errors
    /// [`Code::CAPTURE_UNSUPPORTED`].
    pub fn refuse_under_capture(&mut self) -> Result<(), Code> {
        let mut disturbed = false;
        for capture in self.captures.values_mut().filter(|c| c.forbids_unsafe_calls()) {
            capture.invalid = true;
            disturbed = true;
        }
        if disturbed { Err(Code::CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// Refuses a call that waits for a whole device on which a capture is in progress, and breaks it: in every mode, since a
    /// device is not done before its streams are.
    ///
    /// # Errors
    /// [`Code::CAPTURE_UNSUPPORTED`].
    pub fn refuse_beside_capture(&mut self, device: usize) -> Result<(), Code> {
        let streams = &self.streams;
        let is_on = |capture: &Capture| streams.get(&capture.origin).is_none_or(|stream| stream.device == device);
        let mut disturbed = false;
        for capture in self.captures.values_mut().filter(|capture| is_on(capture)) {
            capture.invalid = true;
            disturbed = true;
        }
        if disturbed { Err(Code::CAPTURE_UNSUPPORTED) } else { Ok(()) }
    }

    /// Starts a stream of a device. Returns its handle.
    ///
    /// # Errors
    /// [`Code::OUT_OF_MEMORY`] if the system gives no thread.
    pub fn start_stream(&mut self, device: usize, blocking: bool) -> Result<usize, Code> {
        let sticky = self.contexts.entry(device).or_default().sticky.clone();
        let stream = Stream::start(self.created, device, blocking, sticky)?;
        self.created += 1;
        let handle = self.new_handle();
        self.streams.insert(handle, stream);
        Ok(handle)
    }

    /// The stream of a handle; 0 and 1 are the default stream of the current context.
    ///
    /// # Errors
    /// [`Code::INVALID_HANDLE`], [`Code::INVALID_CONTEXT`].
    pub fn stream(&mut self, handle: usize) -> Result<Arc<Stream>, Code> {
        if handle > 1 {
            return self.streams.get(&handle).cloned().ok_or(Code::INVALID_HANDLE);
        }
        let device = self.device()?;
        let context = self.contexts.entry(device).or_default();
        if context.default.is_none() {
            context.default = Some(Stream::start(control::DEFAULT_STREAM, device, true, context.sticky.clone())?);
        }
        context.default.clone().ok_or(Code::INVALID_HANDLE)
    }

    /// The capture that a stream takes part in.
    pub fn capture(&mut self, stream: usize) -> Option<(usize, &mut Capture)> {
        self.captures.iter_mut().find(|(_, c)| c.includes(stream)).map(|(&id, c)| (id, c))
    }

    /// Adds work to a stream, or to the capture that it is part of.
    ///
    /// Work of the default stream waits for all earlier work of every blocking stream of the device, and all later work of
    /// these streams waits for it.
    ///
    /// # Errors
    /// [`Code::INVALID_HANDLE`]; the context's lasting error; [`Code::CAPTURE_INVALIDATED`].
    pub fn submit(&mut self, handle: usize, work: Work) -> Result<Arc<Stream>, Code> {
        let stream = self.stream(handle)?;
        self.health(stream.device)?;
        if let Some((_, capture)) = self.capture(handle) {
            if capture.invalid {
                return Err(Code::CAPTURE_INVALIDATED);
            }
            capture.push(handle, work);
            return Ok(stream);
        }
        if handle > 1 {
            stream.enqueue(work);
            return Ok(stream);
        }
        let device = stream.device;
        let beside = || self.streams.values().filter(move |s| s.blocking && s.device == device);
        for other in beside() {
            stream.wait_for(other.record());
        }
        stream.enqueue(work);
        let done = stream.record();
        for other in beside() {
            other.wait_for(done.clone());
        }
        Ok(stream)
    }

    /// Ends a device's context: its memory and streams are gone, counted if the program forgot them.
    pub fn end_context(&mut self, device: usize) {
        self.leaked += self.memory.forget(device);
        let streams = std::mem::take(&mut self.streams);
        let (ended, kept): (BTreeMap<_, _>, BTreeMap<_, _>) =
            streams.into_iter().partition(|(_, s)| s.device == device);
        self.streams = kept;
        self.leaked += ended.len() as u64;
        let default = self.contexts.remove(&device).and_then(|c| c.default);
        for stream in ended.into_values().chain(default) {
            stream.close();
        }
    }

    /// Live objects of a kind, bytes in use, and other counts for tests; README.md has the names.
    pub fn count(&self, kind: &str) -> Option<u64> {
        use crate::memory::MemoryKind;
        let devices = || (0..control::description().devices).map(|d| self.memory.bytes(MemoryKind::Device(d)));
        Some(match kind {
            "allocations" => self.memory.count(false),
            "host-allocations" => self.memory.count(true),
            "bytes" => devices().sum(),
            "peak-bytes" => self.memory.peak(),
            "host-bytes" => self.memory.bytes(MemoryKind::Host),
            "pools" => self.memory.pools(),
            "streams" => self.streams.len() as u64,
            "events" => self.events.len() as u64,
            "graphs" => self.graphs.len() as u64,
            "modules" => self.modules.len() as u64,
            "executable-graphs" => self.executables.len() as u64,
            "contexts" => self.contexts.values().map(|c| u64::from(c.retained)).sum(),
            "leaked" => self.leaked,
            _ => return None,
        })
    }
}
