//! Stochastic gradient descent with momentum and weight decay.

use tightfit_core::network::Sgd;

use super::PIECE;
use crate::team::Team;

/// g = dw / loss scale + decay · w;  v = momentum · v + rate · g;  w = w - v.
pub fn update(team: &Team, by: Sgd, loss_scale: f32, w: &mut [f32], dw: &[f32], v: &mut [f32]) {
    let pieces = w.chunks_mut(PIECE).zip(dw.chunks(PIECE)).zip(v.chunks_mut(PIECE)).collect();
    team.share(pieces, &mut [], |((w, dw), v): ((&mut [f32], &[f32]), &mut [f32]), _, _| {
        for ((w, dw), v) in w.iter_mut().zip(dw).zip(v) {
            let gradient = dw / loss_scale + by.weight_decay * *w;
            *v = by.momentum * *v + by.learning_rate * gradient;
            *w -= *v;
        }
    });
}
