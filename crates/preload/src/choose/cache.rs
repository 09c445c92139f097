//! The cache of this process, opened on first use.

use std::sync::OnceLock;

use tightfit_profile::Cache;
use tightfit_units::Error;

use super::unsaved::IN_TRAINING;
use crate::log::warn;
use crate::settings::{Settings, Tune};

/// The cache file.
#[derive(Default)]
pub struct CacheFile {
    opened: OnceLock<Option<Cache>>,
    has_warned: OnceLock<()>,
}

impl CacheFile {
    /// The cache, or `None` if the settings name none or it cannot be opened, which is reported once.
    pub fn open(&self, settings: &Settings, tune: Tune) -> Option<&Cache> {
        self.opened
            .get_or_init(|| {
                let path = settings.cache.as_ref()?;
                let looked_up = |error| match tune {
                    // A read-only cache serves too: only the layer names are not saved.
                    Tune::Cached => Cache::open_read_only(path).map_err(|_| error),
                    _ => Err(error),
                };
                let opened = Cache::open(path).or_else(looked_up);
                let cache = opened.map_err(|error| warn!("continuing without a cache: {}", error.chain())).ok()?;
                if tune == Tune::Measure {
                    cache.set_patience(IN_TRAINING);
                }
                Some(cache)
            })
            .as_ref()
    }

    /// The result of reading the cache, or `None` if that failed, for example on a damaged large file, which is reported
    /// once.
    pub fn read<T>(&self, found: Result<T, Error>) -> Option<T> {
        let warn_once = |error: Error| {
            *self.has_warned.get_or_init(|| warn!("ignoring unreadable cache entries: {}", error.chain()))
        };
        found.map_err(warn_once).ok()
    }
}
