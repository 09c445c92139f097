//! The mock libraries: built once, opened by path, reset for each test. Their state is one for the process, so tests that
//! use them take turns.

use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use libloading::os::unix::Library;
use tightfit_cuda::{CudaBackend, Options};

static TURN: Mutex<()> = Mutex::new(());

/// The three libraries, as nobody had used them before.
pub struct Mocks {
    cuda: Library,
    cudnn: Library,
    cublas: Library,
    paths: [PathBuf; 3],
    _turn: MutexGuard<'static, ()>,
}

/// Builds the libraries with the profile of the running test and says where they are.
fn built() -> &'static [PathBuf; 3] {
    static BUILT: OnceLock<[PathBuf; 3]> = OnceLock::new();
    BUILT.get_or_init(|| {
        // target/PROFILE/deps/TEST
        let test = std::env::current_exe().unwrap();
        let folder = test.ancestors().nth(2).unwrap();
        let profile = match folder.file_name().unwrap().to_str().unwrap() {
            "debug" => "dev",
            profile => profile,
        };
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--profile", profile]);
        build.args(["-p", "tightfit-mock-cuda", "-p", "tightfit-mock-cudnn", "-p", "tightfit-mock-cublas"]);
        build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR"))).env("CARGO_TARGET_DIR", folder.parent().unwrap());
        assert!(build.status().unwrap().success(), "the mock libraries do not build");
        ["cuda", "cudnn", "cublas"].map(|name| folder.join(format!("libtightfit_mock_{name}.so")))
    })
}

impl Mocks {
    pub fn new() -> Mocks {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let paths = built().clone();
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

    pub fn backend(&self) -> CudaBackend {
        CudaBackend::open(&self.options()).unwrap()
    }

    fn lever<T: Copy>(&self, library: &Library, name: &str) -> T {
        // SAFETY: the callers below name functions of the mocks with their types.
        unsafe { *library.get::<T>(name.as_bytes()).unwrap() }
    }

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
        let of = |library, name| self.lever::<Count>(library, name)(kind.as_ptr());
        let counts = [
            of(&self.cuda, "tightfitMockCudaCount"),
            of(&self.cudnn, "tightfitMockCudnnCount"),
            of(&self.cublas, "tightfitMockCublasCount"),
        ];
        let count = counts.into_iter().find(|&count| count != u64::MAX).unwrap_or(u64::MAX);
        assert_ne!(count, u64::MAX, "{kind:?} is not counted");
        count
    }

    /// Asserts that every object of both libraries was given back.
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

    pub fn set_memory(&self, bytes: u64) {
        self.lever::<extern "C" fn(u64)>(&self.cuda, "tightfitMockCudaSetMemory")(bytes);
    }

    pub fn set_devices(&self, devices: u64) {
        self.lever::<extern "C" fn(u64)>(&self.cuda, "tightfitMockCudaSetDevices")(devices);
    }

    /// Makes each piece of work of a stream, by its order of creation, begin so much later.
    pub fn delay_stream(&self, ordinal: u64, micros: u64) {
        self.lever::<extern "C" fn(u64, u64)>(&self.cuda, "tightfitMockCudaDelay")(ordinal, micros);
    }

    /// Makes each piece of work of every stream begin so much later.
    pub fn delay(&self, micros: u64) {
        self.lever::<extern "C" fn(u64, u64)>(&self.cuda, "tightfitMockCudaDelay")(u64::MAX, micros);
    }

    pub fn set_cudnn_version(&self, version: usize) {
        self.lever::<extern "C" fn(usize)>(&self.cudnn, "tightfitMockCudnnSetVersion")(version);
    }

    /// Adds bytes to every workspace that cuDNN tells, not to what it uses.
    pub fn lie_workspace(&self, bytes: i64) {
        self.lever::<extern "C" fn(i64)>(&self.cudnn, "tightfitMockCudnnLieWorkspace")(bytes);
    }
}
