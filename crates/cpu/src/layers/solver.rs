//! Stochastic gradient descent with weight decay, with or without momentum; AdamW.

use tightfit_network::{AdamW, Sgd};

use super::PIECE;
use crate::team::Team;

/// g = dw / loss scale + decay · w;  v = momentum · v + rate · g;  w = w - v. Without `v`, the last change counts as 0.
pub fn update(team: &Team, by: Sgd, loss_scale: f32, w: &mut [f32], dw: &[f32], v: Option<&mut [f32]>) {
    let step = |w: &mut f32, dw: f32, last: f32| {
        let gradient = dw / loss_scale + by.weight_decay * *w;
        let change = by.momentum * last + by.learning_rate * gradient;
        *w -= change;
        change
    };
    let Some(v) = v else {
        let pieces = w.chunks_mut(PIECE).zip(dw.chunks(PIECE)).collect();
        team.share(pieces, &mut [], |(w, dw): (&mut [f32], &[f32]), _, _| {
            w.iter_mut().zip(dw).for_each(|(w, dw)| _ = step(w, *dw, 0.0));
        });
        return;
    };
    let pieces = w.chunks_mut(PIECE).zip(dw.chunks(PIECE)).zip(v.chunks_mut(PIECE)).collect();
    team.share(pieces, &mut [], |((w, dw), v): ((&mut [f32], &[f32]), &mut [f32]), _, _| {
        for ((w, dw), v) in w.iter_mut().zip(dw).zip(v) {
            *v = step(w, *dw, *v);
        }
    });
}

/// A step of AdamW, counted from 0, on weights `w` with gradients `dw` and moments `m` and `v`; see [`AdamW`].
pub fn adamw(
    team: &Team,
    by: AdamW,
    step: u64,
    loss_scale: f32,
    (w, dw): (&mut [f32], &[f32]),
    (m, v): (&mut [f32], &mut [f32]),
) {
    let [first, second] = by.corrections(step);
    let (kept, rate) = (1.0 - by.learning_rate * by.weight_decay, by.learning_rate / first);
    let pieces = w.chunks_mut(PIECE).zip(dw.chunks(PIECE)).zip(m.chunks_mut(PIECE).zip(v.chunks_mut(PIECE))).collect();
    type Piece<'a> = ((&'a mut [f32], &'a [f32]), (&'a mut [f32], &'a mut [f32]));
    team.share(pieces, &mut [], |((w, dw), (m, v)): Piece<'_>, _, _| {
        for ((w, dw), (m, v)) in w.iter_mut().zip(dw).zip(m.iter_mut().zip(v)) {
            let gradient = dw / loss_scale;
            *m = by.beta1 * *m + (1.0 - by.beta1) * gradient;
            *v = by.beta2 * *v + (1.0 - by.beta2) * (gradient * gradient);
            *w = kept * *w - rate * *m / (v.sqrt() / second + by.epsilon);
        }
    });
}
