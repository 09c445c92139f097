//! Measures one convolution's candidates, as `tightfit profile` does for one kernel.

use std::sync::atomic::AtomicBool;

use pyo3::prelude::*;
use serde_json::json;
use tightfit_conv::optimize::front;
use tightfit_conv::{Candidate, Problem};
use tightfit_network::Kernel;
use tightfit_profile::survey::{Scope, survey};
use tightfit_profile::{Model, Recording, Selection};
use tightfit_report::svg;
use tightfit_units::{Bytes, Error};

use crate::device::{self, Opened};
use crate::interrupt::interruptible;
use crate::profile::Recordings;

/// Python's words for a measurement.
#[derive(FromPyObject)]
pub struct Words {
    /// A problem's line, or else a network.
    #[pyo3(item)]
    what: String,
    #[pyo3(item)]
    layer: Option<String>,
    #[pyo3(item)]
    operation: String,
    #[pyo3(item)]
    batch: Option<usize>,
    #[pyo3(item)]
    workspace: u64,
    #[pyo3(item)]
    sizes: String,
    #[pyo3(item)]
    divide: String,
    #[pyo3(item)]
    types: String,
    #[pyo3(item)]
    layout: String,
    #[pyo3(item)]
    deterministic: bool,
    #[pyo3(item)]
    exact_class: bool,
    #[pyo3(item)]
    on: device::Words,
}

/// The candidates of one convolution as JSON, and the picture of its front as SVG.
#[pyfunction]
pub fn measure(py: Python<'_>, recordings: Option<&Recordings>, words: Words) -> PyResult<(String, String)> {
    let recordings = recordings.map(|recordings| &recordings.0[..]);
    interruptible(py, |stop| words.measure(recordings, stop))
}

impl Words {
    fn measure(&self, recordings: Option<&[Recording]>, stop: &AtomicBool) -> Result<(String, String), Error> {
        let Kernel { layer, problem } = self.kernel(recordings)?;
        let mut opened = self.on.open(recordings)?;
        let limit = Bytes(self.workspace);
        let scope = Scope {
            divide: self.divide.parse()?,
            // Every algorithm on the whole mini-batch as well, for all sizes.
            baseline: Some(limit),
            deterministic: self.deterministic,
            exact_class: self.exact_class,
            ..Scope::new(self.sizes.parse()?, vec![limit])
        };
        opened.check_memory(&[problem], &scope, Bytes::ZERO, stop)?;
        let device = opened.device().clone();
        let Opened { backends, cache, .. } = &mut opened;
        let mut found = survey(&[problem], &scope, backends, &Opened::env(cache, stop))?;
        let found_of = found.candidates.remove(&problem);
        let (mut candidates, cost) = found_of.map_or_else(Default::default, |of| (of.candidates, of.cost));
        candidates.sort_by(|a, b| (b.micro_batch, a.time, &a.algorithm).cmp(&(a.micro_batch, b.time, &b.algorithm)));
        // Without a front there is nothing to draw, but still something to list.
        let points = front(&problem, &candidates, limit, cost).unwrap_or_default();
        let title = format!(
            "{layer} {}, mini-batch {}, {}, {}",
            problem.operation(),
            problem.batch(),
            problem.types(),
            device.name
        );
        let candidate = |of: &Candidate| {
            json!({
                "micro_batch": of.micro_batch, "algorithm": of.algorithm.name(), "time_us": of.time.as_micros(),
                "workspace_bytes": of.workspace,
            })
        };
        let spent = &found.spent;
        let document = json!({
            "problem": problem.to_string(), "layer": layer, "operation": problem.operation(), "batch": problem.batch(),
            "types": problem.types(), "layout": problem.layout(),
            "backend": device.backend, "device": device.name, "library": device.library, "threads": device.threads,
            "workspace_limit_bytes": Some(limit).filter(|limit| *limit != Bytes::UNLIMITED),
            "candidates": candidates.iter().map(candidate).collect::<Vec<_>>(),
            "measured": spent.measured, "cached": spent.cached, "measuring_us": spent.time.as_micros(),
            "skipped": spent.skipped.iter().map(|of| json!({
                "problem": of.problem.to_string(), "algorithm": of.algorithm.name(), "reason": of.reason,
            })).collect::<Vec<_>>(),
            "cache": cache.as_ref().map(|cache| cache.path().display().to_string()),
            "cache_failure": spent.cache_failure,
        });
        Ok((document.to_string(), svg::front(&title, &points)))
    }

    /// The convolution, with the layer's name, or `convolution` for a problem's line.
    fn kernel(&self, recordings: Option<&[Recording]>) -> Result<Kernel, Error> {
        let Some(layer) = &self.layer else {
            let problem: Problem = self.what.parse()?;
            return Ok(Kernel { layer: "convolution".to_owned(), problem });
        };
        let selection = Selection {
            model: Model::find(&self.what, recordings.unwrap_or_default())?,
            batch: self.batch,
            operations: vec![self.operation.parse()?],
            layers: vec![layer.clone()],
            types: self.types.parse()?,
            layout: self.layout.parse()?,
        };
        let mut kernels = selection.kernels()?;
        kernels.truncate(1);
        kernels.pop().ok_or_else(|| Error::NoConvolutions { network: self.what.clone() })
    }
}
