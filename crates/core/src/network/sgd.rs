//! The solver: stochastic gradient descent.

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

impl Default for Sgd {
    /// A learning rate of 0.01, a momentum of 0.9, and a weight decay of 5e-4.
    fn default() -> Sgd {
        Sgd { learning_rate: 0.01, momentum: 0.9, weight_decay: 5e-4 }
    }
}
