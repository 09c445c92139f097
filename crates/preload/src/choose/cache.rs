//! The cache of this process, opened on first use.

use std::sync::{Once, OnceLock};

use tightfit_core::Error;
use tightfit_core::profile::Cache;

use crate::log::say;
use crate::settings::{Settings, Tune};

/// The cache; none if the settings name none or it cannot be opened, which is reported once.
pub fn cache(settings: &Settings) -> Option<&'static Cache> {
    static CACHE: OnceLock<Option<Cache>> = OnceLock::new();
    CACHE
        .get_or_init(|| {
            let path = settings.cache.as_ref()?;
            let looked_up = |error| match settings.tune {
                // A read-only cache serves too: only the layer names are not saved.
                Tune::Cached => Cache::open_read_only(path).map_err(|_| error),
                _ => Err(error),
            };
            let opened = Cache::open(path).or_else(looked_up);
            opened.map_err(|error| say!("continuing without a cache: {}", error.chain())).ok()
        })
        .as_ref()
}

/// The result of reading the cache; none if that failed, for example on a damaged large file, which is reported once.
pub(super) fn read<T>(found: Result<T, Error>) -> Option<T> {
    static SAID: Once = Once::new();
    let say_once = |error: Error| SAID.call_once(|| say!("ignoring unreadable cache entries: {}", error.chain()));
    found.map_err(say_once).ok()
}
