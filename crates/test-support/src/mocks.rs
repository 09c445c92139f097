//! The mock libraries, opened by path, reset for each test. Their state is one for the process, so tests that use them
//! take turns.

use std::ffi::{CString, c_char, c_int};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use libloading::os::unix::Library;
use tightfit_cuda::{CudaBackend, Options};

use crate::libraries::library;

static TURN: Mutex<()> = Mutex::new(());

/// The three libraries, reset to their initial state.
pub struct Mocks {
    cuda: Library,
    cudnn: Library,
    cublas: Library,
    paths: [PathBuf; 3],
    _turn: MutexGuard<'static, ()>,
}

impl Mocks {
    /// Waits for other tests' turns to end.
    #[allow(clippy::new_without_default)] // it waits, and resets what the process has one of
    pub fn new() -> Mocks {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let paths = ["mock_cuda", "mock_cudnn", "mock_cublas"].map(library);
        // SAFETY: the mocks' initialization does nothing. mock-cudnn looks for mock-cuda among the loaded libraries.
        let [cuda, cudnn, cublas] = paths.each_ref().map(|path| unsafe { Library::open(Some(path), 0x102) }.unwrap());
        let mocks = Mocks { cuda, cudnn, cublas, paths, _turn: turn };
        mocks.reset();
        mocks
    }

    /// Options that lead to the mocks.
    pub fn options(&self) -> Options {
        let [cuda, cudnn, cublas] = self.paths.clone().map(Some);
        Options { cuda, cudnn, cublas, ..Options::default() }
    }

    /// The CUDA backend on the mocks.
    pub fn backend(&self) -> CudaBackend {
        CudaBackend::open(&self.options()).unwrap()
    }

    fn lever<T: Copy>(&self, library: &Library, name: &str) -> T {
        // SAFETY: the callers below name functions of the mocks with their types.
        unsafe { *library.get::<T>(name.as_bytes()).unwrap() }
    }

    /// No object alive, no failure planned, all counts zero.
    pub fn reset(&self) {
        type Reset = extern "C" fn();
        self.lever::<Reset>(&self.cublas, "tightfitMockCublasReset")();
        self.lever::<Reset>(&self.cudnn, "tightfitMockCudnnReset")();
        self.lever::<Reset>(&self.cuda, "tightfitMockCudaReset")();
    }

    /// Makes the `nth` call of a function from now on answer `status`.
    pub fn fail(&self, function: &str, nth: u64, status: i32) {
        type Fail = extern "C" fn(*const c_char, u64, c_int);
        let (library, name) = self.of(function, "Fail");
        self.lever::<Fail>(library, &name)(CString::new(function).unwrap().as_ptr(), nth, status);
    }

    /// Calls of a function since the last reset.
    pub fn calls(&self, function: &str) -> u64 {
        type Calls = extern "C" fn(*const c_char) -> u64;
        let (library, name) = self.of(function, "Calls");
        self.lever::<Calls>(library, &name)(CString::new(function).unwrap().as_ptr())
    }

    fn of(&self, function: &str, lever: &str) -> (&Library, String) {
        let (library, mock) = match function {
            function if function.starts_with("cudnn") => (&self.cudnn, "Cudnn"),
            function if function.starts_with("cublas") => (&self.cublas, "Cublas"),
            _ => (&self.cuda, "Cuda"),
        };
        (library, format!("tightfitMock{mock}{lever}"))
    }

    /// One of the driver's counts.
    pub fn count(&self, kind: &str) -> u64 {
        type Count = extern "C" fn(*const c_char) -> u64;
        let kind = CString::new(kind).unwrap();
        let count_in = |library, name| self.lever::<Count>(library, name)(kind.as_ptr());
        let counts = [
            count_in(&self.cuda, "tightfitMockCudaCount"),
            count_in(&self.cudnn, "tightfitMockCudnnCount"),
            count_in(&self.cublas, "tightfitMockCublasCount"),
        ];
        let count = counts.into_iter().find(|&count| count != u64::MAX).unwrap_or(u64::MAX);
        assert_ne!(count, u64::MAX, "{kind:?} is not counted");
        count
    }

    /// Asserts that every object of the libraries was destroyed.
    pub fn assert_nothing_left(&self, after: &str) {
        for kind in [
            "allocations",
            "host-allocations",
            "streams",
            "events",
            "graphs",
            "executable-graphs",
            "contexts",
            "handles",
            "tensor-descriptors",
            "filter-descriptors",
            "convolution-descriptors",
            "backend-descriptors",
            "activation-descriptors",
            "pooling-descriptors",
            "lrn-descriptors",
            "blas-handles",
            "modules",
        ] {
            assert_eq!(self.count(kind), 0, "{kind} left after {after}");
        }
    }

    /// Sets the bytes of each device.
    pub fn set_memory(&self, bytes: u64) {
        self.lever::<extern "C" fn(u64)>(&self.cuda, "tightfitMockCudaSetMemory")(bytes);
    }

    /// Sets the number of devices.
    pub fn set_devices(&self, devices: u64) {
        self.lever::<extern "C" fn(u64)>(&self.cuda, "tightfitMockCudaSetDevices")(devices);
    }

    /// Makes each piece of work of a stream, by its order of creation, begin later by this time.
    pub fn delay_stream(&self, ordinal: u64, micros: u64) {
        self.lever::<extern "C" fn(u64, u64)>(&self.cuda, "tightfitMockCudaDelay")(ordinal, micros);
    }

    /// Makes each piece of work of every stream begin later by this time.
    pub fn delay(&self, micros: u64) {
        self.lever::<extern "C" fn(u64, u64)>(&self.cuda, "tightfitMockCudaDelay")(u64::MAX, micros);
    }

    /// Sets the version that cuDNN answers: 91900 is 9.19.0.
    pub fn set_cudnn_version(&self, version: usize) {
        self.lever::<extern "C" fn(usize)>(&self.cudnn, "tightfitMockCudnnSetVersion")(version);
    }

    /// Makes every convolution of an engine, by its global index, write a wrong first element; none below 0.
    pub fn spoil_engine(&self, index: i64) {
        self.lever::<extern "C" fn(i64)>(&self.cudnn, "tightfitMockCudnnSpoilEngine")(index);
    }

    /// Adds bytes to every workspace in cuDNN's answers, not to the bytes that it uses.
    pub fn lie_workspace(&self, bytes: i64) {
        self.lever::<extern "C" fn(i64)>(&self.cudnn, "tightfitMockCudnnLieWorkspace")(bytes);
    }
}
