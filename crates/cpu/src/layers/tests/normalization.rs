//! Normalization of samples, of channels and of neighbors across channels.

use std::ops::Range;

use super::*;

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
    check_batch_normalization(false);
}

#[test]
fn batch_normalization_with_a_relu() {
    check_batch_normalization(true);
}

/// How channels of these means and inverse deviations are normalized.
fn affine<'a>(saved: &'a (Vec<f32>, Vec<f32>), scales: &'a [f32], shifts: &'a [f32], relu: bool) -> Affine<'a> {
    Affine { means: &saved.0, inverses: &saved.1, scales, shifts, relu }
}

/// Against its definition in 64 bits, with a ReLU behind it or without.
fn check_batch_normalization(relu: bool) {
    let (samples, channels, positions) = (4, 3, 5);
    let x = numbers(4, samples * channels * positions);
    let (scales, shifts) = (numbers(5, channels), numbers(6, channels));
    let save = |team: &Team, x: &[f32]| {
        let (mut means, mut inverses) = (vec![0.0; channels], vec![0.0; channels]);
        let saved = PerChannelMut(&mut means, &mut inverses);
        batch_norm::statistics(team, 0.01, positions, x, saved, None);
        (means, inverses)
    };
    let normalized = |x: &[f64], scales: &[f64], shifts: &[f64]| {
        let y = normalized(x, scales, shifts, positions);
        if relu { y.iter().map(|y| y.max(0.0)).collect() } else { y }
    };
    let gradients = |team: &Team, x: &[f32], dy: &[f32]| {
        let saved = save(team, x);
        let (mut dscale, mut dshift) = (vec![0.0; channels], vec![0.0; channels]);
        let out = PerChannelMut(&mut dscale, &mut dshift);
        batch_norm::backward_parameters(
            team,
            affine(&saved, &scales, &shifts, relu),
            positions,
            (x, dy),
            out,
            Store::Write,
        );
        (dscale, dshift)
    };
    check(
        "batch-norm",
        &x,
        |x| normalized(x, &wide(&scales), &wide(&shifts)),
        |team, x, y| {
            batch_norm::forward(team, affine(&save(team, x), &scales, &shifts, relu), positions, x, y);
        },
        |team, x, _, dy, dx, store| {
            let (saved, (dscale, dshift)) = (save(team, x), gradients(team, x, dy));
            let (by, gradients) = (affine(&saved, &scales, &shifts, relu), PerChannel(&dscale, &dshift));
            let sizes = (positions, x.len() / channels);
            batch_norm::backward_data(team, by, gradients, sizes, (x, dy), dx, store);
        },
    );
    let dy = numbers(8, x.len());
    let (dscale, dshift) = gradients(&Team::new(2), &x, &dy);
    let by_scales = differences(|scales| normalized(&wide(&x), scales, &wide(&shifts)), &scales, &dy);
    assert_near("dscale", &dscale, &by_scales);
    let by_shifts = differences(|shifts| normalized(&wide(&x), &wide(&scales), shifts), &shifts, &dy);
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

/// Means, inverse deviations, and the running means and variances afterwards, of samples that come in these parts.
fn statistics_of(x: &[f32], parts: &[Range<usize>], channels: usize, positions: usize, epsilon: f32) -> [Vec<f32>; 4] {
    let team = Team::new(2);
    let (mut means, mut inverses) = (vec![f32::NAN; channels], vec![f32::NAN; channels]);
    let (mut running_means, mut running_variances) = (vec![10.0; channels], vec![1.0; channels]);
    for part in parts {
        let own = &x[part.start * channels * positions..part.end * channels * positions];
        let saved = PerChannelMut(&mut means, &mut inverses);
        let running = PerChannelMut(&mut running_means, &mut running_variances);
        match part.start {
            0 if parts.len() == 1 => batch_norm::statistics(&team, epsilon, positions, own, saved, Some(running)),
            0 => batch_norm::statistics(&team, epsilon, positions, own, saved, None),
            before => batch_norm::add_statistics(&team, epsilon, positions, own, saved, before * positions),
        }
    }
    if let [_, .., last] = parts {
        let running = PerChannelMut(&mut running_means, &mut running_variances);
        batch_norm::move_running(epsilon, last.end * positions, PerChannel(&means, &inverses), running);
    }
    [means, inverses, running_means, running_variances]
}

#[test]
fn parts_of_a_mini_batch_have_its_statistics() {
    let (channels, positions) = (3, 5);
    let whole = std::slice::from_ref(&(0..8));
    // A mean that is large compared with the deviation, and in one channel differs from sample to sample.
    let mut x: Vec<f32> = numbers(17, 8 * channels * positions).iter().map(|x| x + 100.0).collect();
    for (sample, x) in x.chunks_mut(channels * positions).enumerate() {
        x[..positions].iter_mut().for_each(|x| *x -= sample as f32);
    }
    let [given, truth] = [&[0..3, 3..4, 4..8], whole].map(|parts| statistics_of(&x, parts, channels, positions, 1e-3));
    for (given, truth) in given.iter().flatten().zip(truth.iter().flatten()) {
        assert!((given - truth).abs() <= 2e-6 * truth.abs(), "{given} is not {truth}");
    }
    // Where means and variances are exact, so is all: 3 and 0; or 0 and 1, with an epsilon of 3.
    for ([even, odd], epsilon) in [([3.0, 3.0], 0.25), ([1.0, -1.0], 3.0)] {
        let sample = |i: usize| i / positions / channels;
        let x: Vec<f32> = (0..x.len()).map(|i| if sample(i) % 2 == 0 { even } else { odd }).collect();
        let [given, truth] =
            [&[0..2, 2..4, 4..8], whole].map(|parts| statistics_of(&x, parts, channels, positions, epsilon));
        assert_eq!(given, truth);
    }
}
