//! `profile`: from a network to the measurements of its convolutions.

use tightfit_conv::{Backend, Problem};
use tightfit_network::{Kernel, distinct};
use tightfit_units::Error;

use crate::Selection;
use crate::survey::{Env, Scope, Survey, survey};

/// Measures the selected convolutions, each distinct problem once.
///
/// If the whole network is selected, its layers are also listed in the cache, so that other commands find them by name.
/// A failure to save is reported in [`Spent::cache_failure`](crate::Spent::cache_failure).
///
/// # Errors
/// The errors of [`Selection::kernels`] and [`survey`]. Completed measurements are in the cache.
///
/// # Panics
/// If `backends` is empty.
pub fn profile(
    selection: &Selection,
    scope: &Scope,
    backends: &mut [Box<dyn Backend>],
    env: &Env<'_>,
) -> Result<Survey, Error> {
    let kernels = selection.kernels()?;
    let problems: Vec<Problem> = distinct(&kernels).into_iter().map(|(problem, _)| problem).collect();
    let failure = list(selection, &kernels, env).err().map(|error| error.chain());
    let mut found = survey(&problems, scope, backends, env)?;
    found.spent.cache_failure = failure.or(found.spent.cache_failure);
    Ok(found)
}

/// Lists the layers in the cache if the whole network is selected.
fn list(selection: &Selection, kernels: &[Kernel], env: &Env<'_>) -> Result<(), Error> {
    match env.cache {
        Some(cache) if selection.is_whole() => cache.keep_network(selection.model.name(), selection.batch, kernels),
        _ => Ok(()),
    }
}
