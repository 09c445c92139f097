//! A training run with everything it needs: `train` carries it out, and `saving` saves it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tightfit_conv::Device;
use tightfit_network::{Network, Rule};
use tightfit_onnx::Shared;
use tightfit_plan::Plan;
use tightfit_train::Solver;
use tightfit_train::checkpoint::Names;
use tightfit_train::data::Dataset;
use tightfit_units::Nanos;

use super::start::Start;
use crate::options::{Common, TrainOptions};

/// A training run with everything it needs.
pub struct Job<'a> {
    pub options: &'a TrainOptions,
    pub rule: Rule,
    pub common: &'a Common,
    pub network: &'a Network,
    pub plan: &'a Plan,
    /// Time that planning took, without measuring; `None` if the plan was read from a file.
    pub planning: Option<Nanos>,
    pub start: Start,
    pub names: Names,
    /// The parameters that layers share.
    pub shared: Vec<Shared>,
    /// Seed of the initial weights, of dropout and of the order of the data: the seed of the run that is resumed, if there is one.
    pub seed: u64,
    pub dataset: Dataset,
    pub device: Device,
    pub stop: Arc<AtomicBool>,
}

impl Job<'_> {
    /// The solver's settings.
    pub fn solver(&self) -> Solver {
        Solver { rule: self.rule, loss_scale: self.options.loss_scale, seed: self.seed }
    }

    /// Number of steps: as requested, or by the epochs.
    pub fn steps(&self) -> u64 {
        self.options.epochs.map_or(self.options.steps, |epochs| epochs.saturating_mul(self.epoch()))
    }

    /// Number of steps of an epoch.
    pub fn epoch(&self) -> u64 {
        (self.dataset.train.len() as u64).div_ceil(self.plan.batch as u64)
    }
}
