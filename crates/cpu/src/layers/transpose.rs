//! Exchanges the axes of each sample.
//!
//! ```text
//! order 1 2 0:  c, h, w -> h, w, c        y[h][w][c] = x[c][h][w]
//! ```

use super::Store;
use crate::team::Team;

/// y from x, whose samples have these extents; `order` is the input's axis that each axis of the output is.
///
/// # Panics
/// If `order` is not an order of the axes of `extents`.
pub fn forward(team: &Team, extents: &[usize], order: &[usize], x: &[f32], y: &mut [f32]) {
    let (output, strides) = layout(extents, order);
    moved(team, &output, &strides, x, y, Store::Write);
}

/// dx from dy: the exchange in the opposite direction.
///
/// # Panics
/// If `order` is not an order of the axes of `extents`.
pub fn backward(team: &Team, extents: &[usize], order: &[usize], dy: &[f32], dx: &mut [f32], store: Store) {
    let output: Vec<usize> = order.iter().map(|&axis| extents[axis]).collect();
    let mut back = vec![0; order.len()];
    order.iter().enumerate().for_each(|(at, &axis)| back[axis] = at);
    let (input, strides) = layout(&output, &back);
    moved(team, &input, &strides, dy, dx, store);
}

/// The extents after the exchange, and how far apart their neighbors are before it.
fn layout(extents: &[usize], order: &[usize]) -> (Vec<usize>, Vec<usize>) {
    let stride = |axis: usize| extents[axis + 1..].iter().product::<usize>();
    order.iter().map(|&axis| (extents[axis], stride(axis))).unzip()
}

/// Fills `to`, of these extents per sample, from places with these strides.
fn moved(team: &Team, extents: &[usize], strides: &[usize], from: &[f32], to: &mut [f32], store: Store) {
    let (Some((&first, inner)), Some((&stride, inner_strides))) = (extents.split_first(), strides.split_first()) else {
        return;
    };
    let part = inner.iter().product::<usize>();
    let sample = first * part;
    let items = to.chunks_mut(part).enumerate().collect();
    team.share(items, &mut [], |(item, to): (usize, &mut [f32]), _, _| {
        let start = item / first * sample + item % first * stride;
        copy(inner, inner_strides, &from[start..], to, store);
    });
}

/// Fills the rows of `to` one axis after another.
fn copy(extents: &[usize], strides: &[usize], from: &[f32], to: &mut [f32], store: Store) {
    match (extents, strides) {
        ([_], [stride]) => {
            let values = from.iter().step_by(*stride);
            to.iter_mut().zip(values).for_each(|(to, value)| store.put(to, *value));
        }
        ([_, inner @ ..], [stride, inner_strides @ ..]) if !inner.is_empty() => {
            let part = inner.iter().product();
            for (at, to) in to.chunks_mut(part).enumerate() {
                copy(inner, inner_strides, &from[at * stride..], to, store);
            }
        }
        _ => to.iter_mut().zip(from).for_each(|(to, value)| store.put(to, *value)),
    }
}
