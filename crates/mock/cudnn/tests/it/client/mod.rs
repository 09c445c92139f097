//! A small client of both mocks: device data, legacy calls, backend descriptors.

#![allow(non_snake_case)] // the functions' names are cuDNN's

pub mod case;

use std::ffi::{CString, c_char, c_void};
use std::sync::{MutexGuard, OnceLock};

use half::{bf16, f16};
use tightfit_test_support::driver::{self, Cuda, Library};
use tightfit_test_support::libraries::library;

tightfit_test_support::functions!(Cudnn {
    fn cudnnGetVersion() -> usize;
    fn cudnnCreate(handle: *mut usize) -> i32;
    fn cudnnDestroy(handle: usize) -> i32;
    fn cudnnSetStream(handle: usize, stream: usize) -> i32;
    fn cudnnGetStream(handle: usize, stream: *mut usize) -> i32;
    fn cudnnCreateTensorDescriptor(tensor: *mut usize) -> i32;
    fn cudnnSetTensorNdDescriptor(tensor: usize, kind: i32, count: i32, dims: *const i32, strides: *const i32) -> i32;
    fn cudnnDestroyTensorDescriptor(tensor: usize) -> i32;
    fn cudnnCreateFilterDescriptor(filter: *mut usize) -> i32;
    fn cudnnSetFilterNdDescriptor(filter: usize, kind: i32, format: i32, count: i32, dims: *const i32) -> i32;
    fn cudnnDestroyFilterDescriptor(filter: usize) -> i32;
    fn cudnnCreateConvolutionDescriptor(convolution: *mut usize) -> i32;
    fn cudnnSetConvolutionNdDescriptor(convolution: usize, count: i32, pad: *const i32, strides: *const i32, dilations: *const i32, mode: i32, compute: i32) -> i32;
    fn cudnnSetConvolutionGroupCount(convolution: usize, groups: i32) -> i32;
    fn cudnnSetConvolutionMathType(convolution: usize, math: i32) -> i32;
    fn cudnnDestroyConvolutionDescriptor(convolution: usize) -> i32;
    fn cudnnGetConvolutionForwardWorkspaceSize(handle: usize, x: usize, w: usize, convolution: usize, y: usize, algorithm: i32, bytes: *mut usize) -> i32;
    fn cudnnGetConvolutionBackwardDataWorkspaceSize(handle: usize, w: usize, dy: usize, convolution: usize, dx: usize, algorithm: i32, bytes: *mut usize) -> i32;
    fn cudnnGetConvolutionBackwardFilterWorkspaceSize(handle: usize, x: usize, dy: usize, convolution: usize, dw: usize, algorithm: i32, bytes: *mut usize) -> i32;
    fn cudnnConvolutionForward(handle: usize, alpha: *const f32, xd: usize, x: u64, wd: usize, w: u64, convolution: usize, algorithm: i32, workspace: u64, bytes: usize, beta: *const f32, yd: usize, y: u64) -> i32;
    fn cudnnConvolutionBackwardData(handle: usize, alpha: *const f32, wd: usize, w: u64, dyd: usize, dy: u64, convolution: usize, algorithm: i32, workspace: u64, bytes: usize, beta: *const f32, dxd: usize, dx: u64) -> i32;
    fn cudnnConvolutionBackwardFilter(handle: usize, alpha: *const f32, xd: usize, x: u64, dyd: usize, dy: u64, convolution: usize, algorithm: i32, workspace: u64, bytes: usize, beta: *const f32, dwd: usize, dw: u64) -> i32;
    fn cudnnCreateActivationDescriptor(activation: *mut usize) -> i32;
    fn cudnnSetActivationDescriptor(activation: usize, mode: i32, nan: i32, ceiling: f64) -> i32;
    fn cudnnDestroyActivationDescriptor(activation: usize) -> i32;
    fn cudnnConvolutionBiasActivationForward(handle: usize, alpha1: *const f32, xd: usize, x: u64, wd: usize, w: u64, convolution: usize, algorithm: i32, workspace: u64, bytes: usize, alpha2: *const f32, zd: usize, z: u64, bd: usize, b: u64, activation: usize, yd: usize, y: u64) -> i32;
    fn cudnnBackendCreateDescriptor(kind: i32, descriptor: *mut usize) -> i32;
    fn cudnnBackendDestroyDescriptor(descriptor: usize) -> i32;
    fn cudnnBackendSetAttribute(descriptor: usize, name: i32, kind: i32, count: i64, array: *const c_void) -> i32;
    fn cudnnBackendGetAttribute(descriptor: usize, name: i32, kind: i32, requested: i64, count: *mut i64, array: *mut c_void) -> i32;
    fn cudnnBackendFinalize(descriptor: usize) -> i32;
    fn cudnnBackendExecute(handle: usize, plan: usize, pack: usize) -> i32;
    fn tightfitMockCudnnReset();
    fn tightfitMockCudnnFail(name: *const c_char, nth: u64, status: i32);
    fn tightfitMockCudnnSetVersion(version: usize);
    fn tightfitMockCudnnLieWorkspace(bytes: i64);
    fn tightfitMockCudnnSpoil(nth: u64);
    fn tightfitMockCudnnSpoilEngine(index: i64);
    fn tightfitMockCudnnCalls(name: *const c_char) -> u64;
    fn tightfitMockCudnnCount(kind: *const c_char) -> u64;
});

/// Both libraries, a handle and its stream.
pub struct Client {
    pub cuda: MutexGuard<'static, Cuda>,
    pub dnn: &'static Cudnn,
    pub handle: usize,
    pub stream: usize,
}

/// Both libraries, freshly reset, for one test alone.
pub fn client() -> Client {
    let cuda = driver::cuda();
    static CUDNN: OnceLock<Cudnn> = OnceLock::new();
    let dnn = CUDNN.get_or_init(|| {
        // SAFETY: the library's initializers only set up Rust's own state.
        Cudnn(unsafe { Library::new(library("mock_cudnn")) }.unwrap())
    });
    dnn.tightfitMockCudnnReset();
    cuda.begin();
    let (mut handle, stream) = (0, cuda.stream());
    assert_eq!(dnn.cudnnCreate(&mut handle), 0);
    assert_eq!(dnn.cudnnSetStream(handle, stream), 0);
    Client { cuda, dnn, handle, stream }
}

/// `CUDNN_DATA_...`
pub const F32: i32 = 0;
pub const F16: i32 = 2;
pub const BF16: i32 = 9;

/// Rounds as a storage type does.
pub fn round(kind: i32, v: f32) -> f32 {
    match kind {
        F16 => f16::from_f32(v).to_f32(),
        BF16 => bf16::from_f32(v).to_f32(),
        _ => v,
    }
}

impl Client {
    pub fn count(&self, kind: &str) -> u64 {
        self.dnn.tightfitMockCudnnCount(CString::new(kind).unwrap().as_ptr())
    }

    pub fn fail(&self, name: &str, nth: u64, status: i32) {
        self.dnn.tightfitMockCudnnFail(CString::new(name).unwrap().as_ptr(), nth, status);
    }

    /// Data on the device, in a storage type.
    pub fn upload(&self, kind: i32, data: &[f32]) -> u64 {
        let bytes: Vec<u8> = data
            .iter()
            .flat_map(|&v| match kind {
                F16 => f16::from_f32(v).to_ne_bytes().to_vec(),
                BF16 => bf16::from_f32(v).to_ne_bytes().to_vec(),
                _ => v.to_ne_bytes().to_vec(),
            })
            .collect();
        let pointer = self.cuda.allocate(bytes.len());
        assert_eq!(self.cuda.cuMemcpyHtoD_v2(pointer, bytes.as_ptr().cast(), bytes.len()), 0);
        // The copy is staged when the call returns, and this client's stream does not wait for the default stream.
        assert_eq!(self.cuda.cuCtxSynchronize(), 0);
        pointer
    }

    pub fn download(&self, kind: i32, pointer: u64, len: usize) -> Vec<f32> {
        assert_eq!(self.cuda.cuStreamSynchronize(self.stream), 0);
        let size = if kind == F32 { 4 } else { 2 };
        let bytes = self.cuda.bytes(pointer, len * size);
        let value = |b: &[u8]| match kind {
            F16 => f16::from_ne_bytes([b[0], b[1]]).to_f32(),
            BF16 => bf16::from_ne_bytes([b[0], b[1]]).to_f32(),
            _ => f32::from_ne_bytes([b[0], b[1], b[2], b[3]]),
        };
        bytes.chunks(size).map(value).collect()
    }

    pub fn tensor(&self, kind: i32, dims: &[i32], strides: &[i32]) -> usize {
        let mut tensor = 0;
        assert_eq!(self.dnn.cudnnCreateTensorDescriptor(&mut tensor), 0);
        let count = dims.len() as i32;
        assert_eq!(self.dnn.cudnnSetTensorNdDescriptor(tensor, kind, count, dims.as_ptr(), strides.as_ptr()), 0);
        tensor
    }

    /// Sets an attribute of one or more values. Returns the status.
    pub fn set<T>(&self, descriptor: usize, name: i32, kind: i32, values: &[T]) -> i32 {
        self.dnn.cudnnBackendSetAttribute(descriptor, name, kind, values.len() as i64, values.as_ptr().cast())
    }

    /// Gets up to `values.len()` values. Returns the status and how many there are.
    pub fn get<T>(&self, descriptor: usize, name: i32, kind: i32, values: &mut [T]) -> (i32, i64) {
        let mut count = -1;
        let array = values.as_mut_ptr().cast();
        let length = values.len() as i64;
        (self.dnn.cudnnBackendGetAttribute(descriptor, name, kind, length, &mut count, array), count)
    }

    pub fn descriptor(&self, kind: i32) -> usize {
        let mut descriptor = 0;
        assert_eq!(self.dnn.cudnnBackendCreateDescriptor(kind, &mut descriptor), 0);
        descriptor
    }

    pub fn finalize(&self, descriptor: usize) -> i32 {
        self.dnn.cudnnBackendFinalize(descriptor)
    }

    /// A finalized tensor of the backend API.
    pub fn backend_tensor(&self, kind: i32, uid: i64, alignment: i64, dims: &[i64], strides: &[i64]) -> usize {
        let tensor = self.descriptor(17);
        self.set(tensor, 901, 1, &[kind]);
        self.set(tensor, 906, 3, &[uid]);
        self.set(tensor, 900, 3, &[alignment]);
        self.set(tensor, 902, 3, dims);
        self.set(tensor, 903, 3, strides);
        assert_eq!(self.finalize(tensor), 0);
        tensor
    }
}
