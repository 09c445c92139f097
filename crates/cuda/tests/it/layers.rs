//! This crate's own kernels for layers against plain loops in f64: on the mock libraries, and in ignored tests on a real
//! GPU. Small whole numbers are exact in every type, so that most results are compared to the bit.

use std::sync::Arc;

use tightfit_conv::problem::Storage;
use tightfit_conv::{Axis, Layout};
use tightfit_cuda::layers::{
    Libraries, Map, Now, Pool, Work, Write, add as add_maps, add_bias, bias_gradient, copy_channels, dropout, relu,
    relu_gradient,
};
use tightfit_cuda::safe::{DeviceBuffer, Region};
use tightfit_cuda::{CudaBackend, CudaError, Options};
use tightfit_network::{Pooling, PoolingMethod, Rule, Sgd, Shape};
use tightfit_plan::Order;
use tightfit_test_support::mocks::Mocks;

const HALVES: [Storage; 2] = [Storage::F16, Storage::Bf16];
/// How maps lie for the kernels that serve only some types where channels come last.
const MAPS: [(Storage, Layout); 5] = [
    (Storage::F32, Layout::Nchw),
    (Storage::F16, Layout::Nchw),
    (Storage::Bf16, Layout::Nchw),
    (Storage::F16, Layout::Nhwc),
    (Storage::Bf16, Layout::Nhwc),
];
pub const WRITES: [Write; 2] = [Write::Overwrite, Write::Add];

/// Samples, channels, height and width: channels that fill packs of eight, that do not, that take several blocks; one place.
pub const FORMS: [(usize, usize, usize, usize); 9] = [
    (2, 8, 3, 5),
    (3, 5, 7, 2),
    (1, 1, 4, 4),
    (4, 264, 1, 1),
    (2, 520, 3, 3),
    (5, 24, 1, 9),
    (7, 13, 1, 1),
    (33, 64, 11, 13),
    (2, 300, 2, 2),
];

/// Small whole numbers from `from` on, many of them equal.
pub fn numbers(len: usize, below: u64, from: f32, seed: u64) -> Vec<f32> {
    let draw = |i: u64| (i + 1000 * seed).wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_pow(3) >> 33;
    (0..len as u64).map(|i| from + (draw(i) % below) as f32).collect()
}

pub fn region(libraries: &Libraries, storage: Storage, values: &[f32]) -> Region {
    let bytes = storage.encode(values);
    let buffer = Arc::new(DeviceBuffer::new(libraries.handle().context(), bytes.len()).unwrap());
    let region = Region::new(&buffer, 0..bytes.len()).unwrap();
    region.upload(&bytes).unwrap();
    region
}

/// A map on the device with these numbers, which are in its order.
fn map(
    libraries: &Libraries,
    (storage, layout): (Storage, Layout),
    samples: usize,
    shape: Shape,
    values: &[f32],
) -> Map {
    assert_eq!(values.len(), samples * shape.len());
    Map { region: region(libraries, storage, values), samples, shape, storage, layout }
}

/// The element of a sample, a channel and a place in its plane, of maps of this many channels and places.
fn element(layout: Layout, [channels, area]: [usize; 2], sample: usize, channel: usize, place: usize) -> usize {
    match layout {
        Layout::Nchw => (sample * channels + channel) * area + place,
        Layout::Nhwc => (sample * area + place) * channels + channel,
    }
}

pub fn read(region: &Region, storage: Storage) -> Vec<f32> {
    let mut bytes = vec![0; region.len()];
    region.slice().unwrap().download(&mut bytes).unwrap();
    storage.decode(&bytes)
}

pub fn run(work: Result<Work, CudaError>) {
    work.unwrap()().unwrap();
}

pub fn assert_near(what: &str, got: &[f32], want: &[f64], relative: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let off = (f64::from(*got) - want).abs();
        assert!(off <= relative * want.abs().max(1.0), "{what}: {got} at {i}, not {want}");
    }
}

/// The tolerance of rounding to a type, with a little for the f32 arithmetic.
pub fn rounding(storage: Storage) -> f64 {
    match storage {
        Storage::F32 => 1e-4,
        Storage::F16 => 1.0 / 1500.0,
        Storage::Bf16 => 1.0 / 200.0,
    }
}

fn biases_agree(libraries: &Arc<Libraries>) {
    for (storage, (samples, channels, height, width)) in HALVES.into_iter().flat_map(|s| FORMS.map(|form| (s, form))) {
        let shape = Shape::image(channels, height, width);
        let what = format!("{storage:?}, {samples} samples of {shape}");
        let values = numbers(samples * shape.len(), 50, -20.0, 1);
        let biases = numbers(channels, 9, -4.0, 2);
        let y = map(libraries, (storage, Layout::Nhwc), samples, shape, &values);
        run(add_bias(libraries, &region(libraries, storage, &biases), &y));
        let want: Vec<f32> = values.iter().enumerate().map(|(i, value)| value + biases[i % channels]).collect();
        assert!(read(&y.region, storage) == want, "{what}: bias");
        for write in WRITES {
            let before = numbers(channels, 5, 0.0, 3);
            let db = region(libraries, Storage::F32, &before);
            run(bias_gradient(
                libraries,
                &map(libraries, (storage, Layout::Nhwc), samples, shape, &values),
                &db,
                write,
            ));
            let mut want = if write == Write::Add { before } else { vec![0.0; channels] };
            values.iter().enumerate().for_each(|(i, value)| want[i % channels] += value);
            assert!(read(&db, Storage::F32) == want, "{what}: gradient of the bias, {write:?}");
        }
    }
}

/// Some channels of every sample: where all addresses are multiples of sixteen bytes, and where not.
fn copies_agree(libraries: &Arc<Libraries>) {
    // Samples, extents, channels; of x and of y their channels and the first one.
    let cases = [
        (3, [4, 4], 8, (8, 0), (8, 0)),
        (3, [4, 4], 8, (8, 0), (16, 8)),
        (5, [7, 7], 24, (24, 0), (64, 16)),
        (2, [7, 7], 3, (9, 1), (12, 2)),
        (3, [8, 8], 4, (10, 6), (4, 0)),
        (3, [8, 8], 8, (24, 4), (8, 0)),
        (70, [1, 1], 4, (4, 0), (5, 1)),
        (70, [1, 1], 8, (16, 8), (8, 0)),
        (1, [3, 5], 1, (9, 8), (1, 0)),
        (1, [3, 5], 300, (304, 2), (301, 1)),
        (2, [64, 64], 3, (3, 0), (3, 0)),
        (2, [6, 5], 16, (16, 0), (17, 0)),
        (2, [6, 5], 16, (16, 0), (16, 0)),
    ];
    for form @ (storage, layout) in MAPS {
        for (samples, [height, width], channels, (x_channels, x_first), (y_channels, y_first)) in cases {
            for write in WRITES {
                let shape = |channels| Shape::image(channels, height, width);
                let (area, x_shape, y_shape) = (height * width, shape(x_channels), shape(y_channels));
                let from = numbers(samples * x_shape.len(), 50, 0.0, 1);
                let mut wanted = numbers(samples * y_shape.len(), 50, 0.0, 2);
                let x = map(libraries, form, samples, x_shape, &from);
                let y = map(libraries, form, samples, y_shape, &wanted);
                run(copy_channels(libraries, (&x, x_first), (&y, y_first), channels, write));
                for (sample, i) in (0..samples).flat_map(|sample| (0..channels * area).map(move |i| (sample, i))) {
                    let (channel, place) = (i / area, i % area);
                    let to = &mut wanted[element(layout, [y_channels, area], sample, y_first + channel, place)];
                    let value = from[element(layout, [x_channels, area], sample, x_first + channel, place)];
                    *to = if write == Write::Add { *to + value } else { value };
                }
                assert!(
                    read(&y.region, storage) == wanted,
                    "{storage:?}, {}: {channels} channels of {x_shape} to {y_shape}, {write:?}",
                    layout.name()
                );
            }
        }
    }
}

fn sums_agree(libraries: &Arc<Libraries>) {
    for storage in [Storage::F32, Storage::F16, Storage::Bf16] {
        // With the last, rows are not as wide as a whole number of 16 bytes.
        for shape in [Shape::image(16, 6, 5), Shape::image(3, 7, 5)] {
            for relu in [false, true] {
                let [x, y] = [1, 2].map(|seed| numbers(2 * shape.len(), 50, -20.0, seed));
                let map = |values: &[f32]| {
                    let region = region(libraries, storage, values);
                    Map { region, samples: 2, shape, storage, layout: Layout::Nchw }
                };
                let (from, to) = (map(&x), map(&y));
                run(add_maps(libraries, &from, &to, relu));
                let sums = x.iter().zip(&y).map(|(x, y)| if relu { (x + y).max(0.0) } else { x + y });
                assert!(read(&to.region, storage) == sums.collect::<Vec<f32>>(), "{storage:?} {shape}, relu: {relu}");
            }
        }
    }
}

/// Places of a window in its volume, in row order.
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

/// The gradient of maximum pooling goes to the first largest element of each window. Where channels come last, the forward
/// pass and average pooling are kernels of this crate too.
fn poolings_agree(libraries: &Arc<Libraries>) {
    let axis = Axis::new;
    let cut = Axis { pad_before: 1, pad_after: 0, ..axis(10, 3).stride(2) };
    let common = [
        ([Axis::UNIT, axis(8, 2).stride(2), axis(8, 2).stride(2)], false),
        ([Axis::UNIT, axis(7, 3).pad(1), axis(7, 3).pad(1)], false),
        ([Axis::UNIT, axis(13, 3).stride(2), axis(6, 2)], true),
        ([Axis::UNIT, cut, axis(5, 5)], true),
        ([Axis::UNIT, axis(33, 3).stride(2).pad(1), axis(40, 3).stride(3)], false),
        ([Axis::UNIT, axis(1, 1), axis(300, 4).stride(3)], true),
        ([Axis::UNIT, axis(9, 2).stride(4), axis(10, 1).stride(3)], false),
        ([axis(5, 3).stride(2).pad(1), axis(6, 2).stride(2), axis(7, 3).pad(1)], false),
    ];
    let planes = [
        ([Axis::UNIT, axis(70, 3).pad(1), axis(81, 2)], false),
        ([Axis::UNIT, axis(3, 1).stride(2), axis(9001, 2).stride(2)], false),
        ([axis(20, 2), axis(19, 3), axis(18, 3).pad(1)], false),
    ];
    let rows = [
        ([Axis::UNIT, axis(7, 7), axis(7, 7)], false),
        // The number of windows that hold the middle element lets a block keep the places of only one channel.
        ([Axis::UNIT, axis(1, 1), axis(1101, 1101).pad(550)], false),
    ];
    let (f16, bf16) = ((Storage::F16, Layout::Nhwc), (Storage::Bf16, Layout::Nhwc));
    for (form, channels) in MAPS[..3].iter().map(|form| (*form, 5)).chain([(f16, 8), (f16, 5), (bf16, 72), (bf16, 130)])
    {
        let (more, methods): (&[_], &[_]) = match form.1 {
            Layout::Nchw => (&planes, &[PoolingMethod::Maximum]),
            Layout::Nhwc => (&rows, &[PoolingMethod::Maximum, PoolingMethod::Average]),
        };
        for (axes, ceil) in common.iter().chain(more).copied() {
            // The loops below would take long.
            if axes[2].filter <= 1000 || channels <= 8 {
                methods
                    .iter()
                    .for_each(|&method| pooling_agrees(libraries, form, channels, Pooling { method, axes, ceil }));
            }
        }
    }
}

fn pooling_agrees(
    libraries: &Arc<Libraries>,
    form @ (storage, layout): (Storage, Layout),
    channels: usize,
    pooling: Pooling,
) {
    let (samples, Pooling { method, axes, .. }) = (2, pooling);
    let (inputs, outputs) = (axes.map(|axis| axis.input), pooling.outputs());
    let volume = axes[0] != Axis::UNIT;
    let shape = |[depth, height, width]: [usize; 3]| match volume {
        true => Shape::volume(channels, depth, height, width),
        false => Shape::image(channels, height, width),
    };
    let (x_shape, y_shape) = (shape(inputs), shape(outputs));
    let (area, windows): (usize, usize) = (inputs.iter().product(), outputs.iter().product());
    let x = numbers(samples * x_shape.len(), 5, -2.0, 1);
    let dy = numbers(samples * y_shape.len(), 8, 0.0, 2);
    let before = numbers(samples * x_shape.len(), 8, 0.0, 3);
    let (mut y, mut dx) = (vec![0.0; dy.len()], vec![0.0; x.len()]);
    for (sample, window) in (0..samples).flat_map(|sample| (0..windows).map(move |window| (sample, window))) {
        let [_, rows, columns] = outputs;
        let places = places(&axes, [window / columns / rows, window / columns % rows, window % columns]);
        for channel in 0..channels {
            let own = |place: usize| element(layout, [channels, area], sample, channel, place);
            let to = element(layout, [channels, windows], sample, channel, window);
            if method == PoolingMethod::Average {
                let share = 1.0 / places.len() as f64;
                y[to] = places.iter().map(|place| f64::from(x[own(*place)])).sum::<f64>() * share;
                places.iter().for_each(|place| dx[own(*place)] += f64::from(dy[to]) * share);
            } else {
                let largest = places.iter().map(|place| x[own(*place)]).fold(f32::NEG_INFINITY, f32::max);
                let first = places.iter().find(|place| x[own(**place)] == largest).unwrap();
                y[to] = f64::from(largest);
                dx[own(*first)] += f64::from(dy[to]);
            }
        }
    }
    let what = format!("{storage:?}, {}, {channels} channels, {method:?} of windows {axes:?}", layout.name());
    let map = |shape, values: &[f32]| map(libraries, form, samples, shape, values);
    let largest: Vec<f32> = y.iter().map(|value| *value as f32).collect();
    let (x, got, gradient) = (map(x_shape, &x), map(y_shape, &largest), map(y_shape, &dy));
    let pool = Pool::new(libraries, &pooling, if volume { 3 } else { 2 }).unwrap();
    let tolerance = if layout == Layout::Nhwc { rounding(storage) } else { 0.0 };
    if layout == Layout::Nhwc {
        got.region.upload(&storage.encode(&dy)).unwrap();
        run(pool.forward(&x, &got));
        assert_near(&what, &read(&got.region, storage), &y, tolerance);
    }
    for write in WRITES {
        let to = map(x_shape, &before);
        run(pool.backward([&got, &gradient, &x], &to, write));
        let add = |(new, old): (&f64, &f32)| if write == Write::Add { new + f64::from(*old) } else { *new };
        let want: Vec<f64> = dx.iter().zip(&before).map(add).collect();
        assert_near(&format!("{what}: gradient, {write:?}"), &read(&to.region, storage), &want, tolerance);
    }
}

/// The dropped elements do not depend on their place in memory.
fn draws_agree(libraries: &Arc<Libraries>) {
    let rule = Rule::Sgd(Sgd::default());
    libraries.now().upload(&Now { step: 3, seed: 7, rule, loss_scale: 1.0 }.bytes()).unwrap();
    for (samples, channels, height, width) in FORMS {
        let (shape, order) = (Shape::image(channels, height, width), Order { channels, area: height * width });
        let ones = vec![1.0; samples * shape.len()];
        let drawn = |order: Order| {
            let (x, y) = (
                map(libraries, (Storage::F16, Layout::Nhwc), samples, shape, &ones),
                map(libraries, (Storage::F16, Layout::Nhwc), samples, shape, &ones),
            );
            // Twice as long as the bytes that it gets.
            let mask = map(libraries, (Storage::F16, Layout::Nhwc), samples, shape, &ones);
            run(dropout(libraries, &x, &y, &mask.region, 0.4, ((2, 5), order)));
            read(&y.region, Storage::F16)
        };
        let (first, last) = (drawn(Order::plain(shape.len())), drawn(order));
        assert!(order.to_device(&first) == last, "{samples} samples of {shape}");
    }
}

/// ReLU does not ask where an element lies: also in f32, in place, and where maps begin between two packs.
fn relus_agree(libraries: &Arc<Libraries>) {
    let cases =
        [Storage::F32, Storage::F16, Storage::Bf16].into_iter().flat_map(|storage| [0, 1].map(|from| (storage, from)));
    for ((storage, from), (samples, channels, height, width)) in cases.flat_map(|case| FORMS.map(|form| (case, form))) {
        let shape = Shape::image(channels, height, width);
        let what = format!("{storage:?}, {samples} samples of {shape}, from element {from} on");
        let len = samples * shape.len();
        let map = |values: &[f32]| {
            let all = region(libraries, storage, &[&[9.0; 1][..from], values].concat());
            let region = all.part(from * storage.size()..all.len()).unwrap();
            Map { region, samples, shape, storage, layout: Layout::Nhwc }
        };
        let mut values = numbers(len, 9, -4.0, 1);
        values[len / 2] = f32::NAN;
        let same = |got: &[f32], want: &[f32]| {
            got.iter().zip(want).all(|(got, want)| got == want || got.is_nan() && want.is_nan())
                && got.len() == want.len()
        };
        let want: Vec<f32> = values.iter().map(|&x| if x < 0.0 { 0.0 } else { x }).collect();
        let (x, y) = (map(&values), map(&vec![7.0; len]));
        run(relu(libraries, &x, &y));
        assert!(same(&read(&y.region, storage), &want), "{what}");
        run(relu(libraries, &x, &x));
        assert!(same(&read(&x.region, storage), &want), "{what}, in place");
        let (gradients, before) = (numbers(len, 9, -4.0, 2), numbers(len, 5, 0.0, 3));
        for write in WRITES {
            let (dy, dx) = (map(&gradients), map(&before));
            run(relu_gradient(libraries, &y, &dy, &dx, write));
            let gradient = |i: usize| if want[i] > 0.0 { gradients[i] } else { 0.0 };
            let added = |i: usize| if write == Write::Add { before[i] } else { 0.0 };
            let want: Vec<f32> = (0..len).map(|i| added(i) + gradient(i)).collect();
            assert!(same(&read(&dx.region, storage), &want), "{what}: gradient, {write:?}");
        }
        let (dy, want) = (map(&gradients), (0..len).map(|i| if want[i] > 0.0 { gradients[i] } else { 0.0 }));
        run(relu_gradient(libraries, &y, &dy, &dy, Write::Overwrite));
        assert!(same(&read(&dy.region, storage), &want.collect::<Vec<f32>>()), "{what}: gradient, in place");
    }
    let long = map(libraries, (Storage::F16, Layout::Nhwc), 2, Shape::image(2, 2, 2), &[0.0; 16]);
    let short = Map { samples: 1, ..long.clone() };
    assert!(matches!(relu(libraries, &short, &long), Err(CudaError::Unfit { layer: "relu", .. })));
}

fn kernels_agree(options: &Options) {
    let backend = CudaBackend::open(options).unwrap();
    let libraries = Libraries::open(backend.handle(), options.cublas.as_deref()).unwrap();
    biases_agree(&libraries);
    copies_agree(&libraries);
    sums_agree(&libraries);
    poolings_agree(&libraries);
    draws_agree(&libraries);
    relus_agree(&libraries);
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
fn maps_in_f32_are_refused() {
    let mocks = Mocks::new();
    let backend = mocks.backend();
    let libraries = Libraries::open(backend.handle(), mocks.options().cublas.as_deref()).unwrap();
    let y = map(&libraries, (Storage::F32, Layout::Nhwc), 1, Shape::image(2, 2, 2), &[0.0; 8]);
    let error = add_bias(&libraries, &region(&libraries, Storage::F32, &[0.0; 2]), &y).err().unwrap();
    assert!(error.to_string().contains("f16 or bf16, not f32"), "{error}");
}

#[test]
fn maps_that_do_not_fit_are_refused() {
    let mocks = Mocks::new();
    let backend = mocks.backend();
    let libraries = Libraries::open(backend.handle(), mocks.options().cublas.as_deref()).unwrap();
    let form = (Storage::F32, Layout::Nchw);
    let zeros = |shape: Shape| map(&libraries, form, 2, shape, &vec![0.0; 2 * shape.len()]);
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
