//! A plan that Python holds, with its reports and files.

use std::path::PathBuf;

use pyo3::prelude::*;
use tightfit_conv::Device;
use tightfit_network::Network;
use tightfit_plan::Plan;
use tightfit_report::{Terminal, plan as report};
use tightfit_units::output;

use crate::failure::bad_input;
use crate::fates;
use crate::interrupt::interruptible;

/// A plan, the device that its times are of, and the network, unless it is of a recorded step.
#[pyclass(frozen, module = "tightfit._native")]
pub struct Planned {
    pub plan: Plan,
    pub device: Device,
    pub network: Option<Network>,
    /// Notes for the user about the result.
    pub notes: Vec<String>,
}

/// A function and its arguments, which unpickling calls.
type Reduced<'py> = (Bound<'py, PyAny>, (String, [String; 3], usize));

#[pymethods]
impl Planned {
    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    /// The command's JSON.
    fn json(&self) -> String {
        report::json(&self.plan, &self.device)
    }

    /// The command's table.
    fn table(&self) -> String {
        report::table(&self.plan, &self.device, Terminal::default())
    }

    /// The fate of each tensor, as a JSON list of objects.
    fn tensors(&self) -> String {
        fates::json(&self.plan)
    }

    /// The picture of the memory over time, as SVG.
    fn svg(&self) -> String {
        report::memory(&self.plan)
    }

    /// Writes the plan for `tightfit train` and `tightfit predict`.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        if self.device.backend == "assumed" {
            return Err(bad_input(
                "this plan cannot be saved to be run: the algorithms are assumed and exist on no machine; plan with \
                 assume=False, a backend or a profile, or save the figures with to_dict()",
            ));
        }
        interruptible(py, |_| {
            let content = match &self.network {
                Some(network) => {
                    let plan = Plan { device: Some(self.device.clone()), ..self.plan.clone() };
                    plan.to_file(network, &path)?
                }
                None => self.plan.to_step_file(&path)?,
            };
            output::write(&path, content)
        })
    }

    /// Writes the page with pictures.
    fn html(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        interruptible(py, |_| output::write(&path, report::page(&self.plan, &self.device)))
    }

    /// How a copy is made, in this process or another: from a plan file.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Reduced<'py>> {
        let Some(network) = &self.network else {
            return Err(bad_input(
                "the plan of a recorded step cannot be pickled; plan the step again where it is needed",
            ));
        };
        let content = interruptible(py, |_| self.plan.to_json(network))?;
        let device = &self.device;
        let names = [device.backend.clone(), device.name.clone(), device.library.clone()];
        let restore = py.import("tightfit._native")?.getattr("restore_planned")?;
        Ok((restore, (content, names, device.threads)))
    }
}

/// Restores a pickled [`Planned`].
#[pyfunction]
pub fn restore_planned(py: Python<'_>, content: &str, names: [String; 3], threads: usize) -> PyResult<Planned> {
    let [backend, name, library] = names;
    let (network, plan) = interruptible(py, |_| Plan::from_json(content))?;
    Ok(Planned { plan, device: Device { backend, name, library, threads }, network: Some(network), notes: Vec::new() })
}
