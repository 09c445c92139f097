//! Plans of networks and of recorded steps, computed as `tightfit plan` does.

use pyo3::prelude::*;
use tightfit_plan::step::StepFile;
use tightfit_plan::{self as planner, CostModel, NamedMachine, Options, Policy, Stop};
use tightfit_units::{Bytes, Nanos};

use crate::failure::bad_input;
use crate::interrupt::interruptible;
use crate::planned::Planned;
use crate::prepare::Words;
use crate::profile::Recordings;

/// The plan of a network or a recorded step under a budget. Convolutions are measured, answered from recordings, or
/// assumed.
#[pyfunction]
pub fn plan(py: Python<'_>, recordings: Option<&Recordings>, words: Words) -> PyResult<Planned> {
    if words.plan_time.is_some_and(|seconds| !(0.0..=1e6).contains(&seconds)) {
        return Err(bad_input("plan_time is in seconds, from 0 to 1000000"));
    }
    let recordings = recordings.map(|recordings| &recordings.0[..]);
    let prepared = interruptible(py, |stop| words.prepare(recordings, stop))?;
    let (of, freeze) = (&prepared.plan, words.freeze);
    let mut plan =
        interruptible(py, |stop| planner::plan_until(&of.step, &of.costs, &of.options, Stop::WithNothing(stop)))?;
    plan.frozen = freeze;
    Ok(Planned { plan, device: prepared.plan.device, network: prepared.network, notes: prepared.notes })
}

/// A card by its name: the memory that a plan may take, or null for any, and its rates in bytes and operations per second,
/// as JSON.
#[pyfunction]
pub fn card(name: &str) -> PyResult<String> {
    let card = NamedMachine::named(name).map_err(crate::failure::raise)?;
    let rates = [
        ("to_host", card.to_host),
        ("to_device", card.to_device),
        ("memory", card.memory),
        ("f32", card.f32),
        ("tf32", card.tf32),
        ("half", card.half),
    ];
    let mut known: serde_json::Map<String, serde_json::Value> =
        rates.into_iter().map(|(name, figure)| (name.to_owned(), figure.value.into())).collect();
    known.insert("room".to_owned(), card.room().map(|room| room.0).into());
    Ok(serde_json::Value::Object(known).to_string())
}

/// The time that checkpoints add to the step of a step file's text under shares of plain, as shares; `None` where none fit.
#[pyfunction]
pub fn checkpoints(py: Python<'_>, step: String, shares: Vec<f64>) -> PyResult<Vec<Option<f64>>> {
    interruptible(py, |stop| {
        let StepFile { step, machine } = StepFile::from_json(&step)?;
        let costs = machine.map_or_else(CostModel::cpu, |machine| machine.costs());
        let options = Options { divide: false, ..Options::default() };
        planner::checkpoints(&step, &costs, &options, &shares, Stop::WithNothing(stop))
    })
}

/// The same for what [`plan`] plans: a network, or the step of a file.
#[pyfunction]
pub fn checkpoints_of(
    py: Python<'_>,
    recordings: Option<&Recordings>,
    words: Words,
    shares: Vec<f64>,
) -> PyResult<Vec<Option<f64>>> {
    let recordings = recordings.map(|recordings| &recordings.0[..]);
    interruptible(py, |stop| {
        let of = words.prepare(recordings, stop)?.plan;
        planner::checkpoints(&of.step, &of.costs, &of.options, &shares, Stop::WithNothing(stop))
    })
}

/// The plan of a step file's text under a budget in bytes, as the JSON of a plan file, or `None` if none is found. Programs
/// run whole operations, so none runs in parts of the mini-batch. Without `seconds` the planner does a fixed amount of
/// work, which gives the same plan each time.
#[pyfunction]
pub fn plan_step(py: Python<'_>, step: String, budget: u64, seconds: Option<f64>) -> PyResult<Option<String>> {
    interruptible(py, |stop| {
        let StepFile { step, machine } = StepFile::from_json(&step)?;
        let host_budget = machine.as_ref().and_then(|machine| machine.host_bytes).unwrap_or(Bytes::UNLIMITED);
        let costs = machine.map_or_else(CostModel::cpu, |machine| machine.costs());
        let plan_time = seconds.map(|seconds| Nanos::from_micros(1e6 * seconds));
        let (policy, budget) = (Policy::Optimal, Bytes(budget));
        let options = Options { policy, budget, host_budget, plan_time, divide: false, ..Options::default() };
        match planner::plan_until(&step, &costs, &options, Stop::WithNothing(stop)) {
            Err(error) if error.is_over_limit() => Ok(None),
            planned => planned?.to_step_json().map(Some),
        }
    })
}
