//! A learned factor for each channel: y is x times the factor of its channel. x is n, c, positions.

use super::Store;
use crate::team::Team;

/// y from x, and dx from dy.
pub fn apply(team: &Team, scales: &[f32], positions: usize, from: &[f32], to: &mut [f32], store: Store) {
    let planes = from.chunks(positions).zip(to.chunks_mut(positions)).enumerate().collect();
    team.share(planes, &mut [], |(plane, (from, to)): (usize, (&[f32], &mut [f32])), _, _| {
        let scale = scales[plane % scales.len()];
        to.iter_mut().zip(from).for_each(|(to, from)| store.put(to, from * scale));
    });
}

/// The factors' gradients: the sum of dy · x over samples and positions, in 64 bits.
pub fn backward_parameters(team: &Team, positions: usize, x: &[f32], dy: &[f32], scales: &mut [f32], store: Store) {
    let channels = scales.len();
    let items = scales.iter_mut().enumerate().collect();
    team.share(items, &mut [], |(channel, scale): (usize, &mut f32), _, _| {
        let planes = x.chunks(positions).zip(dy.chunks(positions)).skip(channel).step_by(channels);
        let product =
            |(x, dy): (&[f32], &[f32])| -> f64 { x.iter().zip(dy).map(|(x, dy)| f64::from(*x) * f64::from(*dy)).sum() };
        store.put(scale, planes.map(product).sum::<f64>() as f32);
    });
}
