//! Networks and their measurements, as JSON.

use std::ffi::CString;
use std::path::{Path, PathBuf};

use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde_json::{Value, json};
use tightfit_network::{LayerKind, Network, names};
use tightfit_profile::{Cache, Recording};
use tightfit_units::Bytes;

use crate::failure::raise;
use crate::interrupt::interruptible;

/// The measurements of one or more files, one recording a device.
#[pyclass(frozen, module = "tightfit._native")]
pub struct Recordings(pub Vec<Recording>);

/// A function and its arguments, which unpickling calls.
type Reduced<'py> = (Bound<'py, PyAny>, (Vec<Bound<'py, PyBytes>>,));

#[pymethods]
impl Recordings {
    /// Reads caches (`.db`) and recorded profiles (anything else).
    #[new]
    fn open(py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Recordings> {
        interruptible(py, |_| {
            let mut all = Vec::new();
            for path in &paths {
                all.extend(read(path)?);
            }
            Ok(Recordings(Recording::by_device(all)))
        })
    }

    /// How a copy is made, in this process or another: from the lines of a profile, each recording by itself.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let parts = interruptible(py, |_| {
            self.0
                .iter()
                .map(|recording| Recording::to_bytes(std::slice::from_ref(recording)))
                .collect::<Result<Vec<_>, _>>()
        })?;
        let restore = py.import("tightfit._native")?.getattr("restore_recordings")?;
        Ok((restore, (parts.iter().map(|part| PyBytes::new(py, part)).collect(),)))
    }

    /// Devices, as a JSON list of objects.
    fn devices(&self) -> String {
        let object = |recording: &Recording| {
            let device = &recording.device;
            let (problems, measurements) =
                recording.measurements().fold((0, 0), |(problems, all), (_, some)| (problems + 1, all + some.len()));
            json!({
                "backend": device.backend, "name": device.name, "library": device.library, "threads": device.threads,
                "problems": problems, "measurements": measurements,
            })
        };
        Value::from_iter(self.0.iter().map(object)).to_string()
    }

    /// Layers of the networks that were profiled, as a JSON list of objects.
    fn layers(&self) -> String {
        let layers = Recording::all_networks(&self.0).into_iter().flat_map(|network| {
            network.layers.iter().map(|(layer, problem, mini_batch)| {
                json!({
                    "network": network.name, "batch": network.owner.batch().unwrap_or(0), "layer": layer, "problem": problem,
                    "mini_batch": mini_batch,
                })
            })
        });
        Value::from_iter(layers).to_string()
    }

    /// Measurements, as a JSON list of objects; of one device only, where a part of its name is given.
    fn rows(&self, py: Python<'_>, device: Option<&str>) -> PyResult<String> {
        let recordings = match device {
            Some(name) => Recording::named(&self.0, name).map_err(raise)?,
            None => self.0.iter().collect(),
        };
        interruptible(py, |_| {
            let rows = recordings.iter().flat_map(|&recording| {
                recording.measurements().flat_map(move |(problem, measurements)| {
                    measurements.into_iter().map(move |m| {
                        json!({
                            "device": recording.device.name,
                            "library": recording.device.library,
                            "problem": problem,
                            "algorithm": m.algorithm.name(),
                            "micro_batch": m.micro_batch,
                            "time_us": m.time.as_micros(),
                            "single_time_us": m.single.map(|time| time.as_micros()),
                            "workspace_bytes": m.workspace,
                            "spread": m.spread,
                            "repeats": m.repeats,
                            "notes": m.notes.to_string(),
                        })
                    })
                })
            });
            Ok(Value::from_iter(rows).to_string())
        })
    }
}

/// Restores pickled [`Recordings`].
#[pyfunction]
pub fn restore_recordings(py: Python<'_>, parts: Vec<Vec<u8>>) -> PyResult<Recordings> {
    interruptible(py, |_| {
        let each = parts.iter().map(|part| Recording::from_bytes(part)).collect::<Result<Vec<_>, _>>()?;
        Ok(Recordings(each.into_iter().flatten().collect()))
    })
}

/// The cache that the command uses, or `None` if the command uses none.
#[pyfunction]
pub fn default_cache() -> Option<PathBuf> {
    Cache::default_path(|name| std::env::var_os(name))
}

fn read(path: &Path) -> Result<Vec<Recording>, tightfit_units::Error> {
    if path.extension().is_some_and(|extension| extension == "db") {
        Cache::open_read_only(path)?.recordings()
    } else {
        Recording::read(path)
    }
}

/// Merges caches and recorded profiles into one cache, and creates the cache if it does not exist. Returns the number of
/// measurements.
#[pyfunction]
pub fn merge(py: Python<'_>, cache: PathBuf, files: Vec<PathBuf>) -> PyResult<usize> {
    interruptible(py, |_| {
        let mut recordings = Vec::new();
        for file in &files {
            recordings.extend(read(file)?);
        }
        let cache = Cache::open(&cache)?;
        recordings.iter().try_fold(0, |taken, recording| Ok(taken + cache.import(recording)?.measurements))
    })
}

/// The built-in networks, as a JSON list of objects.
#[pyfunction]
pub fn networks(py: Python<'_>) -> PyResult<String> {
    interruptible(py, |_| {
        let object = |(name, what): (&str, &str)| {
            let network = Network::open(name)?;
            Ok::<_, tightfit_units::Error>(json!({
                "network": name, "description": what, "convolutions": network.convolutions().count(),
                "parameters": network.parameters(), "multiply_adds": network.multiply_adds(),
            }))
        };
        Ok(Value::from(names().map(object).collect::<Result<Vec<_>, _>>()?).to_string())
    })
}

/// The layers of a built-in network or a layer list, as a JSON list of objects.
#[pyfunction]
pub fn network(name: &str) -> PyResult<String> {
    let network = tightfit_onnx::open(name).map_err(raise)?;
    let object = |layer: &tightfit_network::Layer| {
        let convolution = match &layer.kind {
            LayerKind::Convolution { convolution, .. } => Some(convolution.to_string()),
            _ => None,
        };
        json!({
            "layer": layer.name, "kind": layer.kind.name(), "channels": layer.shape.channels(),
            "extents": layer.shape.extents(), "parameters": layer.parameters, "convolution": convolution,
        })
    };
    Ok(Value::from_iter(network.layers().iter().map(object)).to_string())
}

/// Bytes of a size in words, such as `64MiB`. Warns of a small number without a unit.
#[pyfunction]
pub fn parse_size(python: Python<'_>, text: &str) -> PyResult<u64> {
    if let Some(advice) = Bytes::missing_unit(text) {
        let advice = CString::new(advice)?;
        PyErr::warn(python, &python.get_type::<PyUserWarning>(), &advice, 3)?;
    }
    Ok(text.parse::<Bytes>().map_err(raise)?.0)
}
