//! The inputs of a plan without measurements: a recorded step, or assumed rates.

use std::path::Path;

use tightfit_conv::Device;
use tightfit_units::{Bytes, Error};

use crate::step::{Step, StepFile};
use crate::{CostModel, Fronts, NamedMachine, Options, Workload};

/// The rates to assume if nothing is measured and no others are named.
pub const ASSUMED_RATES: &str = "h200";

/// A step with everything that its plan depends on, and the device of its times.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// The step to plan.
    pub step: Step,
    /// The costs of its copies and layers.
    pub costs: CostModel,
    /// How to plan it.
    pub options: Options,
    /// The device, or a placeholder for it.
    pub device: Device,
}

impl Prepared {
    /// A recorded step. `rates` overrides the machine of the file. Only the file decides whether branches may run side by side, because the program
    /// that carries out the plan may have a single compute stream. `options` is called after the file is read. If it sets no limit of host memory,
    /// the machine's limit applies.
    ///
    /// # Errors
    /// The errors of [`StepFile::read`], of [`CostModel::named`] and of `options`.
    pub fn recorded<E: From<Error>>(
        path: &Path,
        rates: Option<&str>,
        options: impl FnOnce() -> Result<Options, E>,
    ) -> Result<Prepared, E> {
        let StepFile { step, machine } = StepFile::read(path)?;
        let named = match (rates, &machine) {
            (Some(name), _) => CostModel::named(name)?,
            (None, Some(machine)) => machine.costs(),
            (None, None) => CostModel::named(ASSUMED_RATES)?,
        };
        let side_by_side = machine.as_ref().map_or(1.0, |machine| machine.side_by_side);
        let costs = CostModel { side_by_side, ..named };
        let mut options = options()?;
        if options.host_budget == Bytes::UNLIMITED {
            options.host_budget = machine.and_then(|machine| machine.host_bytes).unwrap_or(Bytes::UNLIMITED);
        }
        let device = stand_in("recorded", &costs, "step file");
        Ok(Prepared { step, costs, options, device })
    }

    /// A workload with the named rates, or with [`ASSUMED_RATES`]: measures nothing and needs no backend. `options` is called after the convolutions
    /// are known.
    ///
    /// # Errors
    /// The errors of [`CostModel::named`], of [`Fronts::assumed`], of `options` and of [`Workload::step`].
    pub fn assumed<E: From<Error>>(
        workload: &Workload<'_>,
        rates: Option<&str>,
        options: impl FnOnce() -> Result<Options, E>,
    ) -> Result<Prepared, E> {
        let costs = CostModel::named(rates.unwrap_or(ASSUMED_RATES))?;
        let fronts = Fronts::assumed(workload, &costs)?;
        let options = options()?;
        let step = workload.step(&fronts, &costs)?;
        let device = stand_in("assumed", &costs, "assumed");
        Ok(Prepared { step, costs, options, device })
    }
}

impl CostModel {
    /// The named rates, or the device's rates. `None` if no rates are named and the device is unknown: callers then assume
    /// [`CostModel::of_unknown_device`] and report it.
    ///
    /// # Errors
    /// The errors of [`CostModel::named`].
    pub fn of_device(rates: Option<&str>, device: &Device) -> Result<Option<CostModel>, Error> {
        if let Some(name) = rates {
            return CostModel::named(name).map(Some);
        }
        let is_cpu = device.library.starts_with("tightfit-cpu");
        let known = NamedMachine::of_device(&device.name).map(NamedMachine::costs);
        Ok(known.or_else(|| is_cpu.then(CostModel::cpu)))
    }

    /// An H200's rates, for an unknown device. They have no gain from lanes, which is known only for measured devices.
    pub fn of_unknown_device() -> CostModel {
        CostModel { side_by_side: 1.0, ..CostModel::h200() }
    }
}

fn stand_in(backend: &str, costs: &CostModel, library: &str) -> Device {
    Device { backend: backend.to_owned(), name: costs.name.clone(), library: library.to_owned(), threads: 0 }
}
