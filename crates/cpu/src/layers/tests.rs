//! Every layer against its definition in f64, and every gradient against differences of that definition.

use tightfit_core::Axis;
use tightfit_core::network::{Activation, AdamW, Pooling, PoolingMethod, Sampling, Sgd};

use super::batch_norm::{PerChannel, PerChannelMut};
use super::fully_connected::Sizes;
use super::lrn::Normalization;
use super::*;
use crate::random;

/// Numbers from -1 to 1, no two of a hundred equal.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    (0..count as u64).map(|i| random::uniform(seed, i)).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

/// The gradient of the sum of dy · y by central differences.
fn differences(definition: impl Fn(&[f64]) -> Vec<f64>, x: &[f32], dy: &[f32]) -> Vec<f64> {
    let value = |x: &[f64]| definition(x).iter().zip(dy).map(|(y, dy)| y * f64::from(*dy)).sum::<f64>();
    let step = 1e-5;
    (0..x.len())
        .map(|i| {
            let mut moved = wide(x);
            moved[i] += step;
            let above = value(&moved);
            moved[i] -= 2.0 * step;
            (above - value(&moved)) / (2.0 * step)
        })
        .collect()
}

fn assert_near(what: &str, values: &[f32], truth: &[f64]) {
    assert_eq!(values.len(), truth.len(), "{what}");
    for (i, (value, truth)) in values.iter().zip(truth).enumerate() {
        assert!((f64::from(*value) - truth).abs() < 2e-5 * truth.abs().max(1.0), "{what}[{i}]: {value}, not {truth}");
    }
}

/// Checks a layer at one and three threads: forward, backward written, and backward added to something.
fn check(
    what: &str,
    x: &[f32],
    definition: impl Fn(&[f64]) -> Vec<f64>,
    forward: impl Fn(&Team, &[f32], &mut [f32]),
    backward: impl Fn(&Team, &[f32], &[f32], &[f32], &mut [f32], Store),
) {
    let truth = definition(&wide(x));
    let dy = numbers(77, truth.len());
    let gradient = differences(&definition, x, &dy);
    let mut bits = Vec::new();
    for threads in [1, 3] {
        let team = Team::new(threads);
        let mut y = vec![f32::NAN; truth.len()];
        forward(&team, x, &mut y);
        assert_near(&format!("{what}: y"), &y, &truth);
        let mut dx = vec![f32::NAN; x.len()];
        backward(&team, x, &y, &dy, &mut dx, Store::Write);
        assert_near(&format!("{what}: dx"), &dx, &gradient);
        let mut sum = vec![2.0; x.len()];
        backward(&team, x, &y, &dy, &mut sum, Store::Add);
        let more: Vec<f64> = gradient.iter().map(|dx| dx + 2.0).collect();
        assert_near(&format!("{what}: 2 + dx"), &sum, &more);
        bits.push((y, dx));
    }
    assert_eq!(bits[0], bits[1], "{what}: another number of threads, other bits");
}

#[test]
fn activation() {
    let x = numbers(1, 70);
    let definition = |x: &[f64]| x.iter().map(|x| x.max(0.0)).collect();
    check(
        "relu",
        &x,
        definition,
        |team, x, y| activation::forward(team, Flow::Between(x, y, Store::Write)),
        |team, _, y, dy, dx, store| activation::backward(team, y, Flow::Between(dy, dx, store)),
    );
    let team = Team::new(2);
    let (mut y, mut dx) = (vec![-1.0, 2.0, f32::NAN], vec![5.0, 6.0, 7.0]);
    activation::forward(&team, Flow::InPlace(&mut y));
    activation::backward(&team, &y, Flow::InPlace(&mut dx));
    assert_eq!((&y[..2], &dx[..2]), (&[0.0, 2.0][..], &[0.0, 6.0][..]));
    assert!(y[2].is_nan(), "what is no number must not vanish");
}

#[test]
fn activations_by_their_definitions() {
    // From -5 to 5, and none where a slope changes.
    let x: Vec<f32> = numbers(22, 200).iter().map(|x| 5.0 * x).collect();
    let with_numbers = [
        Activation::HardSigmoid { alpha: 0.2, beta: 0.5 },
        Activation::Clip { low: -1.0, high: 3.0 },
        Activation::LeakyRelu { slope: 0.1 },
        Activation::Elu { alpha: 1.5 },
    ];
    for by in with_numbers.into_iter().chain(Activation::PLAIN) {
        check(
            by.name(),
            &x,
            |x| x.iter().map(|&x| by.value(x)).collect(),
            |team, x, y| activation::forward_by(team, by, Flow::Between(x, y, Store::Write)),
            |team, x, y, dy, dx, store| {
                let known = if by.reads_output() { y } else { x };
                activation::backward_by(team, by, known, Flow::Between(dy, dx, store));
            },
        );
        let mut far = [-200.0, 200.0, f32::NAN];
        activation::forward_by(&Team::new(1), by, Flow::InPlace(&mut far));
        assert!(far[..2].iter().all(|y| y.is_finite()) && far[2].is_nan(), "{}: {far:?}", by.name());
    }
}

#[test]
fn products_of_maps() {
    // Two samples of three channels; the factor has a number for each channel, or for each element.
    for positions in [4, 1] {
        let (x, factor) = (numbers(23, 24), numbers(24, 24 / positions));
        let definition = |x: &[f64], factor: &[f64]| -> Vec<f64> {
            x.iter().enumerate().map(|(i, x)| x * factor[i / positions]).collect()
        };
        check(
            "multiply by x",
            &x,
            |x| definition(x, &wide(&factor)),
            |team, x, y| multiply::forward(team, positions, x, &factor, y),
            |team, _, _, dy, dx, store| multiply::backward_map(team, positions, dy, &factor, dx, store),
        );
        check(
            "multiply by the factor",
            &factor,
            |factor| definition(&wide(&x), factor),
            |team, factor, y| multiply::forward(team, positions, &x, factor, y),
            |team, _, _, dy, gradient, store| multiply::backward_factor(team, positions, dy, &x, gradient, store),
        );
    }
}

#[test]
fn factors_of_channels() {
    let (x, scales) = (numbers(25, 2 * 3 * 4), numbers(26, 3));
    let definition =
        |x: &[f64], scales: &[f64]| -> Vec<f64> { x.iter().enumerate().map(|(i, x)| x * scales[i / 4 % 3]).collect() };
    check(
        "scale by x",
        &x,
        |x| definition(x, &wide(&scales)),
        |team, x, y| scale::apply(team, &scales, 4, x, y, Store::Write),
        |team, _, _, dy, dx, store| scale::apply(team, &scales, 4, dy, dx, store),
    );
    check(
        "scale by its factors",
        &scales,
        |scales| definition(&wide(&x), scales),
        |team, scales, y| scale::apply(team, scales, 4, &x, y, Store::Write),
        |team, _, _, dy, gradient, store| scale::backward_parameters(team, 4, &x, dy, gradient, store),
    );
}

#[test]
fn layer_normalization() {
    let (length, rows) = (5, 70);
    let (x, scales, shifts) = (numbers(27, length * rows), numbers(28, length), numbers(29, length));
    let definition = |x: &[f64], scales: &[f64], shifts: &[f64]| -> Vec<f64> {
        let row = |x: &[f64]| -> Vec<f64> {
            let mean = x.iter().sum::<f64>() / length as f64;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / length as f64;
            let h = x.iter().map(|x| (x - mean) / (variance + f64::from(0.01f32)).sqrt());
            h.zip(scales.iter().zip(shifts)).map(|(h, (scale, shift))| scale * h + shift).collect()
        };
        x.chunks(length).flat_map(row).collect()
    };
    check(
        "layer-norm",
        &x,
        |x| definition(x, &wide(&scales), &wide(&shifts)),
        |team, x, y| layer_norm::forward(team, 0.01, (&scales, &shifts), x, y),
        |team, x, _, dy, dx, store| layer_norm::backward_data(team, 0.01, &scales, (x, dy), dx, store),
    );
    let both = [&scales[..], &shifts[..]].concat();
    check(
        "layer-norm by scales and shifts",
        &both,
        |both| definition(&wide(&x), &both[..length], &both[length..]),
        |team, both, y| layer_norm::forward(team, 0.01, (&both[..length], &both[length..]), &x, y),
        |team, _, _, dy, gradient, store| {
            layer_norm::backward_parameters(team, 0.01, (&x, dy), gradient.split_at_mut(length), store);
        },
    );
}

#[test]
fn transpositions() {
    let orders: [(&[usize], &[usize]); 5] = [
        (&[2, 3, 4], &[1, 2, 0]),
        (&[2, 3, 4], &[2, 0, 1]),
        (&[2, 3, 4], &[0, 1, 2]),
        (&[2, 3, 1, 5], &[3, 1, 0, 2]),
        (&[6], &[0]),
    ];
    for (extents, order) in orders {
        let length: usize = extents.iter().product();
        // The place of each element of the output in the input, by counting through the output.
        let place = |mut at: usize| -> usize {
            let mut places = vec![0; extents.len()];
            for &axis in order.iter().rev() {
                places[axis] = at % extents[axis];
                at /= extents[axis];
            }
            places.iter().zip(extents).fold(0, |at, (place, extent)| at * extent + place)
        };
        check(
            &format!("transpose {order:?}"),
            &numbers(30, 2 * length),
            |x| (0..x.len()).map(|i| x[i / length * length + place(i % length)]).collect(),
            |team, x, y| transpose::forward(team, extents, order, x, y),
            |team, _, _, dy, dx, store| transpose::backward(team, extents, order, dy, dx, store),
        );
    }
}

#[test]
fn resized_planes() {
    let pairs: [(&[usize], &[usize]); 5] =
        [(&[3, 4], &[6, 8]), (&[5, 3], &[2, 7]), (&[2, 3, 2], &[4, 3, 1]), (&[4, 4], &[4, 4]), (&[1, 2], &[3, 5])];
    for (sampling, (input, output)) in Sampling::ALL.into_iter().flat_map(|s| pairs.map(|pair| (s, pair))) {
        let axes: Vec<_> = input.iter().zip(output).map(|(&from, &to)| sampling.places(from, to)).collect();
        let (inputs, outputs): (usize, usize) = (input.iter().product(), output.iter().product());
        // One output, by counting through all inputs: the product over the axes of what each place weighs.
        let value = |x: &[f64], at: usize| -> f64 {
            let weigh = |from: usize| {
                let (mut from, mut at, mut weight) = (from, at, 1.0);
                for ((places, &extent), &to) in axes.iter().zip(input).zip(output).rev() {
                    let (first, second, share) = places[at % to];
                    let of = |place: usize, share: f64| if from % extent == place { share } else { 0.0 };
                    weight *= of(first, 1.0 - f64::from(share)) + of(second, f64::from(share));
                    (from, at) = (from / extent, at / to);
                }
                weight
            };
            (0..inputs).map(|from| weigh(from) * x[from]).sum()
        };
        check(
            &format!("{} {input:?} to {output:?}", sampling.name()),
            &numbers(32, 3 * inputs),
            |x| (0..3 * outputs).map(|i| value(&x[i / outputs * inputs..][..inputs], i % outputs)).collect(),
            |team, x, y| super::resize::forward(team, sampling, (input, output), x, y),
            |team, _, _, dy, dx, store| super::resize::backward(team, sampling, (input, output), dy, dx, store),
        );
    }
}

#[test]
fn samples_dropped_as_a_whole() {
    let (key, rate, length) = (random::key(&[4, 5, 6]), 0.2, 3);
    let team = Team::new(2);
    let apply = |x: &[f32], first: usize| {
        let mut y = x.to_vec();
        super::drop_samples::apply(&team, rate, key, first, length, Flow::InPlace(&mut y));
        y
    };
    let whole = apply(&vec![1.0; 30_000], 0);
    let kept = whole.chunks(length).filter(|sample| sample[0] != 0.0).count();
    assert!((kept as f64 / 10_000.0 - 0.8).abs() < 0.02, "{kept}");
    assert!(whole.chunks(length).all(|sample| *sample == [0.0; 3] || *sample == [1.25; 3]));
    assert_eq!(apply(&[1.0; 300], 50), whole[150..450], "a slice drops what the whole drops");
    let x = numbers(31, 60);
    check(
        "drop-samples",
        &x,
        |x| x.iter().zip(&whole).map(|(x, factor)| x * f64::from(*factor)).collect(),
        |team, x, y| super::drop_samples::apply(team, rate, key, 0, length, Flow::Between(x, y, Store::Write)),
        |team, _, _, dy, dx, store| {
            super::drop_samples::apply(team, rate, key, 0, length, Flow::Between(dy, dx, store));
        },
    );
}

/// The windows of a plane, by looking at every input: the outputs' inputs in row order.
fn windows(pooling: &Pooling) -> Vec<Vec<usize>> {
    let inputs = pooling.axes.map(|axis| axis.input);
    let covers = |axis: &Axis, output: usize, input: usize| {
        let begin = output * axis.stride;
        (begin..begin + axis.reach()).contains(&(input + axis.pad_before))
    };
    let [depth, rows, columns] = pooling.outputs();
    let mut all = Vec::new();
    for output in 0..depth * rows * columns {
        let at = [output / (rows * columns), output / columns % rows, output % columns];
        let place = |i: usize| [i / (inputs[1] * inputs[2]), i / inputs[2] % inputs[1], i % inputs[2]];
        let inside = |i: &usize| (0..3).all(|axis| covers(&pooling.axes[axis], at[axis], place(*i)[axis]));
        all.push((0..inputs.iter().product()).filter(inside).collect());
    }
    all
}

#[test]
fn pooling() {
    let axis =
        |input, filter, pad, stride| Axis { input, filter, pad_before: pad, pad_after: pad, stride, dilation: 1 };
    let shapes = [
        ([Axis::UNIT, axis(6, 3, 0, 2), axis(7, 3, 1, 2)], true),
        ([Axis::UNIT, axis(8, 2, 0, 2), axis(5, 3, 1, 1)], false),
        ([axis(4, 2, 0, 2), axis(5, 3, 1, 2), axis(4, 4, 0, 4)], true),
    ];
    for (axes, ceil) in shapes {
        for method in [PoolingMethod::Maximum, PoolingMethod::Average] {
            let pooling = Pooling { method, axes, ceil };
            let plane: usize = axes.iter().map(|axis| axis.input).product();
            let windows = windows(&pooling);
            let definition = |x: &[f64]| -> Vec<f64> {
                let reduce = |plane: &[f64], window: &Vec<usize>| {
                    let values = window.iter().map(|&i| plane[i]);
                    match method {
                        PoolingMethod::Maximum => values.fold(f64::NEG_INFINITY, f64::max),
                        PoolingMethod::Average => values.sum::<f64>() / window.len() as f64,
                    }
                };
                x.chunks(plane).flat_map(|plane| windows.iter().map(move |window| reduce(plane, window))).collect()
            };
            check(
                &format!("{pooling:?}"),
                &numbers(2, 4 * plane),
                definition,
                |team, x, y| super::pooling::forward(team, &pooling, x, y),
                |team, x, y, dy, dx, store| super::pooling::backward(team, &pooling, (Some(x), Some(y)), dy, dx, store),
            );
        }
    }
}

#[test]
fn the_first_of_equal_elements_is_the_largest() {
    let axis = Axis { input: 2, filter: 2, pad_before: 0, pad_after: 0, stride: 2, dilation: 1 };
    let pooling = Pooling { method: PoolingMethod::Maximum, axes: [Axis::UNIT, axis, axis], ceil: false };
    let (x, mut dx) = ([1.0, 3.0, 3.0, 3.0], [f32::NAN; 4]);
    super::pooling::backward(&Team::new(1), &pooling, (Some(&x), Some(&[3.0])), &[5.0], &mut dx, Store::Write);
    assert_eq!(dx, [0.0, 5.0, 0.0, 0.0]);
}

#[test]
fn normalization_across_channels() {
    for (size, channels, positions) in [(5, 8, 6), (3, 2, 300), (4, 7, 3), (1, 3, 2)] {
        let by = Normalization { size, alpha: 0.7, beta: 0.75, k: 1.5 };
        let definition = |x: &[f64]| -> Vec<f64> {
            let value = |i: usize| {
                let (sample, c, p) = (i / (channels * positions), (i / positions % channels) as i64, i % positions);
                let behind = (size as i64 - 1) / 2;
                let window = (c - behind).max(0)..(c - behind + size as i64).min(channels as i64);
                let sum: f64 = window.map(|j| x[(sample * channels + j as usize) * positions + p].powi(2)).sum();
                x[i] / (f64::from(1.5f32) + f64::from(0.7f32) / size as f64 * sum).powf(0.75)
            };
            (0..x.len()).map(value).collect()
        };
        let x = numbers(3, if positions > 100 { channels * positions } else { 2 * channels * positions });
        check(
            &format!("lrn {size} of {channels}"),
            &x,
            definition,
            |team, x, y| lrn::forward(team, by, channels, positions, x, y),
            |team, x, y, dy, dx, store| lrn::backward(team, by, channels, positions, (x, y), dy, dx, store),
        );
    }
}

/// A batch normalization in f64.
fn normalized(x: &[f64], scales: &[f64], shifts: &[f64], positions: usize) -> Vec<f64> {
    let channels = scales.len();
    let channel = |i: usize| i / positions % channels;
    let count = (x.len() / channels) as f64;
    let mut y = x.to_vec();
    for c in 0..channels {
        let mine: Vec<usize> = (0..x.len()).filter(|&i| channel(i) == c).collect();
        let mean = mine.iter().map(|&i| x[i]).sum::<f64>() / count;
        let variance = mine.iter().map(|&i| (x[i] - mean).powi(2)).sum::<f64>() / count;
        mine.iter().for_each(|&i| y[i] = scales[c] * (x[i] - mean) / (variance + 0.01).sqrt() + shifts[c]);
    }
    y
}

#[test]
fn batch_normalization() {
    let (samples, channels, positions) = (4, 3, 5);
    let x = numbers(4, samples * channels * positions);
    let (scales, shifts) = (numbers(5, channels), numbers(6, channels));
    let save = |team: &Team, x: &[f32]| {
        let (mut means, mut inverses) = (vec![0.0; channels], vec![0.0; channels]);
        let saved = PerChannelMut(&mut means, &mut inverses);
        batch_norm::statistics(team, 0.01, positions, x, saved, None);
        (means, inverses)
    };
    let gradients = |team: &Team, x: &[f32], dy: &[f32]| {
        let (means, inverses) = save(team, x);
        let (mut dscale, mut dshift) = (vec![0.0; channels], vec![0.0; channels]);
        let out = PerChannelMut(&mut dscale, &mut dshift);
        batch_norm::backward_parameters(team, PerChannel(&means, &inverses), positions, x, dy, out);
        (dscale, dshift)
    };
    check(
        "batch-norm",
        &x,
        |x| normalized(x, &wide(&scales), &wide(&shifts), positions),
        |team, x, y| {
            let (means, inverses) = save(team, x);
            batch_norm::forward(team, PerChannel(&means, &inverses), (&scales, &shifts), positions, x, y);
        },
        |team, x, _, dy, dx, store| {
            let ((means, inverses), (dscale, dshift)) = (save(team, x), gradients(team, x, dy));
            let (saved, gradients) = (PerChannel(&means, &inverses), PerChannel(&dscale, &dshift));
            batch_norm::backward_data(team, saved, &scales, gradients, positions, (x, dy), dx, store);
        },
    );
    let dy = numbers(8, x.len());
    let (dscale, dshift) = gradients(&Team::new(2), &x, &dy);
    let by_scales = differences(|scales| normalized(&wide(&x), scales, &wide(&shifts), positions), &scales, &dy);
    assert_near("dscale", &dscale, &by_scales);
    let by_shifts = differences(|shifts| normalized(&wide(&x), &wide(&scales), shifts, positions), &shifts, &dy);
    assert_near("dshift", &dshift, &by_shifts);
}

#[test]
fn running_statistics_move_a_tenth_of_the_way() {
    let x = [1.0, 2.0, 3.0, 6.0];
    let (mut mean, mut inverse) = ([f32::NAN], [f32::NAN]);
    let (mut running_mean, mut running_variance) = ([10.0], [1.0]);
    let running = PerChannelMut(&mut running_mean, &mut running_variance);
    batch_norm::statistics(&Team::new(1), 0.0, 2, &x, PerChannelMut(&mut mean, &mut inverse), Some(running));
    assert_eq!((mean, inverse), ([3.0], [(1.0f64 / 3.5f64.sqrt()) as f32]));
    // The unbiased variance of the four is 14 / 3.
    assert!((running_mean[0] - 9.3).abs() < 1e-6 && (running_variance[0] - (0.9 + 1.4 / 3.0)).abs() < 1e-6);
}

#[test]
fn fully_connected() {
    let sizes = Sizes { samples: 3, inputs: 7, outputs: 5 };
    let (x, w, numbers_) = (numbers(9, 21), numbers(10, 35), numbers(11, 5));
    let definition = |x: &[f64], w: &[f64]| -> Vec<f64> {
        let value = |i: usize| {
            let (n, o) = (i / 5, i % 5);
            f64::from(numbers_[o]) + (0..7).map(|i| x[n * 7 + i] * w[o * 7 + i]).sum::<f64>()
        };
        (0..15).map(value).collect()
    };
    check(
        "fully-connected by x",
        &x,
        |x| definition(x, &wide(&w)),
        |team, x, y| super::fully_connected::forward(team, sizes, x, &w, Some(&numbers_), y),
        |team, _, _, dy, dx, store| super::fully_connected::backward_data(team, sizes, dy, &w, dx, store),
    );
    check(
        "fully-connected by w",
        &w,
        |w| definition(&wide(&x), w),
        |team, w, y| super::fully_connected::forward(team, sizes, &x, w, Some(&numbers_), y),
        |team, _, _, dy, dw, store| super::fully_connected::backward_filter(team, sizes, &x, dy, dw, store),
    );
}

#[test]
fn biases_of_channels() {
    let x = numbers(12, 2 * 3 * 4);
    check(
        "bias",
        &numbers(13, 3),
        |bias| wide(&x).iter().enumerate().map(|(i, x)| x + bias[i / 4 % 3]).collect(),
        |team, bias, y| {
            y.copy_from_slice(&x);
            bias::forward(team, bias, 4, y);
        },
        |team, _, _, dy, gradient, store| bias::backward(team, dy, 4, gradient, store),
    );
}

#[test]
fn sums_and_concatenations() {
    let (first, other) = (numbers(14, 12), numbers(15, 12));
    check(
        "add",
        &first,
        |x| x.iter().zip(&other).map(|(x, other)| x + 2.0 * f64::from(*other)).collect(),
        |team, x, y| add::forward(team, Some(x), &[&other, &other], y),
        |team, _, _, dy, dx, store| add::backward(team, Flow::Between(dy, dx, store)),
    );
    let mut in_place = first.clone();
    add::forward(&Team::new(1), None, &[&other], &mut in_place);
    assert_eq!(in_place[3], first[3] + other[3]);

    // Two samples of two and four elements beside each other.
    let (left, right) = (numbers(16, 4), numbers(17, 8));
    check(
        "concat",
        &right,
        |right| {
            let left = wide(&left);
            (0..2).flat_map(|n| [&left[2 * n..2 * n + 2], &right[4 * n..4 * n + 4]].concat()).collect()
        },
        |team, right, y| {
            concat::forward(team, &left, y, 0..2, 6);
            concat::forward(team, right, y, 2..6, 6);
        },
        |team, _, _, dy, dx, store| concat::backward(team, dy, dx, 2..6, 6, store),
    );
}

#[test]
fn dropout() {
    let (key, rate) = (random::key(&[1, 2, 3]), 0.25);
    let x = numbers(18, 100_000);
    let mut mask = vec![9; x.len()];
    super::dropout::draw(&Team::new(2), rate, key, 0, &mut mask);
    let kept = mask.iter().filter(|&&kept| kept == 1).count();
    assert!((kept as f64 / x.len() as f64 - 0.75).abs() < 0.01, "{kept}");
    let mut slice = vec![9; 1000];
    super::dropout::draw(&Team::new(1), rate, key, 500, &mut slice);
    assert_eq!(slice, mask[500..1500], "a slice drops what the whole drops");
    let short = &x[..60];
    check(
        "dropout",
        short,
        |x| x.iter().zip(&mask).map(|(x, &kept)| if kept == 1 { x / 0.75 } else { 0.0 }).collect(),
        |team, x, y| super::dropout::apply(team, rate, &mask, Flow::Between(x, y, Store::Write)),
        |team, _, _, dy, dx, store| super::dropout::apply(team, rate, &mask, Flow::Between(dy, dx, store)),
    );
}

#[test]
fn softmax_and_loss() {
    let (x, labels, classes) = (numbers(19, 12), [2u32, 0, 3], 4);
    let probabilities = |x: &[f64]| -> Vec<f64> {
        x.chunks(classes)
            .flat_map(|x| {
                let sum: f64 = x.iter().map(|x| x.exp()).sum();
                x.iter().map(move |x| x.exp() / sum).collect::<Vec<_>>()
            })
            .collect()
    };
    let team = Team::new(2);
    let mut y = vec![f32::NAN; 12];
    softmax_loss::forward(&team, classes, Flow::Between(&x, &mut y, Store::Write));
    assert_near("probabilities", &y, &probabilities(&wide(&x)));
    let loss = |x: &[f64]| {
        let p = probabilities(x);
        vec![labels.iter().enumerate().map(|(n, &label)| -p[n * classes + label as usize].ln() / 3.0).sum::<f64>()]
    };
    let mut dx = vec![f32::NAN; 12];
    softmax_loss::backward(&team, classes, &y, &labels, 1.0 / 3.0, &mut dx, Store::Write);
    assert_near("dx", &dx, &differences(loss, &x, &[1.0]));
    assert!((softmax_loss::loss(classes, &y, &labels).0 - loss(&wide(&x))[0]).abs() < 1e-6);

    let p = [0.1, 0.6, 0.3, 0.5, 0.5, 0.0, f32::NAN, 0.5, 0.5];
    let (_, right) = softmax_loss::loss(3, &p[..6], &[1, 1]);
    assert_eq!(right, 1, "of equal probabilities the first class is the answer");
    assert!(softmax_loss::loss(3, &p, &[1, 0, 0]).0.is_nan());
    assert!(softmax_loss::loss(3, &p[..3], &[7]).0.is_finite());
}

#[test]
fn descent() {
    let by = Sgd { learning_rate: 0.5, momentum: 0.25, weight_decay: 0.125 };
    let (mut w, mut v) = ([8.0], [4.0]);
    solver::update(&Team::new(1), by, 2.0, &mut w, &[6.0], Some(&mut v));
    // g = 6 / 2 + 8 / 8 = 4, v = 4 / 4 + 4 / 2 = 3, w = 8 - 3
    assert_eq!((w, v), ([5.0], [3.0]));
    let mut w = [8.0];
    solver::update(&Team::new(1), by, 2.0, &mut w, &[6.0], None);
    assert_eq!(w, [6.0], "v = 4 / 2");
}

/// Against three steps of `torch.optim.AdamW` (PyTorch 2.15) with a learning rate of 0.1 and a weight decay of 0.25.
#[test]
fn adamw_takes_the_steps_of_pytorch() {
    let by = AdamW { learning_rate: 0.1, weight_decay: 0.25, ..AdamW::default() };
    let (mut w, mut m, mut v) = ([1.0, -2.0, 0.5], [0.0; 3], [0.0; 3]);
    let gradients = [[0.5, -1.0, 1e-4], [0.25, 3.0, -2e-4], [-1.5, 0.0, 1e-4]];
    for (step, gradient) in (0..).zip(gradients) {
        let scaled = gradient.map(|gradient: f32| 4.0 * gradient);
        solver::adamw(&Team::new(1), by, step, 4.0, (&mut w, &scaled), (&mut m, &mut v));
    }
    let near = |got: [f32; 3], wanted: [f32; 3], sizes: [f32; 3]| {
        let off = got.iter().zip(wanted).zip(sizes).map(|((got, wanted), size)| (got - wanted).abs() / size);
        assert!(off.fold(0.0, f32::max) < 1e-6, "{got:?}, not {wanted:?}");
    };
    let (weights, second) =
        ([0.775_631_8, -1.845_040_8, 0.403_808_62], [0.002_561_937_8, 0.009_989_002, 5.994_001e-11]);
    near(w, weights, weights.map(f32::abs));
    // The first moment is compared with the largest gradient, because gradients cancel.
    near(m, [-0.087, 0.189, 1.000_000_2e-7], [1.5, 3.0, 2e-4]);
    // 1 - 0.999 has 17 bits left in 32, which PyTorch computes in 64; the correction of the moment has the same share.
    near(v, second, second.map(|size| 20.0 * size));
}

#[test]
fn large_products_do_not_depend_on_the_threads() {
    let sizes = Sizes { samples: 96, inputs: 700, outputs: 300 };
    let (x, w) = (numbers(20, 96 * 700), numbers(21, 300 * 700));
    let products = [1, 2, 5].map(|threads| {
        let team = Team::new(threads);
        let (mut y, mut dx, mut dw) = (vec![0.0; 96 * 300], vec![0.0; x.len()], vec![0.0; w.len()]);
        super::fully_connected::forward(&team, sizes, &x, &w, None, &mut y);
        super::fully_connected::backward_data(&team, sizes, &y, &w, &mut dx, Store::Write);
        super::fully_connected::backward_filter(&team, sizes, &x, &y, &mut dw, Store::Write);
        (y, dx, dw)
    });
    assert!(products[0] == products[1] && products[0] == products[2]);
}
