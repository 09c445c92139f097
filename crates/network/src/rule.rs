//! The solver's updates of weights by their gradients: stochastic gradient descent, or AdamW.

use tightfit_units::Error;

/// The solver's update rule, with its parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Stochastic gradient descent.
    Sgd(Sgd),
    /// Adam with decoupled weight decay.
    AdamW(AdamW),
}

/// A hyperparameter of training, with its valid range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hyperparameter {
    /// The step size of weights along a gradient.
    LearningRate,
    /// The share of a change that stays in the next step.
    Momentum,
    /// How much weights shrink.
    WeightDecay,
    /// The factor of each drop of the learning rate.
    Decay,
    /// The factor of the loss in the backward pass.
    LossScale,
}

impl Hyperparameter {
    /// Whether it may have this value.
    pub fn allows(self, value: f64) -> bool {
        match self {
            Hyperparameter::LearningRate | Hyperparameter::WeightDecay => value >= 0.0 && value.is_finite(),
            Hyperparameter::Momentum => (0.0..1.0).contains(&value),
            Hyperparameter::Decay | Hyperparameter::LossScale => value > 0.0 && value.is_finite(),
        }
    }

    /// A description of the allowed values.
    pub fn range(self) -> &'static str {
        match self {
            Hyperparameter::LearningRate | Hyperparameter::WeightDecay => "a finite number of at least 0",
            Hyperparameter::Momentum => "a number of at least 0 and less than 1",
            Hyperparameter::Decay | Hyperparameter::LossScale => "a finite number greater than 0",
        }
    }

    /// The value, if it is allowed; `name` is the user's name for it.
    ///
    /// # Errors
    /// [`Error::BadOption`] with the name, the value and the range.
    pub fn check(self, name: &str, value: f64) -> Result<f64, Error> {
        if self.allows(value) {
            return Ok(value);
        }
        Err(Error::BadOption { what: format!("{name} {value}: use {}", self.range()) })
    }
}

/// Stochastic gradient descent with momentum and weight decay:
///
/// ```text
/// change = momentum · change + learning rate · (gradient + weight decay · weight)        weight = weight - change
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Learning rate.
    pub learning_rate: f32,
    /// Momentum.
    pub momentum: f32,
    /// Weight decay (L2 penalty).
    pub weight_decay: f32,
}

/// Adam with weight decay that bypasses the moments:
///
/// ```text
/// first = beta1 · first + (1 - beta1) · gradient         second = beta2 · second + (1 - beta2) · gradient²
/// weight = weight · (1 - learning rate · weight decay) - learning rate / c1 · first / (√second / √c2 + epsilon)
/// c1 = 1 - beta1^t, c2 = 1 - beta2^t, t steps from 1
/// ```
///
/// Source: Loshchilov and Hutter 2019, as PyTorch computes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate.
    pub learning_rate: f32,
    /// The share of the first moment that stays in each step.
    pub beta1: f32,
    /// The share of the second moment that stays in each step.
    pub beta2: f32,
    /// Added to the denominator.
    pub epsilon: f32,
    /// Weight decay.
    pub weight_decay: f32,
}

impl Default for Sgd {
    /// A learning rate of 0.01, a momentum of 0.9, and a weight decay of 5e-4.
    fn default() -> Sgd {
        Sgd { learning_rate: 0.01, momentum: 0.9, weight_decay: 5e-4 }
    }
}

impl Default for AdamW {
    /// PyTorch's defaults: a learning rate of 0.001, betas of 0.9 and 0.999, an epsilon of 1e-8, a weight decay of 0.01.
    fn default() -> AdamW {
        AdamW { learning_rate: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 }
    }
}

impl Default for Rule {
    /// [`Sgd`]'s default.
    fn default() -> Rule {
        Rule::Sgd(Sgd::default())
    }
}

impl Rule {
    /// The learning rate.
    pub fn learning_rate(&self) -> f32 {
        match self {
            Rule::Sgd(rule) => rule.learning_rate,
            Rule::AdamW(rule) => rule.learning_rate,
        }
    }

    /// The rule with another learning rate.
    pub fn with_learning_rate(self, learning_rate: f32) -> Rule {
        match self {
            Rule::Sgd(rule) => Rule::Sgd(Sgd { learning_rate, ..rule }),
            Rule::AdamW(rule) => Rule::AdamW(AdamW { learning_rate, ..rule }),
        }
    }
}

impl AdamW {
    /// c1 and √c2 of a step, counted from 0. Every machine takes them from here, so that all round alike.
    pub fn corrections(&self, step: u64) -> [f32; 2] {
        // Past 2^31 steps both powers are 0.
        let t = i32::try_from(step.saturating_add(1)).unwrap_or(i32::MAX);
        let left = |beta: f32| 1.0 - f64::from(beta).powi(t);
        [left(self.beta1) as f32, left(self.beta2).sqrt() as f32]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_values_are_named_with_the_range() {
        use Hyperparameter::{Decay, LearningRate, LossScale, Momentum, WeightDecay};
        for of in [LearningRate, Momentum, WeightDecay, Decay, LossScale] {
            for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1e-9] {
                let message = of.check("it", value).unwrap_err().to_string();
                assert_eq!(message, format!("it {value}: use {}", of.range()));
            }
            assert_eq!(of.check("it", 0.5).unwrap(), 0.5);
        }
        assert!(LearningRate.allows(0.0) && WeightDecay.allows(0.0) && Momentum.allows(0.0) && !Momentum.allows(1.0));
        assert!(!LossScale.allows(0.0) && !Decay.allows(0.0) && LossScale.allows(65536.0));
    }
}
