//! Batch normalization in both layouts against plain loops in f64: on the mock libraries, and in ignored tests on a real
//! GPU.

use std::ops::Range;
use std::sync::Arc;

use tightfit_conv::Layout;
use tightfit_conv::problem::Storage;
use tightfit_cuda::layers::{BatchNorm, Libraries, Map, Statistics, Write};
use tightfit_cuda::{CudaBackend, Options};
use tightfit_network::Shape;
use tightfit_test_support::mocks::Mocks;

use crate::layers::{FORMS, WRITES, assert_near, numbers, read, region, rounding, run};

const CASES: [(Storage, Layout); 5] = [
    (Storage::F32, Layout::Nchw),
    (Storage::F16, Layout::Nchw),
    (Storage::Bf16, Layout::Nchw),
    (Storage::F16, Layout::Nhwc),
    (Storage::Bf16, Layout::Nhwc),
];

/// The other kernels' shapes; large and odd areas, many samples of one channel, and volumes.
fn forms() -> Vec<(usize, Shape)> {
    let images = FORMS.map(|(samples, channels, height, width)| (samples, Shape::image(channels, height, width)));
    let more = [
        (1, Shape::image(3, 56, 56)),
        (2, Shape::image(5, 113, 61)),
        (300, Shape::image(1, 7, 7)),
        (6, Shape::image(70, 14, 14)),
        (1, Shape::volume(3, 8, 12, 10)),
        (3, Shape::volume(9, 3, 5, 7)),
    ];
    images.into_iter().chain(more).collect()
}

fn normalizations_agree(libraries: &Arc<Libraries>) {
    let epsilon = 1e-3_f64;
    let cases = CASES.into_iter().flat_map(|case| forms().into_iter().map(move |form| (case, form)));
    let cases = cases.flat_map(|(case, form)| [false, true].map(|relu| (case, form, relu)));
    for ((storage, layout), (samples, shape), relu) in cases {
        let what = format!("{storage:?}, {}, {samples} samples of {shape}, relu: {relu}", layout.name());
        let (channels, area) = (shape.channels(), shape.len() / shape.channels());
        let (rows, plane) = (samples * area, if layout == Layout::Nhwc { 1 } else { area });
        let channel = |i: usize| i / plane % channels;
        // A mean that is large compared with the deviation.
        let x = numbers(rows * channels, 9, 100.0, 1);
        let dy = numbers(rows * channels, 9, -3.0, 2);
        let before = numbers(rows * channels, 5, 0.0, 3);
        let (scale, shift) = (numbers(channels, 4, 1.0, 4), numbers(channels, 4, -2.0, 5));
        let (old_mean, old_variance) = (numbers(channels, 4, 90.0, 6), numbers(channels, 4, 3.0, 7));
        let of = |values: &[f32], i: usize| f64::from(values[i]);
        let all = |sum: &dyn Fn(usize, usize) -> f64| -> Vec<f64> {
            let mut sums = vec![0.0; channels];
            (0..rows * channels).for_each(|i| sums[channel(i)] += sum(i, channel(i)));
            sums.iter().map(|sum| sum / rows as f64).collect()
        };
        let mean = all(&|i, _| of(&x, i));
        let variance = all(&|i, c| (of(&x, i) - mean[c]).powi(2));
        let inverse: Vec<f64> = variance.iter().map(|variance| 1.0 / (variance + epsilon).sqrt()).collect();
        let normal = |i: usize| (of(&x, i) - mean[channel(i)]) * inverse[channel(i)];
        let each = |value: &dyn Fn(usize, usize) -> f64| -> Vec<f64> {
            (0..rows * channels).map(|i| value(i, channel(i))).collect()
        };

        let floats = |values: &[f32]| region(libraries, Storage::F32, values);
        let zeros = || floats(&vec![0.0; channels]);
        let map = |values: &[f32]| Map { region: region(libraries, storage, values), samples, shape, storage, layout };
        let (scales, shifts) = (floats(&scale), floats(&shift));
        let norm = BatchNorm::new(libraries, channels, epsilon as f32, [&scales, &shifts], relu).unwrap();
        let cut = |y: f64| if relu { y.max(0.0) } else { y };
        let saved = Statistics { mean: zeros(), deviation: zeros() };
        let running = Statistics { mean: floats(&old_mean), deviation: floats(&old_variance) };
        let (input, y, again, inferred) = (map(&x), map(&before), map(&before), map(&before));

        run(norm.inference(&input, &inferred, &running));
        let want = each(&|i, c| {
            let normal = (of(&x, i) - of(&old_mean, c)) / (of(&old_variance, c) + epsilon).sqrt();
            cut(normal * of(&scale, c) + of(&shift, c))
        });
        assert_near(&format!("{what}: inference"), &read(&inferred.region, storage), &want, rounding(storage));

        run(norm.training(&input, &y, &saved, &running));
        let want = each(&|i, c| cut(normal(i) * of(&scale, c) + of(&shift, c)));
        assert_near(&format!("{what}: y"), &read(&y.region, storage), &want, rounding(storage));
        assert_near(&format!("{what}: mean"), &read(&saved.mean, Storage::F32), &mean, 1e-5);
        assert_near(&format!("{what}: deviation"), &read(&saved.deviation, Storage::F32), &inverse, 1e-3);
        let moved: Vec<f64> = (0..channels).map(|c| 0.9 * of(&old_mean, c) + 0.1 * mean[c]).collect();
        assert_near(&format!("{what}: running mean"), &read(&running.mean, Storage::F32), &moved, 1e-5);
        let unbiased = rows as f64 / (rows as f64 - 1.0).max(1.0);
        let moved: Vec<f64> =
            (0..channels).map(|c| 0.9 * of(&old_variance, c) + 0.1 * unbiased * variance[c]).collect();
        assert_near(&format!("{what}: running variance"), &read(&running.deviation, Storage::F32), &moved, 1e-4);
        let moved = [&running.mean, &running.deviation].map(|region| read(region, Storage::F32));
        run(norm.again(&input, &again, &saved));
        assert!(read(&y.region, storage) == read(&again.region, storage), "{what}: a rerun");
        let in_place = map(&x);
        run(norm.training(&in_place, &in_place, &saved, &running));
        assert!(read(&y.region, storage) == read(&in_place.region, storage), "{what}: in place");

        // The part of the gradient after a ReLU that reaches the normalization.
        let got = read(&y.region, storage);
        let passed = |i: usize| if relu && got[i] <= 0.0 { 0.0 } else { of(&dy, i) };
        let (mean_dy, mean_product) = (all(&|i, _| passed(i)), all(&|i, _| passed(i) * normal(i)));
        let want = each(&|i, c| of(&scale, c) * inverse[c] * (passed(i) - mean_dy[c] - normal(i) * mean_product[c]));
        let size = inverse.iter().copied().fold(1.0, f64::max);
        let mut written = Vec::new();
        for write in WRITES {
            let (gradient, dx, to_scale, to_shift) = (map(&dy), map(&before), zeros(), zeros());
            run(norm.backward([&input, &gradient, &dx], write, &saved, [&to_scale, &to_shift]));
            let add = |(new, old): (&f64, &f32)| if write == Write::Add { new + f64::from(*old) } else { *new };
            let want: Vec<f64> = want.iter().zip(&before).map(add).collect();
            assert_near(&format!("{what}: dx, {write:?}"), &read(&dx.region, storage), &want, size * rounding(storage));
            let sums = |means: &[f64]| means.iter().map(|mean| mean * rows as f64).collect::<Vec<_>>();
            assert_near(&format!("{what}: scales"), &read(&to_scale, Storage::F32), &sums(&mean_product), 1e-2);
            assert_near(&format!("{what}: shifts"), &read(&to_shift, Storage::F32), &sums(&mean_dy), 1e-5);
            written.push(read(&dx.region, storage));
        }
        // In parts: the first is the smallest.
        let parts: Vec<Range<usize>> = [0..1, 1..samples].into_iter().filter(|part| !part.is_empty()).collect();
        let part = |map: &Map, own: &Range<usize>| {
            let each = shape.len() * storage.size();
            let region = map.region.part(own.start * each..own.end * each).unwrap();
            Map { region, samples: own.len(), ..map.clone() }
        };
        let own = Statistics { mean: zeros(), deviation: zeros() };
        let running = Statistics { mean: floats(&old_mean), deviation: floats(&old_variance) };
        for samples in &parts {
            run(norm.statistics_of_part(&part(&input, samples), &own, samples.start));
        }
        assert_near(&format!("{what}: mean of parts"), &read(&own.mean, Storage::F32), &mean, 1e-5);
        assert_near(&format!("{what}: deviation of parts"), &read(&own.deviation, Storage::F32), &inverse, 1e-3);
        run(norm.update_running(&input, samples, &own, &running));
        for (region, moved) in [&running.mean, &running.deviation].into_iter().zip(&moved) {
            let moved: Vec<f64> = moved.iter().map(|value| f64::from(*value)).collect();
            assert_near(&format!("{what}: running by parts"), &read(region, Storage::F32), &moved, 1e-5);
        }
        for (write, whole) in WRITES.into_iter().zip(&written) {
            let (gradient, dx, to_scale, to_shift) = (map(&dy), map(&before), zeros(), zeros());
            for samples in &parts {
                let maps = [&part(&input, samples), &part(&gradient, samples)];
                let add = if samples.start > 0 { Write::Add } else { Write::Overwrite };
                run(norm.backward_parameters(maps, &saved, [&to_scale, &to_shift], add));
            }
            for own in &parts {
                let maps = [&input, &gradient, &dx].map(|map| part(map, own));
                run(norm.backward_data(maps.each_ref(), write, &saved, [&to_scale, &to_shift], samples));
            }
            let sums = |means: &[f64]| means.iter().map(|mean| mean * rows as f64).collect::<Vec<_>>();
            assert_near(
                &format!("{what}: scales of parts"),
                &read(&to_scale, Storage::F32),
                &sums(&mean_product),
                1e-2,
            );
            assert_near(&format!("{what}: shifts of parts"), &read(&to_shift, Storage::F32), &sums(&mean_dy), 1e-5);
            let whole: Vec<f64> = whole.iter().map(|value| f64::from(*value)).collect();
            // Both are rounded.
            let (of_parts, near) = (read(&dx.region, storage), 2.0 * size * rounding(storage));
            assert_near(&format!("{what}: dx of parts, {write:?}"), &of_parts, &whole, near);
        }

        let in_place = map(&dy);
        run(norm.backward([&input, &in_place, &in_place], Write::Overwrite, &saved, [&zeros(), &zeros()]));
        assert!(written[0] == read(&in_place.region, storage), "{what}: dx in place");
    }
}

fn kernels_agree(options: &Options) {
    let backend = CudaBackend::open(options).unwrap();
    normalizations_agree(&Libraries::open(backend.handle(), options.cublas.as_deref()).unwrap());
}

#[test]
fn normalization_matches_plain_loops() {
    let mocks = Mocks::new();
    kernels_agree(&mocks.options());
    mocks.assert_nothing_left("layers");
}

#[test]
#[ignore = "needs a CUDA device"]
fn normalization_matches_plain_loops_on_a_gpu() {
    kernels_agree(&Options::default());
}
