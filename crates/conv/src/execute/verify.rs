//! Verifies the results of a configuration.

use tightfit_units::{Error, Nanos};

use super::Trial;
use super::class::class_error;
use crate::backend::{Backend, Run, Scale, Tensors};
use crate::{Configuration, Problem};

/// Outputs per kernel to compare with the reference, unless all are requested.
pub const SAMPLED_OUTPUTS: usize = 4096;

/// Computes the selected outputs (by index) in f64.
pub type Reference = fn(&Problem, Tensors<'_>, Scale, &[usize]) -> Vec<f64>;

/// The errors of a configuration's output against the reference.
///
/// An error is the largest difference divided by the largest magnitude of the reference: a relative error that stays
/// meaningful for outputs near zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verified {
    /// Divided against undivided, over all outputs; `None` if nothing fits undivided.
    pub error_undivided: Option<f64>,
    /// Divided against f64.
    pub error_reference: f64,
    /// Undivided against f64; `None` if nothing fits undivided.
    pub undivided_error_reference: Option<f64>,
    /// The reference error: of the configuration's algorithms, or others of their numerical class, undivided against f64. `None` if a class has no
    /// algorithm that runs undivided.
    pub class_error_reference: Option<f64>,
    /// Outputs compared with f64.
    pub outputs_compared: usize,
    /// Time of the configuration as it ran; back to back if the backend measures single calls separately.
    pub time: Nanos,
    /// Time of a single run, if the backend measures it separately.
    pub single: Option<Nanos>,
    /// Time of the undivided configuration as it ran.
    pub undivided_time: Option<Nanos>,
}

impl Verified {
    /// Allowed factor between the error of a configuration and the error of its class's undivided algorithm; dividing changes the order of summation.
    pub const MOST_OVER_CLASS: f64 = 2.0;

    /// Whether the error is at most [`Verified::MOST_OVER_CLASS`] times that the error of the undivided algorithm of
    /// its class; `None` without such an algorithm.
    pub fn is_of_class(&self) -> Option<bool> {
        let of_class = self.class_error_reference?;
        Some(self.error_reference <= of_class * Verified::MOST_OVER_CLASS)
    }
}

/// Runs a configuration and its undivided counterpart and compares all outputs of the two, and `outputs` of them
/// (evenly spread; all if there are fewer) with `reference`.
///
/// If a backend does not repeat runs by itself, each is run twice and the faster time counts, because the first run of
/// an algorithm may include setup.
///
/// # Errors
/// The errors of [`Backend::run`].
pub fn verify(
    backend: &mut dyn Backend,
    trial: &Trial<'_>,
    reference: Reference,
    outputs: usize,
) -> Result<Verified, Error> {
    let Trial { problem, configuration, undivided, data, scale } = *trial;
    let tensors = data.tensors();
    let mut run = |configuration: &Configuration| -> Result<Run, Error> {
        let first = backend.run(problem, configuration, tensors, scale)?;
        if first.single.is_some() {
            return Ok(first);
        }
        let second = backend.run(problem, configuration, tensors, scale)?;
        Ok(Run { time: first.time.min(second.time), ..second })
    };
    let Run { output, time, single } = run(configuration)?;
    let undivided = match undivided {
        // An equal configuration need not run again.
        Some(undivided) if undivided == configuration => Some((output.clone(), time)),
        Some(undivided) => run(undivided).map(|run| Some((run.output, run.time)))?,
        None => None,
    };
    let at = sample(output.len(), outputs);
    let truth = reference(problem, tensors, scale, &at);
    let against_truth =
        |output: &[f32]| largest_error(at.iter().map(|&i| f64::from(output[i])).zip(truth.iter().copied()));
    let wide = |values: &[f32]| values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
    let undivided_error_reference = undivided.as_ref().map(|(u, _)| against_truth(u));
    Ok(Verified {
        class_error_reference: class_error(backend, trial, undivided_error_reference, &against_truth)?,
        error_undivided: undivided.as_ref().map(|(u, _)| largest_error(wide(&output).into_iter().zip(wide(u)))),
        error_reference: against_truth(&output),
        undivided_error_reference,
        outputs_compared: at.len(),
        time,
        single,
        undivided_time: undivided.map(|(_, time)| time),
    })
}

/// `count` indices spread evenly over `len`, including the first and the last; all if there are fewer.
fn sample(len: usize, count: usize) -> Vec<usize> {
    if len <= count || count < 2 {
        return (0..len).collect();
    }
    (0..count).map(|i| (i as u128 * (len - 1) as u128 / (count - 1) as u128) as usize).collect()
}

/// The largest difference over the largest magnitude of the second; infinite if anything is not a number.
pub(super) fn largest_error(pairs: impl Iterator<Item = (f64, f64)>) -> f64 {
    let (mut difference, mut magnitude) = (0.0f64, 0.0f64);
    for (value, truth) in pairs {
        let distance = (value - truth).abs();
        if !distance.is_finite() {
            return f64::INFINITY;
        }
        difference = difference.max(distance);
        magnitude = magnitude.max(truth.abs());
    }
    if difference == 0.0 { 0.0 } else { difference / magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_reach_both_ends() {
        assert_eq!(sample(3, 10), [0, 1, 2]);
        let spread = sample(1_000_000, 4096);
        assert_eq!((spread[0], spread[4095], spread.len()), (0, 999_999, 4096));
        assert!(spread.windows(2).all(|pair| pair[0] < pair[1]));
    }

    #[test]
    fn errors_are_seen() {
        let error = |pairs: &[(f64, f64)]| largest_error(pairs.iter().copied());
        assert_eq!(error(&[(1.0, 1.0), (0.0, 0.0)]), 0.0);
        assert_eq!(error(&[(1.5, 1.0), (-2.0, -2.0)]), 0.25);
        assert_eq!(error(&[(f64::NAN, 1.0)]), f64::INFINITY);
        assert_eq!(error(&[(1.0, 0.0)]), f64::INFINITY);
    }
}
