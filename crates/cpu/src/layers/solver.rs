//! Stochastic gradient descent with momentum and weight decay.

use super::PIECE;
use crate::team::Team;

/// The solver's numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Descent {
    /// Factor of the gradients.
    pub learning_rate: f32,
    /// Share of the last change that is repeated.
    pub momentum: f32,
    /// Factor of the weights that is added to their gradients.
    pub weight_decay: f32,
    /// What the loss was multiplied by.
    pub loss_scale: f32,
}

/// g = dw / loss scale + decay · w;  v = momentum · v + rate · g;  w = w - v.
pub fn update(team: &Team, by: Descent, w: &mut [f32], dw: &[f32], v: &mut [f32]) {
    let pieces = w.chunks_mut(PIECE).zip(dw.chunks(PIECE)).zip(v.chunks_mut(PIECE)).collect();
    team.share(pieces, &mut [], |((w, dw), v): ((&mut [f32], &[f32]), &mut [f32]), _, _| {
        for ((w, dw), v) in w.iter_mut().zip(dw).zip(v) {
            let gradient = dw / by.loss_scale + by.weight_decay * *w;
            *v = by.momentum * *v + by.learning_rate * gradient;
            *w -= *v;
        }
    });
}
