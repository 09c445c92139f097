//! The mock catches faults of its clients, so that their tests can fail: a wrong result, too little workspace, a workspace that two streams share.
//! The clients' tests compare its results with the definition.

#![allow(non_snake_case)] // the functions' names are cuDNN's

use std::sync::{MutexGuard, OnceLock};

use tightfit_test_support::driver::{self, Cuda, Library};
use tightfit_test_support::libraries::library;

tightfit_test_support::functions!(Cudnn {
    fn cudnnCreate(handle: *mut usize) -> i32;
    fn cudnnSetStream(handle: usize, stream: usize) -> i32;
    fn cudnnCreateTensorDescriptor(tensor: *mut usize) -> i32;
    fn cudnnSetTensorNdDescriptor(tensor: usize, kind: i32, count: i32, dims: *const i32, strides: *const i32) -> i32;
    fn cudnnCreateFilterDescriptor(filter: *mut usize) -> i32;
    fn cudnnSetFilterNdDescriptor(filter: usize, kind: i32, format: i32, count: i32, dims: *const i32) -> i32;
    fn cudnnCreateConvolutionDescriptor(convolution: *mut usize) -> i32;
    fn cudnnSetConvolutionNdDescriptor(convolution: usize, count: i32, pad: *const i32, strides: *const i32, dilations: *const i32, mode: i32, compute: i32) -> i32;
    fn cudnnGetConvolutionForwardWorkspaceSize(handle: usize, x: usize, w: usize, convolution: usize, y: usize, algorithm: i32, bytes: *mut usize) -> i32;
    fn cudnnConvolutionForward(handle: usize, alpha: *const f32, xd: usize, x: u64, wd: usize, w: u64, convolution: usize, algorithm: i32, workspace: u64, bytes: usize, beta: *const f32, yd: usize, y: u64) -> i32;
    fn tightfitMockCudnnReset();
    fn tightfitMockCudnnLieWorkspace(bytes: i64);
    fn tightfitMockCudnnSpoil(nth: u64);
    fn tightfitMockCudnnSpoilEngine(index: i64);
});

const BAD_PARAM: i32 = 2000;
const EXTENTS: [usize; 2] = [6, 5];

/// A dense 3 x 3 convolution of images of ones by filters of ones, on both mocks, freshly reset, for one test alone.
struct Convolution {
    cuda: MutexGuard<'static, Cuda>,
    dnn: &'static Cudnn,
    handle: usize,
    stream: usize,
    /// x, w and y.
    descriptors: [usize; 3],
    convolution: usize,
    data: [u64; 3],
    outputs: usize,
}

impl Convolution {
    fn new(samples: usize, channels: usize) -> Convolution {
        static CUDNN: OnceLock<Cudnn> = OnceLock::new();
        let cuda = driver::cuda();
        let dnn = CUDNN.get_or_init(|| {
            // SAFETY: the library's initializers only set up Rust's own state.
            Cudnn(unsafe { Library::new(library("mock_cudnn")) }.unwrap())
        });
        dnn.tightfitMockCudnnReset();
        cuda.begin();
        let (mut handle, stream) = (0, cuda.stream());
        let (mut image, mut filter, mut convolution) = (0, 0, 0);
        let [h, w] = EXTENTS;
        let (n, c) = (samples as i32, channels as i32);
        let (dims, strides) = ([n, c, h as i32, w as i32], [c * (h * w) as i32, (h * w) as i32, w as i32, 1]);
        let (filters, ones) = ([c, c, 3, 3], [1; 2]);
        for status in [
            dnn.cudnnCreate(&mut handle),
            dnn.cudnnSetStream(handle, stream),
            dnn.cudnnCreateTensorDescriptor(&mut image),
            dnn.cudnnSetTensorNdDescriptor(image, 0, 4, dims.as_ptr(), strides.as_ptr()),
            dnn.cudnnCreateFilterDescriptor(&mut filter),
            dnn.cudnnSetFilterNdDescriptor(filter, 0, 0, 4, filters.as_ptr()),
            dnn.cudnnCreateConvolutionDescriptor(&mut convolution),
            dnn.cudnnSetConvolutionNdDescriptor(convolution, 2, ones.as_ptr(), ones.as_ptr(), ones.as_ptr(), 1, 0),
        ] {
            assert_eq!(status, 0);
        }
        let (outputs, weights) = (samples * channels * h * w, channels * channels * 9);
        let data = [outputs, weights, outputs].map(|len| {
            let (pointer, ones) = (cuda.allocate(len * 4), vec![1_f32; len]);
            assert_eq!(cuda.cuMemcpyHtoD_v2(pointer, ones.as_ptr().cast(), len * 4), 0);
            pointer
        });
        assert_eq!(cuda.cuCtxSynchronize(), 0);
        Convolution { cuda, dnn, handle, stream, descriptors: [image, filter, image], convolution, data, outputs }
    }

    fn workspace(&self, algorithm: i32) -> usize {
        let ([x, w, y], mut bytes) = (self.descriptors, 0);
        let (h, c) = (self.handle, self.convolution);
        assert_eq!(self.dnn.cudnnGetConvolutionForwardWorkspaceSize(h, x, w, c, y, algorithm, &mut bytes), 0);
        bytes
    }

    fn run(&self, algorithm: i32, workspace: (u64, usize)) -> i32 {
        let ([xd, wd, yd], [x, w, y], (space, bytes)) = (self.descriptors, self.data, workspace);
        let (h, c) = (self.handle, self.convolution);
        self.dnn.cudnnConvolutionForward(h, &1.0, xd, x, wd, w, c, algorithm, space, bytes, &0.0, yd, y)
    }

    fn output(&self) -> Vec<f32> {
        assert_eq!(self.cuda.cuStreamSynchronize(self.stream), 0);
        let bytes = self.cuda.bytes(self.data[2], self.outputs * 4);
        bytes.chunks(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
    }
}

#[test]
fn workspace_too_small_is_refused_or_caught() {
    let ours = Convolution::new(2, 2);
    let bytes = ours.workspace(2);
    let small = (ours.cuda.allocate(bytes - 256), bytes - 256);
    assert_eq!(ours.run(2, small), BAD_PARAM);
    ours.dnn.tightfitMockCudnnLieWorkspace(-256);
    assert_eq!(ours.workspace(2), bytes - 256);
    assert_eq!(ours.run(2, small), 0, "told so little, so given");
    assert_eq!(ours.cuda.cuStreamSynchronize(ours.stream), 700);
}

#[test]
fn two_streams_in_one_workspace_are_caught() {
    let ours = Convolution::new(8, 8);
    let (bytes, second) = (ours.workspace(2), ours.cuda.stream());
    let space = (ours.cuda.allocate(bytes), bytes);
    for _ in 0..200 {
        ours.run(2, space);
        ours.dnn.cudnnSetStream(ours.handle, second);
        ours.run(2, space);
        ours.dnn.cudnnSetStream(ours.handle, ours.stream);
    }
    assert_eq!(ours.cuda.cuCtxSynchronize(), 719);
}

#[test]
fn one_wrong_element_on_request() {
    let ours = Convolution::new(1, 1);
    let is_wrong = || {
        assert_eq!(ours.run(0, (0, 0)), 0);
        let output = ours.output();
        let [h, w] = EXTENTS;
        // A sum of ones: one for each element of the filter that lies within the image.
        let right = |place: usize| {
            let within = |at: usize, extent: usize| 3 - usize::from(at == 0) - usize::from(at == extent - 1);
            (within(place / w, h) * within(place % w, w)) as f32
        };
        let wrong: Vec<usize> = (0..output.len()).filter(|place| output[*place] != right(*place)).collect();
        assert!(wrong.iter().all(|place| *place == 0), "{wrong:?}");
        !wrong.is_empty()
    };
    ours.dnn.tightfitMockCudnnSpoil(2);
    assert_eq!([(); 3].map(|()| is_wrong()), [false, true, false]);
    // Of one engine, which algorithm 0 is.
    for (engine, spoiled) in [(0, true), (1, false), (-1, false)] {
        ours.dnn.tightfitMockCudnnSpoilEngine(engine);
        assert_eq!([(); 2].map(|()| is_wrong()), [spoiled; 2], "{engine}");
    }
}
