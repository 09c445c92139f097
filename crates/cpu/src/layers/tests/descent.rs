//! Steps of the solvers.

use super::*;

#[test]
fn descent() {
    let by = Sgd { learning_rate: 0.5, momentum: 0.25, weight_decay: 0.125 };
    let (mut w, mut v) = ([8.0], [4.0]);
    solver::update(&Team::new(1), by, 2.0, &mut w, &[6.0], Some(&mut v));
    // g = 6 / 2 + 8 / 8 = 4, v = 4 / 4 + 4 / 2 = 3, w = 8 - 3.
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
