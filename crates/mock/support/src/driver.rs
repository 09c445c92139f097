//! The way to mock-cuda: its private functions, looked up among the libraries already loaded.
//!
//! Looked for in this order: the process's global symbols, a loaded library named libcuda.so.1, the file that
//! `TIGHTFIT_MOCK_CUDA` names. Without any, handles cannot be created, as without a driver.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use libloading::os::unix::Library;

/// Why work did not get to mock-cuda.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// mock-cuda is not loaded.
    NotLoaded,
    /// It refused, with this `CUresult`.
    Refused(c_int),
}

type Enqueue = unsafe extern "C" fn(
    usize,
    extern "C" fn(*mut c_void) -> c_int,
    extern "C" fn(*mut c_void),
    *mut c_void,
    u64,
) -> c_int;
type Hold = unsafe extern "C" fn(u64, u64) -> *const c_void;
type LetGo = unsafe extern "C" fn(*const c_void);
type Synchronize = unsafe extern "C" fn() -> c_int;

struct Driver {
    enqueue: Enqueue,
    hold: Hold,
    let_go: LetGo,
    synchronize: Synchronize,
}

static DRIVER: OnceLock<Driver> = OnceLock::new();

fn functions(library: &Library) -> Option<Driver> {
    // SAFETY: only mock-cuda exports these names, with these types; it is never unloaded (see `find`).
    unsafe {
        Some(Driver {
            enqueue: *library.get(b"tightfitMockCudaEnqueue").ok()?,
            hold: *library.get(b"tightfitMockCudaHold").ok()?,
            let_go: *library.get(b"tightfitMockCudaLetGo").ok()?,
            synchronize: *library.get(b"cuCtxSynchronize").ok()?,
        })
    }
}

fn find() -> Option<Driver> {
    /// `RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE`: only what is loaded, and from now on for ever.
    const LOADED: c_int = 0x1 | 0x4 | 0x1000;
    let path = std::env::var_os("TIGHTFIT_MOCK_CUDA");
    // SAFETY: nothing is loaded here, so no initializer runs.
    let loaded = |name: &std::ffi::OsStr| unsafe { Library::open(Some(name), LOADED) }.ok();
    functions(&Library::this())
        .or_else(|| functions(&loaded("libcuda.so.1".as_ref())?))
        .or_else(|| functions(&loaded(&path?)?))
}

fn driver() -> Result<&'static Driver, Unreachable> {
    if let Some(driver) = DRIVER.get() {
        return Ok(driver);
    }
    let found = find().ok_or(Unreachable::NotLoaded)?;
    Ok(DRIVER.get_or_init(|| found))
}

/// Whether mock-cuda is there.
///
/// # Errors
/// [`Unreachable::NotLoaded`].
pub fn check() -> Result<(), Unreachable> {
    driver().map(|_| ())
}

/// Waits for the device, with the same effect on captures as the real driver.
pub fn synchronize() {
    if let Ok(driver) = driver() {
        // SAFETY: it takes nothing.
        unsafe { (driver.synchronize)() };
    }
}

/// Work for a stream; answers a `CUresult`, 0 for success.
pub type Work = Box<dyn Fn() -> c_int + Send + Sync>;

extern "C" fn run(data: *mut c_void) -> c_int {
    // SAFETY: `data` is the box that `enqueue` leaked; `forget` has not been called yet.
    let work = unsafe { &*data.cast::<Work>() };
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(LAUNCH_FAILED)
}

extern "C" fn forget(data: *mut c_void) {
    // SAFETY: `data` is the box that `enqueue` leaked, and this is called once.
    drop(unsafe { Box::from_raw(data.cast::<Work>()) });
}

/// `CUDA_ERROR_ILLEGAL_ADDRESS`
pub const ILLEGAL_ADDRESS: c_int = 700;
/// `CUDA_ERROR_LAUNCH_FAILED`
pub const LAUNCH_FAILED: c_int = 719;

/// Puts work into a stream, or into the graph it is capturing.
///
/// # Errors
/// [`Unreachable`].
pub fn enqueue(stream: usize, nanos: u64, work: Work) -> Result<(), Unreachable> {
    let driver = driver()?;
    let data = Box::into_raw(Box::new(work)).cast();
    // SAFETY: `run` and `forget` fit `data`, which any thread may use because `Work` is Send and Sync.
    match unsafe { (driver.enqueue)(stream, run, forget, data, nanos) } {
        0 => Ok(()),
        code => Err(Unreachable::Refused(code)),
    }
}

/// A range of device memory that stays alive as long as this does.
pub struct HeldRange(*const c_void);

impl HeldRange {
    /// Holds a range.
    ///
    /// # Errors
    /// [`ILLEGAL_ADDRESS`] if it is not within one live allocation.
    pub fn range(address: usize, bytes: usize) -> Result<HeldRange, c_int> {
        let driver = driver().map_err(|_| LAUNCH_FAILED)?;
        // SAFETY: any numbers may be asked for.
        let held = unsafe { (driver.hold)(address as u64, bytes as u64) };
        if held.is_null() { Err(ILLEGAL_ADDRESS) } else { Ok(HeldRange(held)) }
    }
}

impl Drop for HeldRange {
    fn drop(&mut self) {
        if let Ok(driver) = driver() {
            // SAFETY: `range` got it from `hold`, and it is given back once.
            unsafe { (driver.let_go)(self.0) };
        }
    }
}
