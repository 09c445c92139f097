//! Uneven mini-batches for mixed devices, and the training steps that they are computed from.

use std::path::PathBuf;

use pyo3::prelude::*;
use tightfit_conv::{Algorithm, Device, Measurement, optimize};
use tightfit_profile::mixed::{StepOptions, split_network};
use tightfit_profile::{Cache, Model, step_name};
use tightfit_units::{Bytes, Nanos};

use crate::failure::{bad_input, raise};
use crate::interrupt::interruptible;
use crate::profile::Recordings;

/// Python's words for the options of a split.
#[derive(FromPyObject)]
pub struct Words {
    #[pyo3(item)]
    network: String,
    #[pyo3(item)]
    batch: usize,
    #[pyo3(item)]
    devices: Vec<String>,
    #[pyo3(item)]
    workspace: u64,
    #[pyo3(item)]
    sizes: String,
    #[pyo3(item)]
    types: String,
    #[pyo3(item)]
    layout: String,
    #[pyo3(item)]
    multiple_of: usize,
    #[pyo3(item)]
    memory: Vec<u64>,
    #[pyo3(item)]
    rest_us: f64,
}

/// The split of a network's mini-batch over named devices, as the command's JSON.
#[pyfunction]
pub fn split(py: Python<'_>, recordings: &Recordings, words: Words) -> PyResult<String> {
    let model = Model::find(&words.network, &recordings.0).map_err(raise)?;
    let options = StepOptions {
        types: words.types.parse().map_err(raise)?,
        layout: words.layout.parse().map_err(raise)?,
        sizes: words.sizes.parse().map_err(raise)?,
        workspace: Bytes(words.workspace),
        rest: time(words.rest_us)?,
        multiple_of: words.multiple_of,
        memory: Bytes::UNLIMITED,
    };
    let memory: Vec<Bytes> = words.memory.iter().copied().map(Bytes).collect();
    interruptible(py, |stop| {
        let found = split_network(&recordings.0, &words.devices, &model, words.batch, &options, &memory, stop)?;
        Ok(found.json())
    })
}

/// The exact split for times given as (batch, microseconds) of each device: batches, and the slowest device's time.
#[pyfunction]
pub fn split_times(py: Python<'_>, times: Vec<Vec<(usize, f64)>>, batch: usize) -> PyResult<(Vec<usize>, f64)> {
    let device = |entries: &Vec<(usize, f64)>| -> PyResult<Vec<(usize, Nanos)>> {
        entries.iter().map(|&(batch, us)| Ok((batch, time(us)?))).collect()
    };
    let times: Vec<_> = times.iter().map(device).collect::<PyResult<_>>()?;
    let found = interruptible(py, |stop| optimize::split(&times, batch, stop))?;
    Ok((found.batches, found.time.as_micros()))
}

/// Keeps measured training steps, each (batch, microseconds, bytes of memory, repeats), in a cache.
#[pyfunction]
pub fn record_steps(
    py: Python<'_>,
    cache: PathBuf,
    device: (String, String, String),
    network: &str,
    types: &str,
    steps: Vec<(usize, f64, u64, u32)>,
) -> PyResult<()> {
    let (backend, name, library) = device;
    let device = Device { backend, name, library, threads: 0 };
    let step = |&(micro_batch, us, memory, repeats): &(usize, f64, u64, u32)| {
        Ok(Measurement {
            repeats,
            ..Measurement::once(Algorithm::new("training-step"), micro_batch, time(us)?, Bytes(memory))
        })
    };
    let steps: Vec<Measurement> = steps.iter().map(step).collect::<PyResult<_>>()?;
    let name = step_name(network, types.parse().map_err(raise)?);
    interruptible(py, |_| Cache::open(&cache)?.keep_all(&device, &name, &steps))
}

/// The longest time that is taken: a hundred days.
const MOST_MICROS: f64 = 8.64e12;

fn time(us: f64) -> PyResult<Nanos> {
    if (0.0..=MOST_MICROS).contains(&us) {
        Ok(Nanos::from_micros(us))
    } else {
        Err(bad_input(format!("{us}: not a time from 0 to {MOST_MICROS:e} µs")))
    }
}
