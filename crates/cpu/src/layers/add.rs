//! The sum of maps of one shape.

use super::{Flow, Store};
use crate::team::Team;

/// y = the first + the others, in this order; without a first, y holds it already.
pub fn forward(team: &Team, first: Option<&[f32]>, others: &[&[f32]], y: &mut [f32]) {
    if let Some(first) = first {
        Flow::Between(first, y, Store::Write).map(team, |_, x| x);
    }
    for other in others {
        Flow::Between(other, y, Store::Add).map(team, |_, x| x);
    }
}

/// The gradient of each input is the gradient of the sum.
pub fn backward(team: &Team, dy: Flow) {
    dy.map(team, |_, dy| dy);
}
