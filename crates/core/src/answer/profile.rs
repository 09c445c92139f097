//! The journey from a network to the measurements of its convolutions.

use crate::network::{Kernel, Selection, distinct};
use crate::survey::{Env, Scope, Survey, survey};
use crate::{Backend, Error, Problem};

/// Measures the selected convolutions, each distinct problem once.
///
/// A network that is selected whole is also listed in the cache, so that other journeys find its layers by name. What
/// cannot be saved is reported in [`Spent::cache_failure`](crate::profile::Spent::cache_failure).
///
/// # Errors
/// Those of [`Selection::kernels`] and of [`survey`]; what was measured is in the cache.
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

/// Lists the layers of a network that is selected whole.
fn list(selection: &Selection, kernels: &[Kernel], env: &Env<'_>) -> Result<(), Error> {
    match env.cache {
        Some(cache) if selection.is_whole() => cache.keep_network(selection.network.name(), selection.batch, kernels),
        _ => Ok(()),
    }
}
