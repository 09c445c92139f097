//! Finds the error to compare with: the error of the undivided algorithm of the same numerical class.
//!
//! ```text
//! chosen      4 x 64 winograd        error 5e-3
//! undivided   256 gemm               error 1e-6     another class: not comparable
//! of class    256 winograd           error 4e-3     run only for this comparison, with unlimited workspace
//! ```

use tightfit_units::{Bytes, Error, Nanos};

use super::Trial;
use crate::backend::{Backend, Offer};
use crate::candidate::{Algorithm, Call, Notes};
use crate::{Candidate, Configuration, DivisionCost};

/// Runs one undivided algorithm for the numerical class of each algorithm in the configuration: the algorithm itself if
/// it supports the whole mini-batch, otherwise the undivided choice if that is of its class, otherwise the first other
/// of its class. Returns the largest of their errors, from `error_of`; none if a class has no algorithm that runs
/// undivided.
///
/// `undivided` is the error of the undivided choice, so that it does not run again.
///
/// # Errors
/// Only fatal errors; after any other error the next algorithm is tried.
pub(super) fn class_error(
    backend: &mut dyn Backend,
    trial: &Trial<'_>,
    undivided: Option<f64>,
    error_of: &dyn Fn(&[f32]) -> f64,
) -> Result<Option<f64>, Error> {
    let offers = backend.offers(trial.problem)?;
    let choice = trial.undivided.and_then(|whole| whole.parts().first()).map(|part| part.algorithm.clone());
    let mut largest: Option<f64> = None;
    let mut seen: Vec<Algorithm> = Vec::new();
    for Call { part, algorithm: own, .. } in trial.configuration.calls(trial.problem)? {
        if seen.contains(&own) {
            continue;
        }
        seen.push(own.clone());
        let notes = match notes_of(&offers, &own) {
            Some(notes) => notes,
            // Some algorithms are offered only for small mini-batches, or for slices.
            None => notes_of(&backend.offers(&part.problem)?, &own).unwrap_or_default(),
        };
        let mut of_class: Vec<(&Algorithm, Bytes)> = offers
            .iter()
            .filter(|offer| offer.notes.class() == notes.class())
            .filter_map(|offer| Some((&offer.algorithm, *offer.workspace.as_ref().ok()?)))
            .collect();
        of_class.sort_by_key(|(algorithm, _)| (**algorithm != own, Some(*algorithm) != choice.as_ref()));
        let mut error = None;
        for (algorithm, workspace) in of_class {
            error = match undivided {
                Some(known) if Some(algorithm) == choice.as_ref() => Some(known),
                _ => run_whole(backend, trial, algorithm, workspace, error_of)?,
            };
            if error.is_some() {
                break;
            }
        }
        let Some(error) = error else { return Ok(None) };
        largest = Some(largest.map_or(error, |largest| largest.max(error)));
    }
    Ok(largest)
}

fn notes_of(offers: &[Offer], algorithm: &Algorithm) -> Option<Notes> {
    offers.iter().find(|offer| offer.algorithm == *algorithm).map(|offer| offer.notes)
}

/// The error of one algorithm on the whole mini-batch; `None` if it is not supported or does not fit the device.
fn run_whole(
    backend: &mut dyn Backend,
    trial: &Trial<'_>,
    algorithm: &Algorithm,
    workspace: Bytes,
    error_of: &dyn Fn(&[f32]) -> f64,
) -> Result<Option<f64>, Error> {
    let whole =
        Candidate { algorithm: algorithm.clone(), micro_batch: trial.problem.batch(), time: Nanos::ZERO, workspace };
    let whole = Configuration::new(vec![whole], DivisionCost::default());
    match backend.run(trial.problem, &whole, trial.data.tensors(), trial.scale) {
        Ok(run) => Ok(Some(error_of(&run.output))),
        Err(error) if error.is_fatal() => Err(error),
        Err(_) => Ok(None),
    }
}
