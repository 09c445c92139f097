//! Limits that the program's calls set in place of the environment's settings, for all convolutions or for layers by name.
//!
//! ```text
//! environment      workspace=64MiB              sizes=fit    tune=measure
//! all                                           sizes=all
//! layer conv2      workspace=16MiB
//! conv2 goes by    workspace=16MiB              sizes=all    tune=measure      the most special one counts
//! ```

use std::collections::BTreeMap;

use tightfit_profile::survey::Sizes;
use tightfit_units::{Bytes, Error};

use crate::layer::Layer;
use crate::settings::{Limit, Settings, Terms, Tune};

/// The setting; none where a more general one holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Own {
    limit: Option<Limit>,
    sizes: Option<Sizes>,
    tune: Option<Tune>,
}

/// The settings of the program's calls so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    all: Own,
    layers: BTreeMap<String, Own>,
}

impl Limits {
    /// Whether any convolution has a limit in addition to the environment's.
    pub fn is_any(&self) -> bool {
        self.layers.values().chain([&self.all]).any(|own| own.limit.is_some())
    }

    /// The limit of a layer's convolutions, or `None` if nothing limits them.
    pub fn terms(&self, settings: &Settings, layer: Option<&str>) -> Option<Terms> {
        let layer = layer.and_then(|name| self.layers.get(name)).copied().unwrap_or_default();
        Some(Terms {
            limit: layer.limit.or(self.all.limit).or(settings.limit)?,
            sizes: layer.sizes.or(self.all.sizes).unwrap_or(settings.sizes),
            divide: settings.divide,
            tune: layer.tune.or(self.all.tune).unwrap_or(settings.tune),
            is_auto: false,
        })
    }

    /// The limit of a convolution whose own choice asks for this number of bytes and that these layers share: the terms
    /// of the first that has any, with the least limit of the same kind among all.
    pub fn shared_terms(&self, settings: &Settings, layers: &[Layer], own: Bytes) -> Option<Terms> {
        let mut all = layers.iter().filter_map(|layer| Some(self.terms(settings, layer.as_deref())?.of_choice(own)));
        let first = all.next()?;
        let limit = all.fold(first.limit, |least, Terms { limit, .. }| match (least, limit) {
            (Limit::PerKernel(one), Limit::PerKernel(other)) => Limit::PerKernel(one.min(other)),
            (Limit::Total(one), Limit::Total(other)) => Limit::Total(one.min(other)),
            (least, _) => least,
        });
        Some(Terms { limit, ..first })
    }

    /// These limits after a change, for all convolutions or for some layers.
    pub fn after(&self, change: &Change, layers: Option<&[String]>) -> Limits {
        let mut limits = self.clone();
        match layers {
            None => change.apply(&mut limits.all),
            Some(layers) => {
                for layer in layers {
                    change.apply(limits.layers.entry(layer.clone()).or_default());
                }
                limits.layers.retain(|_, own| *own != Own::default());
            }
        }
        limits
    }
}

/// The settings of a call. `None` keeps a setting, and `Some(None)` lets a more general one hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    limit: Option<Option<Limit>>,
    sizes: Option<Option<Sizes>>,
    tune: Option<Option<Tune>>,
}

impl Change {
    /// Reads `workspace=64MiB,sizes=all`.
    ///
    /// # Errors
    /// A sentence that names the fault and the allowed values.
    pub fn read(text: &str) -> Result<Change, String> {
        let mut change = Change::default();
        for word in text.split(',') {
            let Some((name, value)) = word.split_once('=').map(|(name, value)| (name.trim(), value.trim())) else {
                return Err(format!("{word:?} is not of the form name=value, such as workspace=64MiB"));
            };
            let is_default = value == "default";
            let size = |limit: fn(&str) -> Result<Limit, Error>| match is_default {
                true => Ok(None),
                false => limit(value).map(Some).map_err(|error| format!("{name} is {value:?}: {error}, or default")),
            };
            let is_first = match name {
                "workspace" => change.limit.replace(size(Limit::of_each)?).is_none(),
                "total-workspace" => change.limit.replace(size(|value| value.parse().map(Limit::Total))?).is_none(),
                "sizes" => {
                    let wrong = |error| format!("{name} is {value:?}: {error}, or default");
                    let sizes = if is_default { None } else { Some(value.parse().map_err(wrong)?) };
                    change.sizes.replace(sizes).is_none()
                }
                "tune" => {
                    let wrong = || format!("{name} is {value:?}; use measure, first, cached, heuristic or default");
                    let tune = if is_default { None } else { Some(Tune::named(value).ok_or_else(wrong)?) };
                    change.tune.replace(tune).is_none()
                }
                _ => {
                    return Err(format!("there is no setting {name:?}; use workspace, total-workspace, sizes or tune"));
                }
            };
            if !is_first {
                return Err(match name {
                    "workspace" | "total-workspace" => {
                        "the workspace is limited twice; give one of workspace and total-workspace".to_owned()
                    }
                    _ => format!("{name} is given twice"),
                });
            }
        }
        Ok(change)
    }

    /// Whether it sets a total, which only all convolutions together can have.
    pub fn is_of_total(&self) -> bool {
        matches!(self.limit, Some(Some(Limit::Total(_))))
    }

    fn apply(&self, own: &mut Own) {
        own.limit = self.limit.unwrap_or(own.limit);
        own.sizes = self.sizes.unwrap_or(own.sizes);
        own.tune = self.tune.unwrap_or(own.tune);
    }
}

#[cfg(test)]
mod tests {
    use tightfit_profile::survey::Divide;

    use super::*;

    fn settings(limit: Option<Limit>) -> Settings {
        Settings {
            limit,
            sizes: Sizes::Fit,
            divide: Divide::Both,
            tune: Tune::Measure,
            budget: tightfit_profile::survey::TuneBudget::default(),
            is_quiet: false,
            cache: None,
            shipped: crate::settings::Shipped::Embedded,
            devices: None,
            is_exact_class: false,
            is_deterministic: false,
            report: None,
        }
    }

    fn mib(bytes: u64) -> Limit {
        Limit::PerKernel(Bytes(bytes << 20))
    }

    #[test]
    fn the_most_special_setting_counts() {
        let settings = settings(Some(mib(64)));
        let set = |limits: Limits, text: &str, layer: Option<&str>| {
            let layers = layer.map(|layer| vec![layer.to_owned()]);
            limits.after(&Change::read(text).unwrap(), layers.as_deref())
        };
        let limits = set(Limits::default(), "workspace = 16 MiB, tune=cached", Some("conv2"));
        assert!(limits.is_any());
        let limits = set(limits, "sizes=all", None);
        let terms = |limits: &Limits, layer| {
            let Terms { limit, sizes, tune, .. } = limits.terms(&settings, layer).unwrap();
            (limit, sizes, tune)
        };
        assert_eq!(terms(&limits, Some("conv2")), (mib(16), Sizes::All, Tune::Cached));
        assert_eq!(terms(&limits, Some("conv3")), (mib(64), Sizes::All, Tune::Measure));
        let limits = set(limits, "workspace=32MiB", None);
        assert_eq!((terms(&limits, Some("conv2")).0, terms(&limits, None).0), (mib(16), mib(32)));
        let limits = set(limits, "workspace=default,tune=default", Some("conv2"));
        assert_eq!(terms(&limits, Some("conv2")), (mib(32), Sizes::All, Tune::Measure));
        assert_eq!(set(limits, "workspace=default,sizes=default", None), Limits::default());
    }

    #[test]
    fn layers_that_share_a_convolution_share_the_least_limit() {
        let settings = settings(None);
        let layers = [None, Some("a".to_owned()), Some("b".to_owned())];
        let own = Bytes::mib(8);
        let mut limits = Limits::default();
        assert_eq!(limits.shared_terms(&settings, &layers, own), None);
        for (layer, text) in [("a", "workspace=64MiB,sizes=all"), ("b", "workspace=16MiB")] {
            limits = limits.after(&Change::read(text).unwrap(), Some(&[layer.to_owned()]));
        }
        let shared = limits.shared_terms(&settings, &layers, own).unwrap();
        assert_eq!((shared.limit, shared.sizes), (mib(16), Sizes::All));
        // A total takes none of the program's memory, and is not compared with a limit.
        limits = limits.after(&Change::read("total-workspace=1MiB").unwrap(), None);
        assert_eq!(limits.shared_terms(&settings, &layers[1..], own).unwrap().limit, mib(16));
        assert_eq!(limits.shared_terms(&settings, &layers, own).unwrap().limit, Limit::Total(Bytes::mib(1)));
        // The workspace of the own choice is a limit like others.
        limits = limits.after(&Change::read("workspace=auto").unwrap(), None);
        assert_eq!(limits.shared_terms(&settings, &layers, own).unwrap().limit, mib(8));
        assert_eq!(limits.shared_terms(&settings, &layers, Bytes::mib(32)).unwrap().limit, mib(16));
    }

    #[test]
    fn a_wrong_setting_is_named_with_the_allowed_ones() {
        for (text, words) in [
            ("", &["\"\"", "name=value"][..]),
            ("64MiB", &["64MiB", "name=value"]),
            ("speed=3", &["speed", "workspace, total-workspace, sizes or tune"]),
            ("workspace=64 apples", &["workspace", "64 apples", "default"]),
            ("total-workspace=much", &["total-workspace", "much", "default"]),
            ("sizes=some", &["sizes", "some", "undivided", "power-of-two", "all", "fit", "default"]),
            ("tune=guess", &["tune", "guess", "measure, first, cached, heuristic or default"]),
            ("workspace=1MiB,total-workspace=1MiB", &["twice", "workspace and total-workspace"]),
            ("tune=cached,tune=measure", &["tune", "twice"]),
        ] {
            let wrong = Change::read(text).unwrap_err();
            assert!(words.iter().all(|word| wrong.contains(word)), "{text}: {wrong}");
        }
    }
}
