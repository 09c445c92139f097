//! Optimizes a network's convolutions from recordings: the command's `optimize --backend replay:FILE`.

use std::sync::atomic::AtomicBool;

use pyo3::prelude::*;
use serde_json::{Value, json};
use tightfit_conv::candidate::Limit;
use tightfit_conv::{Backend, Configuration, Operation};
use tightfit_profile::answer::{self, Optimized, OptimizedKernel, Request};
use tightfit_profile::survey::Env;
use tightfit_profile::{Model, Recording, Replay, Selection};
use tightfit_report::{self as report, svg};
use tightfit_units::{Bytes, Error};

use crate::failure::raise;
use crate::interrupt::interruptible;
use crate::profile::Recordings;

/// A request to optimize, and the recordings that answer it.
struct Question {
    request: Request,
    replay: Replay,
}

/// Python's words for a [`Question`].
#[derive(FromPyObject)]
pub struct Words {
    #[pyo3(item)]
    network: String,
    #[pyo3(item)]
    batch: Option<usize>,
    #[pyo3(item)]
    operations: Vec<String>,
    #[pyo3(item)]
    layers: Vec<String>,
    #[pyo3(item)]
    types: String,
    #[pyo3(item)]
    layout: String,
    #[pyo3(item)]
    sizes: String,
    #[pyo3(item)]
    bound: String,
    #[pyo3(item)]
    bytes: u64,
    #[pyo3(item)]
    device: Option<String>,
    #[pyo3(item)]
    deterministic: bool,
    #[pyo3(item)]
    exact_class: bool,
    #[pyo3(item)]
    divide: String,
}

impl Words {
    /// The request. A name that is not a network's names a program among the recordings.
    pub fn request(&self, recordings: &[Recording]) -> Result<Request, Error> {
        let operations: Result<Vec<Operation>, Error> = self.operations.iter().map(|word| word.parse()).collect();
        let selection = Selection {
            model: Model::find(&self.network, recordings)?,
            batch: self.batch,
            operations: operations?,
            layers: self.layers.clone(),
            types: self.types.parse()?,
            layout: self.layout.parse()?,
        };
        let bytes = Bytes(self.bytes);
        let limit = match self.bound.as_str() {
            "workspace" => Limit::PerKernel(bytes),
            "total_workspace" => Limit::Total(bytes),
            "one_workspace" => Limit::One(bytes),
            other => return Err(Error::BadOption { what: format!("`{other}` bounds nothing") }),
        };
        Ok(Request {
            sizes: self.sizes.parse()?,
            divide: self.divide.parse()?,
            deterministic: self.deterministic,
            exact_class: self.exact_class,
            ..Request::new(selection, limit)
        })
    }
}

impl Question {
    fn read(recordings: &Recordings, words: &Words) -> Result<Question, Error> {
        let request = words.request(&recordings.0)?;
        let devices = match &words.device {
            Some(name) => Recording::named(&recordings.0, name)?,
            None => recordings.0.iter().collect(),
        };
        Ok(Question { request, replay: Replay::of(devices.into_iter().cloned())? })
    }

    fn answer(self, stop: &AtomicBool) -> Result<Optimized, Error> {
        let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(self.replay)];
        answer::optimize(&self.request, &mut backends, &Env { stop, ..Env::default() })
    }
}

/// The network's kernels, each with its configuration, as the command's JSON, and the picture that the command draws.
#[pyfunction]
pub fn optimize(py: Python<'_>, recordings: &Recordings, words: Words) -> PyResult<(String, String)> {
    let question = Question::read(recordings, &words).map_err(raise)?;
    interruptible(py, |stop| {
        let optimized = question.answer(stop)?;
        Ok((report::json(&optimized), picture(&optimized)))
    })
}

/// The picture that the command draws by default: the front of one kernel, the shares of a total, or the layers.
pub fn picture(optimized: &Optimized) -> String {
    let of = &optimized.network;
    match (&optimized.kernels[..], optimized.limit) {
        ([kernel], _) if kernel.front.is_some() => front_of(optimized, kernel),
        (_, Limit::Total(_)) => svg::allotment(&title(optimized, of), optimized),
        _ => svg::per_layer(&title(optimized, of), &[(&optimized.limit.bytes().to_string(), optimized)]),
    }
}

fn front_of(optimized: &Optimized, kernel: &OptimizedKernel) -> String {
    let of = format!("{} {}", kernel.layer, kernel.problem.operation());
    svg::front(&title(optimized, &of), kernel.front.as_deref().unwrap_or_default())
}

/// The title of a picture, as the command writes it.
fn title(optimized: &Optimized, of: &str) -> String {
    let batch = optimized.batch.map(|batch| format!(", mini-batch {batch}")).unwrap_or_default();
    format!("{of}{batch}, {}, {}", optimized.types, optimized.device.name)
}

/// The Pareto front of every selected kernel, as a JSON list of objects.
#[pyfunction]
pub fn front(py: Python<'_>, recordings: &Recordings, words: Words) -> PyResult<String> {
    let question = Question::read(recordings, &words).map_err(raise)?;
    interruptible(py, |stop| {
        let optimized = question.answer(stop)?;
        let part = |part: &tightfit_conv::Candidate| {
            json!({
                "micro_batch": part.micro_batch, "algorithm": part.algorithm.name(),
                "time_us": part.time.as_micros(), "workspace_bytes": part.workspace,
            })
        };
        let point = |point: &Configuration| {
            json!({
                "time_us": point.time().as_micros(), "workspace_bytes": point.workspace(),
                "configuration": point.parts().iter().map(part).collect::<Vec<_>>(),
            })
        };
        let kernels = optimized.kernels.iter().map(|kernel| {
            json!({
                "layer": kernel.layer, "operation": kernel.problem.operation(),
                "points": kernel.front.iter().flatten().map(point).collect::<Vec<_>>(),
                "batch": optimized.batch, "types": optimized.types, "device": optimized.device.name,
                "svg": front_of(&optimized, kernel),
            })
        });
        Ok(Value::from_iter(kernels).to_string())
    })
}
