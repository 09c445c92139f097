//! The cache of this process, opened when something is first asked of it.

use std::sync::{Once, OnceLock};

use tightfit_core::Error;
use tightfit_core::profile::Cache;

use crate::log::say;
use crate::settings::{Settings, Tune};

/// The cache; none if the settings name none or it cannot be opened, which is said once.
pub fn cache(settings: &Settings) -> Option<&'static Cache> {
    static CACHE: OnceLock<Option<Cache>> = OnceLock::new();
    CACHE
        .get_or_init(|| {
            let path = settings.cache.as_ref()?;
            let looked_up = |error| match settings.tune {
                // All that is missing then is the names of the layers.
                Tune::Cached => Cache::open_read_only(path).map_err(|_| error),
                _ => Err(error),
            };
            let opened = Cache::open(path).or_else(looked_up);
            opened.map_err(|error| say!("going on without a cache: {}", error.chain())).ok()
        })
        .as_ref()
}

/// What was read in it; none if it could not be, as where a large file is damaged, which is said once.
pub(super) fn read<T>(found: Result<T, Error>) -> Option<T> {
    static SAID: Once = Once::new();
    let say_once =
        |error: Error| SAID.call_once(|| say!("going on without what cannot be read in the cache: {}", error.chain()));
    found.map_err(say_once).ok()
}
