//! Layers that move or combine the positions of a map: pooling, resizing, transposing.

use super::*;

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
        // One output, by counting through all inputs: the product over the axes of each place's weight.
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
