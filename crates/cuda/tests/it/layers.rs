//! This crate's own kernels for layers against plain loops: on the mock libraries, and in ignored tests on a real GPU.
//! Small whole numbers are exact in every type, so that all results are compared to the bit.

use std::sync::Arc;

use tightfit_conv::problem::Storage;
use tightfit_conv::{Axis, Layout};
use tightfit_cuda::layers::{Libraries, Map, Pool, Write, copy_channels};
use tightfit_cuda::safe::{DeviceBuffer, Region};
use tightfit_cuda::{CudaBackend, CudaError, Options};
use tightfit_network::{Pooling, PoolingMethod, Shape};
use tightfit_test_support::mocks::Mocks;

const STORAGES: [Storage; 3] = [Storage::F32, Storage::F16, Storage::Bf16];

/// A map on the device that holds these numbers.
fn map(libraries: &Libraries, storage: Storage, samples: usize, shape: Shape, values: &[f32]) -> Map {
    assert_eq!(values.len(), samples * shape.len());
    let bytes = storage.encode(values);
    let buffer = Arc::new(DeviceBuffer::new(libraries.handle().context(), bytes.len()).unwrap());
    let region = Region::new(&buffer, 0..bytes.len()).unwrap();
    region.upload(&bytes).unwrap();
    Map { region, samples, shape, storage, layout: Layout::Nchw }
}

fn values(map: &Map) -> Vec<f32> {
    let mut bytes = vec![0; map.region.len()];
    map.region.slice().unwrap().download(&mut bytes).unwrap();
    map.storage.decode(&bytes)
}

/// Whole numbers below `below`, many of them equal.
fn numbers(len: usize, below: u64, seed: u64) -> Vec<f32> {
    let draw = |i: u64| (i + 1000 * seed).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_pow(3) >> 33;
    (0..len as u64).map(|i| (draw(i) % below) as f32).collect()
}

/// Some channels of every sample: where all addresses are multiples of sixteen bytes, and where not.
fn copies_agree(libraries: &Arc<Libraries>) {
    // Extents, samples, channels; of x and of y their channels and the first one.
    let cases = [
        ([4, 4], 3, 8, (8, 0), (8, 0)),
        ([7, 7], 5, 24, (24, 0), (64, 16)),
        ([7, 7], 2, 3, (9, 1), (12, 2)),
        ([8, 8], 3, 4, (10, 6), (4, 0)),
        ([1, 1], 70, 4, (4, 0), (5, 1)),
        ([3, 5], 1, 1, (9, 8), (1, 0)),
        ([64, 64], 2, 3, (3, 0), (3, 0)),
    ];
    for storage in STORAGES {
        for ([height, width], samples, channels, (x_channels, x_first), (y_channels, y_first)) in cases {
            for write in [Write::Overwrite, Write::Add] {
                let shape = |channels| Shape::image(channels, height, width);
                let (x_shape, y_shape, area) = (shape(x_channels), shape(y_channels), height * width);
                let from = numbers(samples * x_shape.len(), 100, 1);
                let mut wanted = numbers(samples * y_shape.len(), 100, 2);
                let x = map(libraries, storage, samples, x_shape, &from);
                let y = map(libraries, storage, samples, y_shape, &wanted);
                copy_channels(libraries, (&x, x_first), (&y, y_first), channels, write).unwrap()().unwrap();
                for sample in 0..samples {
                    for i in 0..channels * area {
                        let to = &mut wanted[(sample * y_channels + y_first) * area + i];
                        let value = from[(sample * x_channels + x_first) * area + i];
                        *to = if write == Write::Add { *to + value } else { value };
                    }
                }
                assert!(values(&y) == wanted, "{storage:?}: {channels} channels of {x_shape} to {y_shape}, {write:?}");
            }
        }
    }
}

/// Places of a window in its plane, in row order.
fn places(axes: &[Axis; 3], at: [usize; 3]) -> Vec<usize> {
    let inside = |axis: &Axis, at: usize| {
        let places = (at * axis.stride..at * axis.stride + axis.filter).filter_map(|i| i.checked_sub(axis.pad_before));
        places.filter(|i| *i < axis.input).collect::<Vec<_>>()
    };
    let [_, height, width] = axes.map(|axis| axis.input);
    let mut places = Vec::new();
    for z in inside(&axes[0], at[0]) {
        for y in inside(&axes[1], at[1]) {
            places.extend(inside(&axes[2], at[2]).into_iter().map(|x| (z * height + y) * width + x));
        }
    }
    places
}

/// The gradient of maximum pooling goes to the first largest element of each window.
fn pooling_gradients_agree(libraries: &Arc<Libraries>) {
    let axis = Axis::new;
    let cut = Axis { pad_before: 1, pad_after: 0, ..axis(10, 3).stride(2) };
    let cases = [
        ([Axis::UNIT, axis(8, 2).stride(2), axis(8, 2).stride(2)], false),
        ([Axis::UNIT, axis(7, 3).pad(1), axis(7, 3).pad(1)], false),
        ([Axis::UNIT, axis(13, 3).stride(2), axis(6, 2)], true),
        ([Axis::UNIT, cut, axis(5, 5)], true),
        ([Axis::UNIT, axis(33, 3).stride(2).pad(1), axis(40, 3).stride(3)], false),
        ([Axis::UNIT, axis(1, 1), axis(300, 4).stride(3)], true),
        ([Axis::UNIT, axis(70, 3).pad(1), axis(81, 2)], false),
        ([Axis::UNIT, axis(3, 1).stride(2), axis(9001, 2).stride(2)], false),
        ([axis(20, 2), axis(19, 3), axis(18, 3).pad(1)], false),
        ([Axis::UNIT, axis(9, 2).stride(4), axis(10, 1).stride(3)], false),
        ([axis(5, 3).stride(2).pad(1), axis(6, 2).stride(2), axis(7, 3).pad(1)], false),
    ];
    let (samples, channels) = (3, 5);
    for storage in STORAGES {
        for (axes, ceil) in cases {
            for write in [Write::Overwrite, Write::Add] {
                let pooling = Pooling { method: PoolingMethod::Maximum, axes, ceil };
                let (inputs, outputs) = (axes.map(|axis| axis.input), pooling.outputs());
                let volume = axes[0] != Axis::UNIT;
                let shape = |[depth, height, width]: [usize; 3]| match volume {
                    true => Shape::volume(channels, depth, height, width),
                    false => Shape::image(channels, height, width),
                };
                let (x_shape, y_shape) = (shape(inputs), shape(outputs));
                let x = numbers(samples * x_shape.len(), 5, 1);
                let dy = numbers(samples * y_shape.len(), 8, 2);
                let before = numbers(samples * x_shape.len(), 8, 3);
                let mut wanted = if write == Write::Add { before.clone() } else { vec![0.0; before.len()] };
                let (plane, count) = (inputs.iter().product::<usize>(), outputs.iter().product::<usize>());
                let mut y = Vec::new();
                for (own, wanted) in x.chunks(plane).zip(wanted.chunks_mut(plane)) {
                    for window in 0..count {
                        let [_, rows, columns] = outputs;
                        let at = [window / columns / rows, window / columns % rows, window % columns];
                        let places = places(&axes, at);
                        let largest = places.iter().map(|&place| own[place]).fold(f32::NEG_INFINITY, f32::max);
                        let first = places.into_iter().find(|&place| own[place] == largest).unwrap();
                        wanted[first] += dy[y.len()];
                        y.push(largest);
                    }
                }
                let map = |shape, values: &[f32]| map(libraries, storage, samples, shape, values);
                let (x, y, dy, dx) = (map(x_shape, &x), map(y_shape, &y), map(y_shape, &dy), map(x_shape, &before));
                let pool = Pool::new(libraries, &pooling, if volume { 3 } else { 2 }).unwrap();
                pool.backward([&y, &dy, &x], &dx, write).unwrap()().unwrap();
                assert!(values(&dx) == wanted, "{storage:?}: windows {axes:?}, added {write:?}");
            }
        }
    }
}

fn kernels_agree(options: &Options) {
    let backend = CudaBackend::open(options).unwrap();
    let libraries = Libraries::open(backend.handle(), options.cublas.as_deref()).unwrap();
    copies_agree(&libraries);
    pooling_gradients_agree(&libraries);
}

#[test]
fn own_kernels_match_plain_loops() {
    let mocks = Mocks::new();
    kernels_agree(&mocks.options());
    mocks.assert_nothing_left("layers");
}

#[test]
#[ignore = "needs a CUDA device"]
fn own_kernels_match_plain_loops_on_a_gpu() {
    kernels_agree(&Options::default());
}

#[test]
fn maps_that_do_not_fit_are_refused() {
    let mocks = Mocks::new();
    let backend = mocks.backend();
    let libraries = Libraries::open(backend.handle(), mocks.options().cublas.as_deref()).unwrap();
    let zeros = |shape: Shape| map(&libraries, Storage::F32, 2, shape, &vec![0.0; 2 * shape.len()]);
    let (x, y) = (zeros(Shape::image(3, 4, 4)), zeros(Shape::image(3, 2, 2)));
    let unfit = |result: Result<_, CudaError>| matches!(result.err(), Some(CudaError::Unfit { .. }));
    assert!(unfit(copy_channels(&libraries, (&x, 2), (&x, 0), 2, Write::Overwrite)), "channels that are not there");
    assert!(unfit(copy_channels(&libraries, (&x, 0), (&y, 0), 2, Write::Overwrite)), "channels of another area");
    let windows = Axis::new(4, 2).stride(2);
    let pooling = Pooling { method: PoolingMethod::Maximum, axes: [Axis::UNIT, windows, windows], ceil: false };
    let pool = Pool::new(&libraries, &pooling, 2).unwrap();
    assert!(pool.backward([&y, &y, &x], &x, Write::Overwrite).is_ok());
    assert!(unfit(pool.backward([&x, &y, &x], &x, Write::Overwrite)), "y of x's extents");
    assert!(unfit(pool.backward([&y, &y, &x], &y, Write::Overwrite)), "dx of y's extents");
    let windows = Axis::new(130, 65);
    let pooling = Pooling { method: PoolingMethod::Maximum, axes: [Axis::UNIT, windows, windows], ceil: false };
    let (x, y) = (zeros(Shape::image(1, 130, 130)), zeros(Shape::image(1, 66, 66)));
    let refused = Pool::new(&libraries, &pooling, 2).unwrap().backward([&y, &y, &x], &x, Write::Overwrite);
    assert!(refused.err().unwrap().to_string().contains("4225 windows that hold the same element; at most 4096 may"));
}
