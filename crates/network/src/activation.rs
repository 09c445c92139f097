//! Activations other than the ReLU: functions of each element alone.

use serde_json::Value;

use super::fields::{Fields, decimal};

/// A function of each element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// 1 / (1 + exp(-x)).
    Sigmoid,
    /// alpha · x + beta, clamped to 0 to 1.
    HardSigmoid {
        /// The slope; positive.
        alpha: f32,
        /// The value at 0.
        beta: f32,
    },
    /// The hyperbolic tangent.
    Tanh,
    /// x, clamped to low to high. ReLU6 clamps to 0 to 6.
    Clip {
        /// The least value.
        low: f32,
        /// The largest value, above the least.
        high: f32,
    },
    /// x if positive, otherwise slope · x.
    LeakyRelu {
        /// The slope below 0; positive.
        slope: f32,
    },
    /// x if positive, otherwise alpha · (exp(x) - 1).
    Elu {
        /// The negated lower limit; positive.
        alpha: f32,
    },
    /// x · sigmoid(x), also called swish.
    Silu,
    /// x · min(max(x / 6 + 1 / 2, 0), 1).
    HardSwish,
    /// x times the normal distribution function at x.
    Gelu,
    /// The approximation of [`Activation::Gelu`] by a hyperbolic tangent.
    GeluTanh,
    /// ln(1 + exp(x)).
    Softplus,
    /// x · tanh(softplus(x)).
    Mish,
}

impl Activation {
    /// The activations without parameters.
    pub const PLAIN: [Activation; 8] = [
        Activation::Sigmoid,
        Activation::Tanh,
        Activation::Silu,
        Activation::HardSwish,
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::Softplus,
        Activation::Mish,
    ];

    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Activation::Sigmoid => "sigmoid",
            Activation::HardSigmoid { .. } => "hard-sigmoid",
            Activation::Tanh => "tanh",
            Activation::Clip { .. } => "clip",
            Activation::LeakyRelu { .. } => "leaky-relu",
            Activation::Elu { .. } => "elu",
            Activation::Silu => "silu",
            Activation::HardSwish => "hard-swish",
            Activation::Gelu => "gelu",
            Activation::GeluTanh => "gelu-tanh",
            Activation::Softplus => "softplus",
            Activation::Mish => "mish",
        }
    }

    /// Whether its derivative follows from its output; the others need the input.
    pub fn reads_output(self) -> bool {
        match self {
            Activation::Sigmoid
            | Activation::HardSigmoid { .. }
            | Activation::Tanh
            | Activation::Clip { .. }
            | Activation::LeakyRelu { .. }
            | Activation::Elu { .. } => true,
            Activation::Silu
            | Activation::HardSwish
            | Activation::Gelu
            | Activation::GeluTanh
            | Activation::Softplus
            | Activation::Mish => false,
        }
    }

    /// Its definition in 64 bits, which implementations are compared with.
    pub fn value(self, x: f64) -> f64 {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
        match self {
            Activation::Sigmoid => sigmoid(x),
            Activation::HardSigmoid { alpha, beta } => (f64::from(alpha) * x + f64::from(beta)).clamp(0.0, 1.0),
            Activation::Tanh => x.tanh(),
            Activation::Clip { low, high } => x.max(f64::from(low)).min(f64::from(high)),
            Activation::LeakyRelu { slope } => {
                if x > 0.0 {
                    x
                } else {
                    f64::from(slope) * x
                }
            }
            Activation::Elu { alpha } => {
                if x > 0.0 {
                    x
                } else {
                    f64::from(alpha) * x.exp_m1()
                }
            }
            Activation::Silu => x * sigmoid(x),
            Activation::HardSwish => x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
            Activation::Gelu => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
            Activation::GeluTanh => {
                0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
            }
            Activation::Softplus => softplus(x),
            Activation::Mish => x * softplus(x).tanh(),
        }
    }

    /// Checks its parameters.
    ///
    /// # Errors
    /// The fault, in words.
    pub fn check(self) -> Result<(), String> {
        let (fits, what) = match self {
            Activation::HardSigmoid { alpha, beta } => (alpha > 0.0 && beta.is_finite(), "alpha must be positive"),
            Activation::Clip { low, high } => (low < high, "low must be below high"),
            Activation::LeakyRelu { slope } => (slope > 0.0, "the slope must be positive"),
            Activation::Elu { alpha } => (alpha > 0.0, "alpha must be positive"),
            _ => (true, ""),
        };
        if fits { Ok(()) } else { Err(format!("{}: {what}", self.name())) }
    }

    /// Its numbers as fields of a file.
    pub(super) fn fields(self) -> Vec<(&'static str, Value)> {
        match self {
            Activation::HardSigmoid { alpha, beta } => vec![("alpha", decimal(alpha)), ("beta", decimal(beta))],
            Activation::Clip { low, high } => vec![("low", decimal(low)), ("high", decimal(high))],
            Activation::LeakyRelu { slope } => vec![("slope", decimal(slope))],
            Activation::Elu { alpha } => vec![("alpha", decimal(alpha))],
            _ => Vec::new(),
        }
    }

    /// Reads the activation of this name; `None` for an unknown name.
    pub(super) fn read(name: &str, fields: &mut Fields<'_>) -> Result<Option<Activation>, String> {
        let mut number = |field: &str| fields.number(field, f32::MIN..f32::INFINITY);
        Ok(Some(match name {
            "hard-sigmoid" => Activation::HardSigmoid { alpha: number("alpha")?, beta: number("beta")? },
            "clip" => Activation::Clip { low: number("low")?, high: number("high")? },
            "leaky-relu" => Activation::LeakyRelu { slope: number("slope")? },
            "elu" => Activation::Elu { alpha: number("alpha")? },
            _ => return Ok(Activation::PLAIN.into_iter().find(|activation| activation.name() == name)),
        }))
    }
}

/// The error function by its series: exact to 1e-9 wherever it differs from 1 and -1 by more than that.
pub fn erf(x: f64) -> f64 {
    if x.abs() > 4.5 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..100 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against `torch.nn.functional` in 64 bits (PyTorch 2.15) at -2.5 and 0.75.
    #[test]
    fn values_are_those_of_pytorch() {
        for (activation, values) in [
            (Activation::Sigmoid, [0.07585818002124355, 0.679178699175393]),
            (Activation::HardSigmoid { alpha: 1.0 / 6.0, beta: 0.5 }, [0.08333333333333333, 0.625]),
            (Activation::Tanh, [-0.9866142981514303, 0.6351489523872873]),
            (Activation::Clip { low: 0.0, high: 6.0 }, [0.0, 0.75]),
            (Activation::LeakyRelu { slope: 0.01 }, [-0.025, 0.75]),
            (Activation::Elu { alpha: 1.0 }, [-0.9179150013761013, 0.75]),
            (Activation::Silu, [-0.18964545005310887, 0.5093840243815447]),
            (Activation::HardSwish, [-0.20833333333333334, 0.46875]),
            (Activation::Gelu, [-0.015524163314440398, 0.5800294857173489]),
            (Activation::GeluTanh, [-0.015084266089998577, 0.5799605551656203]),
            (Activation::Softplus, [0.07888973429254963, 1.1368710061148999]),
            (Activation::Mish, [-0.19681620390653337, 0.6100183352182934]),
        ] {
            activation.check().unwrap();
            for (x, value) in [-2.5, 0.75].into_iter().zip(values) {
                let own = activation.value(x);
                assert!((own - value).abs() < 1e-7, "{} of {x}: {own}, not {value}", activation.name());
            }
        }
    }
}
