//! Plans of recorded steps.

use pyo3::prelude::*;
use tightfit_core::plan::step::StepFile;
use tightfit_core::plan::{CostModel, Options, Policy, plan};
use tightfit_core::{Bytes, Nanos};

use crate::interrupt::interruptible;

/// The plan of a step file's text under a budget in bytes, as the JSON of a plan file; none if none is found. Without `seconds` the planner does a
/// fixed amount of work, which gives the same plan each time.
#[pyfunction]
pub fn plan_step(py: Python<'_>, step: &str, budget: u64, seconds: Option<f64>) -> PyResult<Option<String>> {
    interruptible(py, |_| {
        let StepFile { step, machine } = StepFile::from_json(step)?;
        let host_budget = machine.as_ref().and_then(|machine| machine.host_bytes).unwrap_or(Bytes::UNLIMITED);
        let costs = machine.map_or_else(CostModel::cpu, |machine| machine.costs());
        let plan_time = seconds.map(|seconds| Nanos::from_micros(1e6 * seconds));
        let options =
            Options { policy: Policy::Optimal, budget: Bytes(budget), host_budget, plan_time, ..Options::default() };
        match plan(&step, &costs, &options) {
            Err(error) if error.is_over_limit() => Ok(None),
            planned => planned?.to_step_json().map(Some),
        }
    })
}
