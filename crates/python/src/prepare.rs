//! From Python's words to a step with its costs and options, as `tightfit plan` prepares it.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use pyo3::FromPyObject;
use tightfit_network::{Hyperparameter, Network};
use tightfit_onnx::Model;
use tightfit_plan::{
    self as plan, CostModel, Fronts, Mode, NamedMachine, Options, Policy, Stop, Workload, check_budget, part_sizes,
};
use tightfit_profile::Recording;
use tightfit_profile::survey::{Divide, Scope, survey, tensor_memory};
use tightfit_report::count;
use tightfit_units::{Bytes, Error, Nanos};

use crate::device::{self, Opened};

/// Python's words for a plan.
#[derive(FromPyObject)]
pub struct Words {
    #[pyo3(item)]
    network: Option<String>,
    #[pyo3(item)]
    step: Option<PathBuf>,
    #[pyo3(item)]
    batch: usize,
    #[pyo3(item)]
    budget: Option<u64>,
    /// The budget as a share of plain.
    #[pyo3(item)]
    share: Option<f64>,
    #[pyo3(item)]
    host_budget: u64,
    #[pyo3(item)]
    policy: String,
    #[pyo3(item)]
    algorithms: Option<String>,
    #[pyo3(item)]
    divide: String,
    #[pyo3(item)]
    sizes: String,
    #[pyo3(item)]
    types: String,
    #[pyo3(item)]
    costs: Option<String>,
    #[pyo3(item)]
    inference: Option<bool>,
    #[pyo3(item)]
    adamw: bool,
    #[pyo3(item)]
    pub freeze: Vec<String>,
    #[pyo3(item)]
    momentum: f64,
    #[pyo3(item)]
    pub plan_time: Option<f64>,
    #[pyo3(item)]
    assume: Option<bool>,
    #[pyo3(item)]
    deterministic: bool,
    #[pyo3(item)]
    exact_class: bool,
    #[pyo3(item)]
    on: device::Words,
}

/// All that a plan is made from.
pub struct Prepared {
    pub plan: plan::Prepared,
    pub network: Option<Network>,
    /// Notes for the user about the result.
    pub notes: Vec<String>,
}

impl Words {
    /// Measures the convolutions, looks them up, or assumes them.
    ///
    /// # Errors
    /// Errors of the network, the options, the device and of measuring.
    pub fn prepare(&self, recordings: Option<&[Recording]>, stop: &AtomicBool) -> Result<Prepared, Error> {
        let mut prepared = match &self.step {
            Some(path) => self.recorded(path)?,
            None => self.of_network(recordings, stop)?,
        };
        if let Some(share) = self.share {
            let of = &mut prepared.plan;
            let plain = plan::plain(&of.step, &of.costs, &of.options, Stop::WithNothing(stop))?;
            of.options.budget = Bytes((plain.0 as f64 * share) as u64);
        }
        Ok(prepared)
    }

    fn of_network(&self, recordings: Option<&[Recording]>, stop: &AtomicBool) -> Result<Prepared, Error> {
        let momentum = Hyperparameter::Momentum.check("momentum", self.momentum)?;
        let (network, seems_inference) = open(self.network.as_deref().unwrap_or_default())?;
        let is_inference = self.inference.unwrap_or(seems_inference);
        let mut notes = Vec::new();
        if is_inference && self.inference.is_none() {
            notes.push(format!(
                "{} looks exported for inference, so inference is planned; give inference=False to plan training",
                network.name()
            ));
        }
        let mode = if is_inference { Mode::Inference } else { Mode::Training };
        let mut workload = Workload::new(&network, self.batch, self.types.parse()?, mode)?;
        if !is_inference {
            workload = workload.with_momentum(momentum != 0.0).with_adamw(self.adamw).with_frozen(&self.freeze)?;
        } else if !self.freeze.is_empty() {
            let what = "freeze is for training: no layer changes in inference; leave it out".to_owned();
            return Err(Error::BadOption { what });
        }
        let opened = match self.assume {
            Some(true) => None,
            _ => Some(self.on.open(recordings)?).filter(|opened| self.assume == Some(false) || !opened.is_fallback),
        };
        let is_recorded = opened.iter().flat_map(|opened| &opened.backends).any(|backend| backend.is_replay());
        let workload = workload.with_usual_layout(is_recorded);
        let plan = match opened {
            Some(opened) => self.measured(&workload, opened, stop, &mut notes)?,
            None => self.assumed(&workload)?,
        };
        if plan.device.backend == "assumed" && self.assume.is_none() && self.costs.is_none() {
            notes.push(format!(
                "no GPU was found (`tightfit doctor` says why), so nothing is measured; assuming the rates of {} (give others with costs=). To \
                 measure on the CPU, give backend=\"cpu\"; to use recorded measurements, profile=",
                plan.costs.name
            ));
        }
        Ok(Prepared { plan, network: Some(network), notes })
    }

    /// A recorded step; the machine of the file counts unless `costs` names other rates.
    fn recorded(&self, path: &Path) -> Result<Prepared, Error> {
        let plan = plan::Prepared::recorded(path, self.costs.as_deref(), || self.options(Some(self.room())))?;
        Ok(Prepared { plan, network: None, notes: Vec::new() })
    }

    fn assumed(&self, workload: &Workload<'_>) -> Result<plan::Prepared, Error> {
        plan::Prepared::assumed(workload, self.costs.as_deref(), || self.options(Some(self.room())))
    }

    /// The budget of a plan that measures nothing, if none is given: the room of the named card.
    fn room(&self) -> Bytes {
        let named = self.costs.as_deref().and_then(|name| NamedMachine::named(name).ok());
        named.and_then(NamedMachine::room).unwrap_or(Bytes::UNLIMITED)
    }

    fn measured(
        &self,
        workload: &Workload<'_>,
        mut opened: Opened,
        stop: &AtomicBool,
        notes: &mut Vec<String>,
    ) -> Result<plan::Prepared, Error> {
        let device = opened.device().clone();
        let costs = match CostModel::of_device(self.costs.as_deref(), &device)? {
            Some(costs) => costs,
            None => {
                let name = &device.name;
                notes.push(format!(
                    "assuming that copies on {name} are as fast as on an H200; give other rates with costs="
                ));
                CostModel::of_unknown_device()
            }
        };
        let free = opened.free();
        let options = self.options(free)?;
        // A recording answers immediately, including the workspaces needed.
        if !opened.backends.iter().any(|backend| backend.is_replay()) {
            check_budget(workload, &costs, &options)?;
        }
        let parts = part_sizes(workload, &costs, &options)?;
        let problems = workload.problems()?;
        let tensors = tensor_memory(&problems);
        let scope = |budget: Bytes, free: Option<Bytes>| -> Result<Scope, Error> {
            Ok(Scope {
                sizes: self.sizes.parse()?,
                divide: self.divide.parse()?,
                limits: plan::limits(budget),
                parts: parts.clone(),
                // Plans are compared with the time of the fastest algorithms with any workspace.
                baseline: Some(free.map_or(Bytes::UNLIMITED, |free| free.max(budget))),
                deterministic: self.deterministic,
                exact_class: self.exact_class,
            })
        };
        // On a CPU, measuring takes the same memory as the arena: workspaces get the rest after the tensors.
        let room = opened.usable().map(|usable| usable.saturating_sub(tensors));
        let scope = match room {
            Some(room) => scope(options.budget.min(room), Some(room))?,
            None => scope(options.budget, free)?,
        };
        opened.check_memory(&problems, &scope, Bytes::ZERO, stop)?;
        let Opened { backends, cache, .. } = &mut opened;
        let found = survey(&problems, &scope, backends, &Opened::env(cache, stop))?;
        if let Some(failure) = &found.spent.cache_failure {
            notes.push(format!("could not save measurements: {failure}"));
        }
        if !found.spent.skipped.is_empty() {
            let failed = count(found.spent.skipped.len(), "candidate");
            notes.push(format!("{failed} failed and will not be used; tightfit.measure shows why"));
        }
        let step = workload.step(&Fronts::of(&found.candidates)?, &costs)?;
        Ok(plan::Prepared { step, costs, options, device })
    }

    fn options(&self, free: Option<Bytes>) -> Result<Options, Error> {
        let policy: Policy = self.policy.parse()?;
        let algorithms = self.algorithms.as_deref().map(str::parse).transpose()?;
        if let (Policy::VdnnDynamic, Some(_)) = (policy, algorithms) {
            let what =
                "algorithms: the policy vdnn-dynamic chooses them itself; drop the option, or use another policy";
            return Err(Error::BadOption { what: what.to_owned() });
        }
        let unknown =
            || Error::BadOption { what: "the amount of memory is unknown; give a budget, such as \"8GiB\"".to_owned() };
        Ok(Options {
            policy,
            algorithms: algorithms.unwrap_or_default(),
            divide: self.divide.parse::<Divide>()? != Divide::Off,
            lanes: true,
            budget: self.budget.map(Bytes).or(free).ok_or_else(unknown)?,
            host_budget: Bytes(self.host_budget),
            plan_time: self.plan_time.map(|seconds| Nanos::from_micros(1e6 * seconds)),
        })
    }
}

/// Opens a network. Also returns whether it is an ONNX model that was exported for inference.
fn open(name: &str) -> Result<(Network, bool), Error> {
    let path = Path::new(name);
    if path.extension().is_some_and(|extension| extension == "onnx") {
        let model = Model::read(path)?;
        return Ok((model.network().clone(), model.is_for_inference()));
    }
    Ok((Network::open(name)?, false))
}
