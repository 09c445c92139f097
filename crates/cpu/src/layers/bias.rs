//! A number for each channel, added to all its positions: the bias of convolutions.

use super::Store;
use crate::team::Team;

/// y += bias, one of `positions` elements after another: y is n, c, positions.
pub fn forward(team: &Team, bias: &[f32], positions: usize, y: &mut [f32]) {
    let planes = y.chunks_mut(positions).enumerate().collect();
    team.share(planes, &mut [], |(plane, y): (usize, &mut [f32]), _, _| {
        let bias = bias[plane % bias.len()];
        y.iter_mut().for_each(|y| *y += bias);
    });
}

/// The bias' gradient: the sum of dy over samples and positions, in 64 bits.
pub fn backward(team: &Team, dy: &[f32], positions: usize, bias_gradient: &mut [f32], store: Store) {
    let channels = bias_gradient.len();
    let items = bias_gradient.iter_mut().enumerate().collect();
    team.share(items, &mut [], |(channel, gradient): (usize, &mut f32), _, _| {
        let planes = dy.chunks(positions).skip(channel).step_by(channels);
        let sum: f64 = planes.map(|plane| plane.iter().map(|&dy| f64::from(dy)).sum::<f64>()).sum();
        store.put(gradient, sum as f32);
    });
}
