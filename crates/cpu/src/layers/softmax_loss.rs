//! Softmax and the mean cross-entropy with the labels: probabilities forward, their gradient backward.

use super::{Flow, Store};
use crate::team::Team;

/// Probabilities from scores, each sample's `classes` elements by themselves.
pub fn forward(team: &Team, classes: usize, x: Flow) {
    let y = match x {
        Flow::InPlace(y) => y,
        Flow::Between(x, y, _) => {
            y.copy_from_slice(x);
            y
        }
    };
    team.share(y.chunks_mut(classes).collect(), &mut [], |y: &mut [f32], _, _| {
        let largest = y.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        y.iter_mut().for_each(|y| *y = (*y - largest).exp());
        let sum: f32 = y.iter().sum();
        y.iter_mut().for_each(|y| *y /= sum);
    });
}

/// dx = factor · (y - one for the label's class); for the mean over a mini-batch the factor is 1 / samples.
pub fn backward(team: &Team, classes: usize, y: &[f32], labels: &[u32], factor: f32, dx: &mut [f32], store: Store) {
    let samples = y.chunks(classes).zip(dx.chunks_mut(classes)).zip(labels).collect();
    team.share(samples, &mut [], |((y, dx), label): ((&[f32], &mut [f32]), &u32), _, _| {
        for (class, (y, dx)) in y.iter().zip(dx).enumerate() {
            let wanted = if class == *label as usize { 1.0 } else { 0.0 };
            store.put(dx, factor * (y - wanted));
        }
    });
}

/// The mean cross-entropy and how many samples have their label as the likeliest class.
///
/// A label out of range, or a probability of zero, gives its sample the largest finite loss instead of infinity.
pub fn loss(classes: usize, probabilities: &[f32], labels: &[u32]) -> (f64, usize) {
    let (mut sum, mut right) = (0.0, 0);
    for (sample, &label) in probabilities.chunks(classes).zip(labels) {
        let of_label = sample.get(label as usize).copied().unwrap_or(0.0);
        // A NaN stays one.
        let bounded = if of_label < f32::MIN_POSITIVE { f32::MIN_POSITIVE } else { of_label };
        sum -= f64::from(bounded).ln();
        right +=
            usize::from(sample.iter().enumerate().all(|(class, &p)| {
                class == label as usize || p < of_label || (p == of_label && class > label as usize)
            }));
    }
    (sum / labels.len().max(1) as f64, right)
}
