//! Activations: functions of each element. The rectified linear unit is max(x, 0).

use std::f32::consts::{FRAC_1_SQRT_2, PI};

use tightfit_network::Activation;

use super::Flow;
use crate::team::Team;

/// y from x.
pub fn forward(team: &Team, x: Flow) {
    x.map(team, |_, x| relu(x));
}

/// dx from dy and y.
pub fn backward(team: &Team, y: &[f32], dy: Flow) {
    dy.map(team, |i, dy| relu_gradient(y[i], dy));
}

/// y of an element. A NaN stays a NaN, instead of becoming zero unseen.
pub(super) fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// dx of an element, from its output, or from its input, which is positive where the output is.
pub(super) fn relu_gradient(y: f32, dy: f32) -> f32 {
    if y <= 0.0 { 0.0 } else { dy }
}

/// y from x by another function.
pub fn forward_by(team: &Team, by: Activation, x: Flow) {
    match by {
        Activation::Sigmoid => x.map(team, |_, x| sigmoid(x)),
        Activation::HardSigmoid { alpha, beta } => x.map(team, |_, x| (alpha * x + beta).clamp(0.0, 1.0)),
        Activation::Tanh => x.map(team, |_, x| x.tanh()),
        // A comparison with a NaN is false, so the NaN stays.
        Activation::Clip { low, high } => {
            x.map(team, |_, x| {
                if x < low {
                    low
                } else if x > high {
                    high
                } else {
                    x
                }
            });
        }
        Activation::LeakyRelu { slope } => x.map(team, |_, x| if x > 0.0 { x } else { slope * x }),
        Activation::Elu { alpha } => x.map(team, |_, x| if x > 0.0 { x } else { alpha * x.exp_m1() }),
        Activation::Silu => x.map(team, |_, x| x * sigmoid(x)),
        Activation::HardSwish => x.map(team, |_, x| x * (x / 6.0 + 0.5).clamp(0.0, 1.0)),
        Activation::Gelu => x.map(team, |_, x| x * normal_share(x)),
        Activation::GeluTanh => x.map(team, |_, x| 0.5 * x * (1.0 + inner(x).tanh())),
        Activation::Softplus => x.map(team, |_, x| softplus(x)),
        Activation::Mish => x.map(team, |_, x| x * softplus(x).tanh()),
    }
}

/// dx from dy, and from the output of functions that read it ([`Activation::reads_output`]), else from the input.
pub fn backward_by(team: &Team, by: Activation, known: &[f32], dy: Flow) {
    match by {
        Activation::Sigmoid => dy.map(team, |i, dy| dy * known[i] * (1.0 - known[i])),
        Activation::HardSigmoid { alpha, .. } => {
            dy.map(team, |i, dy| if known[i] > 0.0 && known[i] < 1.0 { dy * alpha } else { 0.0 });
        }
        Activation::Tanh => dy.map(team, |i, dy| dy * (1.0 - known[i] * known[i])),
        Activation::Clip { low, high } => {
            dy.map(team, |i, dy| if known[i] > low && known[i] < high { dy } else { 0.0 });
        }
        Activation::LeakyRelu { slope } => dy.map(team, |i, dy| if known[i] > 0.0 { dy } else { dy * slope }),
        Activation::Elu { alpha } => dy.map(team, |i, dy| if known[i] > 0.0 { dy } else { dy * (known[i] + alpha) }),
        Activation::Silu => dy.map(team, |i, dy| {
            let share = sigmoid(known[i]);
            dy * share * (1.0 + known[i] * (1.0 - share))
        }),
        Activation::HardSwish => dy.map(team, |i, dy| match known[i] {
            x if x <= -3.0 => 0.0,
            x if x >= 3.0 => dy,
            x => dy * (x / 3.0 + 0.5),
        }),
        Activation::Gelu => dy.map(team, |i, dy| {
            let x = known[i];
            dy * (normal_share(x) + x * (-0.5 * x * x).exp() / (2.0 * PI).sqrt())
        }),
        Activation::GeluTanh => dy.map(team, |i, dy| {
            let (x, share) = (known[i], inner(known[i]).tanh());
            let slope = (2.0 / PI).sqrt() * (1.0 + 3.0 * 0.044_715 * x * x);
            dy * 0.5 * (1.0 + share + x * (1.0 - share * share) * slope)
        }),
        Activation::Softplus => dy.map(team, |i, dy| dy * sigmoid(known[i])),
        Activation::Mish => dy.map(team, |i, dy| {
            let (x, share) = (known[i], softplus(known[i]).tanh());
            dy * (share + x * sigmoid(x) * (1.0 - share * share))
        }),
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// ln(1 + exp(x)), without overflow.
fn softplus(x: f32) -> f32 {
    // `max` would turn a NaN into 0.
    let positive = if x < 0.0 { 0.0 } else { x };
    positive + (-x.abs()).exp().ln_1p()
}

/// The argument of the hyperbolic tangent that approximates the GELU.
fn inner(x: f32) -> f32 {
    (2.0 / PI).sqrt() * (x + 0.044_715 * x * x * x)
}

/// The normal distribution's share below x, to 1.2e-7 of itself on both sides.
///
/// **Source:** Press et al., Numerical Recipes, 6.2: a Chebyshev fit of the complementary error function.
fn normal_share(x: f32) -> f32 {
    let z = f64::from(x * FRAC_1_SQRT_2).abs();
    let t = 1.0 / (1.0 + 0.5 * z);
    let terms = [
        0.170_872_77,
        -0.822_152_23,
        1.488_515_87,
        -1.135_203_98,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_68,
        -1.265_512_23,
    ];
    let beyond = t * (terms.into_iter().fold(0.0, |sum, term| sum * t + term) - z * z).exp();
    (if x > 0.0 { 1.0 - 0.5 * beyond } else { 0.5 * beyond }) as f32
}
