//! Fully connected layers: every output from every element of the input, as matrix products.
//!
//! x is n x inputs, w is outputs x inputs, y is n x outputs, rows contiguous.

use super::{Store, bias};
use crate::gemm::{Kind, Strides, multiply};
use crate::team::Team;

/// Sizes of a layer on a mini-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Samples.
    pub samples: usize,
    /// Elements of one sample of the input.
    pub inputs: usize,
    /// Elements of one sample of the output.
    pub outputs: usize,
}

/// y = x · wᵗ, and a number for each output.
pub fn forward(team: &Team, sizes: Sizes, x: &[f32], w: &[f32], numbers: Option<&[f32]>, y: &mut [f32]) {
    let Sizes { samples, inputs, outputs } = sizes;
    let size = (samples, outputs, inputs);
    let right = (w, Strides::rows(inputs).transposed());
    product(team, size, (x, Strides::rows(inputs)), right, 0.0, (y, Strides::rows(outputs)));
    if let Some(numbers) = numbers {
        bias::forward(team, numbers, 1, y);
    }
}

/// dx = dy · w.
pub fn backward_data(team: &Team, sizes: Sizes, dy: &[f32], w: &[f32], dx: &mut [f32], store: Store) {
    let Sizes { samples, inputs, outputs } = sizes;
    let size = (samples, inputs, outputs);
    let right = (w, Strides::rows(inputs));
    product(team, size, (dy, Strides::rows(outputs)), right, store.beta(), (dx, Strides::rows(inputs)));
}

/// dw = dyᵗ · x.
pub fn backward_filter(team: &Team, sizes: Sizes, x: &[f32], dy: &[f32], dw: &mut [f32], store: Store) {
    let Sizes { samples, inputs, outputs } = sizes;
    let size = (outputs, inputs, samples);
    let left = (dy, Strides::rows(outputs).transposed());
    product(team, size, left, (x, Strides::rows(inputs)), store.beta(), (dw, Strides::rows(inputs)));
}

/// out = beta · out + left · right, with all threads.
fn product(
    team: &Team,
    size: (usize, usize, usize),
    left: (&[f32], Strides),
    right: (&[f32], Strides),
    beta: f32,
    (out, strides): (&mut [f32], Strides),
) {
    team.share(vec![out], &mut [], |out, _, threads| {
        multiply(Kind::Real, size, 1.0, left, right, beta, (out, strides), threads);
    });
}
