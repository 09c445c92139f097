//! Every layer against its definition in f64, and every gradient against differences of that definition.

mod descent;
mod normalization;
mod planes;

use tightfit_conv::Axis;
use tightfit_network::{Activation, AdamW, Pooling, PoolingMethod, Sampling, Sgd};

use super::batch_norm::{Affine, PerChannel, PerChannelMut};
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

    // Two samples of two and four elements, next to each other.
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
