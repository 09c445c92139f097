//! cuDNN on one stream.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Context, Stream};
use crate::CudaError;
use crate::CudnnVersion;
use crate::call::cudnn as call;
use crate::load::{self, CudnnLibrary};
use crate::sys::cudnn::{self as sys, Cudnn};
use crate::sys::driver;

/// A cuDNN handle whose work goes to one stream.
///
/// The library forbids using a handle from two threads at once, and does not document this for objects made with it. So
/// every call on the handle and its descriptors holds its lock. A plan that another handle has taken over runs under that
/// handle's lock.
pub struct Handle {
    stream: Stream,
    library: Arc<CudnnLibrary>,
    raw: Mutex<sys::Handle>,
    /// Whether it belongs to the host program, which destroys it.
    is_borrowed: bool,
}

// SAFETY: the raw handle is behind a lock, and the context is made current for every call.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// Permission to call cuDNN: its functions, the handle, and the lock.
pub(crate) struct Calling<'a> {
    pub cudnn: &'a Cudnn,
    pub handle: sys::Handle,
    _lock: MutexGuard<'a, sys::Handle>,
}

impl Handle {
    /// Opens cuDNN (see [`load`]) on a new stream of the context.
    ///
    /// # Errors
    /// As [`load::cudnn`]; [`CudaError::Cudnn`] if it does not start, for example if its driver is too old.
    pub fn open(library: Option<&Path>, context: &Arc<Context>) -> Result<Handle, CudaError> {
        Handle::start(&Arc::new(load::cudnn(library)?), context)
    }

    /// A handle of an open cuDNN on a new stream of the context.
    ///
    /// # Errors
    /// [`CudaError::Cudnn`] if it does not start.
    pub(crate) fn start(library: &Arc<CudnnLibrary>, context: &Arc<Context>) -> Result<Handle, CudaError> {
        let stream = Stream::new(context)?;
        context.enter()?;
        // SAFETY: the context is current; destroyed in `drop`.
        let raw = unsafe { call::create(&library.table) }?;
        let handle = Handle { stream, library: library.clone(), raw: Mutex::new(raw), is_borrowed: false };
        // SAFETY: both are alive, and the stream is dropped after the handle is destroyed.
        unsafe { call::set_stream(&library.table, raw, handle.stream.raw()) }?;
        Ok(handle)
    }

    /// A handle of the host program, used as it is: its work goes to whatever stream the program has given it, and
    /// [`Handle::stream`] is the default stream.
    ///
    /// # Safety
    /// `raw` is alive on `context` and outlives every call on the result; meanwhile the program uses it on one thread.
    pub(crate) unsafe fn borrow(library: &Arc<CudnnLibrary>, context: &Arc<Context>, raw: sys::Handle) -> Handle {
        let (stream, library) = (Stream::default_of(context), library.clone());
        Handle { stream, library, raw: Mutex::new(raw), is_borrowed: true }
    }

    /// Whether it belongs to the host program.
    pub(crate) fn is_borrowed(&self) -> bool {
        self.is_borrowed
    }

    /// The stream on which its work runs.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The stream that its work goes to now: of a handle of the program's, the one that the program has given it.
    pub(crate) fn current_stream(&self) -> Result<driver::Stream, CudaError> {
        let calling = self.enter()?;
        // SAFETY: the handle is alive, and the lock keeps other threads from it.
        unsafe { call::get_stream(calling.cudnn, calling.handle) }
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        self.stream.context()
    }

    /// cuDNN's version.
    pub fn version(&self) -> CudnnVersion {
        self.library.version
    }

    /// cuDNN's file.
    pub fn library(&self) -> &Path {
        &self.library.path
    }

    /// Permission to call cuDNN, after waiting for other callers, with the context current.
    pub(crate) fn enter(&self) -> Result<Calling<'_>, CudaError> {
        self.context().enter()?;
        Ok(self.calling())
    }

    /// Calls a destructor and records its error.
    pub(crate) fn destroy(&self, destructor: impl FnOnce(&Calling<'_>) -> Result<(), CudaError>) {
        self.context().destroy(|_| destructor(&self.calling()));
    }

    fn calling(&self) -> Calling<'_> {
        let lock = self.raw.lock().unwrap_or_else(PoisonError::into_inner);
        Calling { cudnn: &self.library.table, handle: *lock, _lock: lock }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.is_borrowed {
            return;
        }
        // SAFETY: made in `open`, destroyed only here, and every descriptor holds it alive, so none is left.
        self.destroy(|calling| unsafe { call::destroy(calling.cudnn, calling.handle) });
    }
}
