//! The driver's C functions as methods, for tests of the mocks themselves: mock-cuda, loaded once, and used by one test at a
//! time.

#![allow(non_snake_case)] // the functions' names are the driver's

use std::ffi::{CString, c_char, c_void};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::libraries::library;

pub use libloading::Library;

/// A library's functions as methods: `fn name(arguments) -> result;`
#[macro_export]
macro_rules! functions {
    ($library:ident { $(fn $name:ident($($argument:ident: $kind:ty),*) $(-> $result:ty)?;)* }) => {
        /// The functions of a library.
        pub struct $library(pub $crate::driver::Library);
        impl $library {
            $(
            /// The C function of this name.
            // The number of arguments is the same as in C, and pointers refer to live local variables of the tests.
            #[allow(clippy::too_many_arguments, clippy::not_unsafe_ptr_arg_deref)]
            pub fn $name(&self, $($argument: $kind),*) $(-> $result)? {
                type Function = unsafe extern "C" fn($($kind),*) $(-> $result)?;
                // SAFETY: the types are from the C header; pointers are to live locals of the tests.
                unsafe { self.0.get::<Function>(stringify!($name).as_bytes()).unwrap()($($argument),*) }
            })*
        }
    };
}

functions!(Cuda {
    fn cuInit(flags: u32) -> i32;
    fn cuDevicePrimaryCtxRetain(context: *mut usize, device: i32) -> i32;
    fn cuDevicePrimaryCtxRelease_v2(device: i32) -> i32;
    fn cuCtxSetCurrent(context: usize) -> i32;
    fn cuCtxSynchronize() -> i32;
    fn cuMemAlloc_v2(pointer: *mut u64, bytes: usize) -> i32;
    fn cuMemFree_v2(pointer: u64) -> i32;
    fn cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, flags: u32) -> i32;
    fn cuMemFreeHost(pointer: *mut c_void) -> i32;
    fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize) -> i32;
    fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize) -> i32;
    fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: usize) -> i32;
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: usize) -> i32;
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) -> i32;
    fn cuMemsetD8_v2(to: u64, value: u8, count: usize) -> i32;
    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: usize) -> i32;
    fn cuStreamCreate(stream: *mut usize, flags: u32) -> i32;
    fn cuStreamDestroy_v2(stream: usize) -> i32;
    fn cuStreamSynchronize(stream: usize) -> i32;
    fn cuStreamQuery(stream: usize) -> i32;
    fn cuStreamWaitEvent(stream: usize, event: usize, flags: u32) -> i32;
    fn cuStreamBeginCapture_v2(stream: usize, mode: i32) -> i32;
    fn cuStreamEndCapture(stream: usize, graph: *mut usize) -> i32;
    fn cuEventCreate(event: *mut usize, flags: u32) -> i32;
    fn cuEventRecord(event: usize, stream: usize) -> i32;
    fn cuEventQuery(event: usize) -> i32;
    fn cuEventSynchronize(event: usize) -> i32;
    fn tightfitMockCudaReset();
    fn tightfitMockCudaDelay(ordinal: u64, micros: u64);
    fn tightfitMockCudaSetDevices(devices: u64);
    fn tightfitMockCudaSetMemory(bytes: u64);
    fn tightfitMockCudaCount(kind: *const c_char) -> u64;
});

/// The driver, freshly reset, for one test alone.
pub fn cuda() -> MutexGuard<'static, Cuda> {
    static CUDA: OnceLock<Mutex<Cuda>> = OnceLock::new();
    let load = || {
        // SAFETY: the library's initializers only set up Rust's own state.
        let library = unsafe { Library::new(library("mock_cuda")) }.unwrap();
        Mutex::new(Cuda(library))
    };
    let cuda = CUDA.get_or_init(load).lock().unwrap_or_else(PoisonError::into_inner);
    cuda.tightfitMockCudaReset();
    cuda
}

impl Cuda {
    /// Initializes, and makes device 0's context current.
    pub fn begin(&self) {
        self.begin_on(0);
    }

    /// Initializes, and makes a device's context current.
    pub fn begin_on(&self, device: i32) {
        let mut context = 0;
        assert_eq!(self.cuInit(0), 0);
        assert_eq!(self.cuDevicePrimaryCtxRetain(&mut context, device), 0);
        assert_eq!(self.cuCtxSetCurrent(context), 0);
    }

    /// Device memory.
    pub fn allocate(&self, bytes: usize) -> u64 {
        let mut pointer = 0;
        assert_eq!(self.cuMemAlloc_v2(&mut pointer, bytes), 0);
        pointer
    }

    /// Pinned host memory.
    pub fn pinned(&self, bytes: usize) -> *mut u8 {
        let mut pointer = std::ptr::null_mut();
        assert_eq!(self.cuMemHostAlloc(&mut pointer, bytes, 0), 0);
        pointer.cast()
    }

    /// A stream that does not wait for the default one.
    pub fn stream(&self) -> usize {
        let mut stream = 0;
        assert_eq!(self.cuStreamCreate(&mut stream, 1), 0);
        stream
    }

    /// An event that keeps times.
    pub fn event(&self) -> usize {
        let mut event = 0;
        assert_eq!(self.cuEventCreate(&mut event, 0), 0);
        event
    }

    /// The content of device memory.
    pub fn bytes(&self, pointer: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert_eq!(self.cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), pointer, len), 0);
        bytes
    }

    /// One of the driver's counts.
    pub fn count(&self, kind: &str) -> u64 {
        self.tightfitMockCudaCount(CString::new(kind).unwrap().as_ptr())
    }
}
