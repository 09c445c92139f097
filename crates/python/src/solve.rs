//! Optimizing a network's convolutions from what is recorded: the command's `optimize --backend replay:FILE`.

use std::sync::atomic::AtomicBool;

use pyo3::prelude::*;
use serde_json::{Value, json};
use tightfit_core::answer::{Chosen, choose};
use tightfit_core::answer::{Optimized, Profiling};
use tightfit_core::candidate::Limit;
use tightfit_core::network::{Kernel, Network, distinct};
use tightfit_core::profile::{Recording, Replay};
use tightfit_core::report;
use tightfit_core::survey::{Policy, Scope, Silent, Survey, survey};
use tightfit_core::{Backend, Bytes, Configuration, Device, Error, Layout, Operation, Problem, Types};

use crate::failure::{bad_input, raise};
use crate::interrupt::interruptible;
use crate::profile::Recordings;

/// What to optimize, as read from Python's words.
struct Question {
    network: String,
    batch: Option<usize>,
    kernels: Vec<Kernel>,
    /// Which of them may run side by side.
    groups: Vec<Vec<usize>>,
    types: Types,
    layout: Layout,
    policy: Policy,
    limit: Limit,
    deterministic: bool,
    exact_class: bool,
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
    policy: String,
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
}

impl Question {
    fn read(recordings: &Recordings, words: Words) -> PyResult<Question> {
        let (types, layout) = (words.types.parse().map_err(raise)?, words.layout.parse().map_err(raise)?);
        let operations: Result<Vec<Operation>, Error> = words.operations.iter().map(|word| word.parse()).collect();
        let network = Network::open(&words.network).map_err(raise)?;
        let kernels = network.kernels(words.batch, &operations.map_err(raise)?, types, layout).map_err(raise)?;
        let known = |name: &String| kernels.iter().any(|kernel| kernel.layer == *name);
        if let Some(name) = words.layers.iter().find(|name| !known(name)) {
            return Err(bad_input(format!("{} has no convolution of the name `{name}`", network.name())));
        }
        let selected = |kernel: &Kernel| words.layers.is_empty() || words.layers.contains(&kernel.layer);
        let kernels: Vec<Kernel> = kernels.into_iter().filter(selected).collect();
        if kernels.is_empty() {
            return Err(bad_input(format!("{} has no convolutions to work on", network.name())));
        }
        let bytes = Bytes(words.bytes);
        let limit = match words.bound.as_str() {
            "workspace" => Limit::PerKernel(bytes),
            "total_workspace" => Limit::Total(bytes),
            "one_workspace" => Limit::One(bytes),
            other => return Err(bad_input(format!("`{other}` bounds nothing"))),
        };
        let devices = match &words.device {
            Some(name) => Recording::named(&recordings.0, name).map_err(raise)?,
            None => recordings.0.iter().collect(),
        };
        Ok(Question {
            groups: network.concurrent(&kernels),
            network: network.name().to_owned(),
            batch: words.batch,
            kernels,
            types,
            layout,
            policy: words.policy.parse().map_err(raise)?,
            limit,
            deterministic: words.deterministic,
            exact_class: words.exact_class,
            replay: Replay::of(devices.into_iter().cloned()).map_err(raise)?,
        })
    }

    /// The device, what was found of the kernels, and what is chosen from it.
    fn answer(&self, stop: &AtomicBool) -> Result<(Device, Survey, Chosen), Error> {
        let problems: Vec<Problem> = distinct(&self.kernels).into_iter().map(|(problem, _)| problem).collect();
        let limit = self.limit;
        let scope = Scope {
            policy: self.policy,
            limits: limit.ladder(),
            baseline: Some(limit.bytes()),
            deterministic: self.deterministic,
            exact_class: self.exact_class,
            cache: None,
            stop,
        };
        let mut backends: Vec<Box<dyn Backend>> = vec![Box::new(self.replay.clone())];
        let found = survey(&problems, &scope, &mut backends, &Silent)?;
        let chosen = choose(&self.kernels, &found.candidates, limit)?;
        Ok((self.replay.device().clone(), found, chosen))
    }
}

/// The network's kernels, each with its configuration, as the command's JSON.
#[pyfunction]
pub fn optimize(py: Python<'_>, recordings: &Recordings, words: Words) -> PyResult<String> {
    let question = Question::read(recordings, words)?;
    interruptible(py, |stop| {
        let (device, found, chosen) = question.answer(stop)?;
        Ok(report::json(&Optimized {
            network: question.network.clone(),
            batch: question.batch,
            device,
            types: question.types,
            layout: question.layout,
            policy: question.policy.name().to_owned(),
            limit: question.limit,
            kernels: chosen.kernels,
            gap: chosen.gap,
            stop: chosen.stop,
            profiling: Profiling {
                time: found.spent.time,
                kernel_time: found.spent.kernel_time,
                measurements: found.spent.measured + found.spent.cached,
            },
            least_workspace: chosen.least_workspace,
            groups: question.groups.clone(),
            overlapped: Vec::new(),
        }))
    })
}

/// The Pareto front of every selected kernel, as a JSON list of objects.
#[pyfunction]
pub fn front(py: Python<'_>, recordings: &Recordings, words: Words) -> PyResult<String> {
    let question = Question::read(recordings, words)?;
    interruptible(py, |stop| {
        let (_, _, chosen) = question.answer(stop)?;
        let part = |part: &tightfit_core::Candidate| {
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
        let kernels = chosen.kernels.iter().map(|kernel| {
            json!({
                "layer": kernel.layer, "operation": kernel.problem.operation(),
                "points": kernel.front.iter().flatten().map(point).collect::<Vec<_>>(),
            })
        });
        Ok(Value::from_iter(kernels).to_string())
    })
}
