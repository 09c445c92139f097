//! The product of two maps, or of a map and one number per channel: gates, as in squeeze-and-excitation.
//!
//! ```text
//! y = x · f        dx = dy · f        df = dy · x, summed over the positions that share the number
//! ```
//!
//! `positions` are the elements that share a number of the factor: 1 for two maps of one shape.

use super::Store;
use crate::team::Team;

/// y from x and the factor.
pub fn forward(team: &Team, positions: usize, x: &[f32], factor: &[f32], y: &mut [f32]) {
    scaled(team, positions, x, factor, y, Store::Write);
}

/// dx from dy and the factor.
pub fn backward_map(team: &Team, positions: usize, dy: &[f32], factor: &[f32], dx: &mut [f32], store: Store) {
    scaled(team, positions, dy, factor, dx, store);
}

fn scaled(team: &Team, positions: usize, from: &[f32], factor: &[f32], to: &mut [f32], store: Store) {
    let planes = from.chunks(positions).zip(to.chunks_mut(positions)).zip(factor).collect();
    team.share(planes, &mut [], |((from, to), factor): ((&[f32], &mut [f32]), &f32), _, _| {
        to.iter_mut().zip(from).for_each(|(to, from)| store.put(to, from * factor));
    });
}

/// The factor's gradient from dy and x, summed in 64 bits.
pub fn backward_factor(team: &Team, positions: usize, dy: &[f32], x: &[f32], gradient: &mut [f32], store: Store) {
    let planes = dy.chunks(positions).zip(x.chunks(positions)).zip(gradient).collect();
    team.share(planes, &mut [], |((dy, x), gradient): ((&[f32], &[f32]), &mut f32), _, _| {
        let sum: f64 = dy.iter().zip(x).map(|(dy, x)| f64::from(*dy) * f64::from(*x)).sum();
        store.put(gradient, sum as f32);
    });
}
