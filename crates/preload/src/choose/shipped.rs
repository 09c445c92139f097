//! Decisions that are used if the cache has none: the store that ships with the library, or a file that the user names
//! in its place.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tightfit_conv::Device;
use tightfit_profile::{Decision, DecisionKey, Shipped};

use crate::lock::lock;
use crate::log::{trace, warn};
use crate::settings::{self, Settings};

/// The store of each device, read when the cache first lacks an answer for it.
#[derive(Default)]
pub(super) struct Stores(Mutex<HashMap<Device, Option<Arc<Shipped>>>>);

impl Stores {
    /// The decision about a question, or `None` without one, or if the settings want none.
    pub fn decision(&self, settings: &Settings, device: &Device, key: &DecisionKey) -> Option<Decision> {
        if settings.shipped == settings::Shipped::None {
            return None;
        }
        let store = lock(&self.0).entry(device.clone()).or_insert_with(|| read(settings, device)).clone();
        store?.decision(key).cloned()
    }
}

fn read(settings: &Settings, device: &Device) -> Option<Arc<Shipped>> {
    let store = match &settings.shipped {
        settings::Shipped::None => return None,
        settings::Shipped::Embedded => {
            let store = Shipped::embedded(device);
            store.map_err(|error| trace!("could not read the shipped recordings: {}", error.chain())).ok()?
        }
        settings::Shipped::File(path) => {
            let store = Shipped::read(path, device);
            store.map_err(|error| warn!("continuing without shipped recordings: {}", error.chain())).ok()?
        }
    };
    trace!("{device}: {} shipped decisions", store.count());
    Some(Arc::new(store))
}
