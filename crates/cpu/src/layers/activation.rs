//! Rectified linear unit: max(x, 0).

use super::Flow;
use crate::team::Team;

/// y from x. What is no number stays so, instead of becoming zero unseen.
pub fn forward(team: &Team, x: Flow) {
    x.map(team, |_, x| if x < 0.0 { 0.0 } else { x });
}

/// dx from dy and y: the gradient goes where the output is positive.
pub fn backward(team: &Team, y: &[f32], dy: Flow) {
    dy.map(team, |i, dy| if y[i] <= 0.0 { 0.0 } else { dy });
}
