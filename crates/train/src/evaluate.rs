//! Evaluates a network on samples it was not trained on.

use std::collections::HashMap;
use std::sync::Arc;

use tightfit_core::candidate::Candidates;
use tightfit_core::plan::{
    Action, Algorithms, Checked, CostModel, Fronts, LayerPass, Mode, Options, Pass, Policy, Schedule, Workload, plan,
};
use tightfit_core::{Bytes, DivisionCost, Operation, Problem};
use tightfit_cpu::layers::softmax_loss;

use crate::data::{Loader, Source};
use crate::{Engine, Error, Learned, Machine, Poison, Solver};

/// The result of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Mean cross-entropy.
    pub loss: f64,
    /// Number of correctly classified samples.
    pub correct: usize,
    /// Total number of samples.
    pub samples: usize,
}

impl Score {
    /// The fraction of correctly classified samples.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.samples.max(1) as f64
    }
}

/// Runs every sample of a source through the trained network in inference mode: no dropout, running statistics.
///
/// The forward passes use the configurations of the training schedule, and need no larger arena.
///
/// # Errors
/// The errors of planning the forward passes, of the source, and of [`Engine::step`].
pub fn evaluate<M: Machine>(
    machine: M,
    training: &Workload<'_>,
    schedule: &Checked,
    learned: &Learned,
    source: Arc<dyn Source>,
) -> Result<Score, Error> {
    let inference = Workload::new(training.network, training.batch, training.types, Mode::Inference)?;
    let options = Options {
        // Without backward passes nothing is offloaded, and each map is released after its last use; the baseline would
        // keep all maps.
        policy: Policy::VdnnAll,
        algorithms: Algorithms::Memory,
        budget: schedule.device_bytes,
        host_budget: Bytes::ZERO,
        ..Options::default()
    };
    let step = inference.step(&forward_fronts(training, schedule)?, &CostModel::cpu())?;
    let plan = plan(&step, &CostModel::cpu(), &options)?;
    let mut engine = Engine::new(&inference, &plan.schedule, machine, Solver::default(), Poison::Nothing)?;
    engine.take_over(learned)?;
    let mut score = Score { loss: 0.0, correct: 0, samples: 0 };
    for batch in Loader::in_order(source, training.batch)? {
        let batch = batch?;
        engine.step(&batch.samples, &batch.labels)?;
        let classes = engine.classes();
        let probabilities = engine.probabilities()?;
        let counted = &batch.labels[..batch.counted];
        let (loss, correct) = softmax_loss::loss(classes, &probabilities[..batch.counted * classes], counted);
        score.loss += loss * batch.counted as f64;
        score.correct += correct;
        score.samples += batch.counted;
    }
    score.loss /= score.samples.max(1) as f64;
    Ok(score)
}

/// The configurations of a schedule's forward convolutions, one per problem if layers with the same problem agree.
fn forward_fronts(workload: &Workload<'_>, schedule: &Schedule) -> Result<Fronts, Error> {
    let passes = workload.lower()?.passes;
    let mut found: HashMap<Problem, Candidates> = HashMap::new();
    for instruction in &schedule.instructions {
        if let Action::Compute(compute) = &instruction.action
            && let Some(LayerPass { layer, pass: Pass::Forward, .. }) = passes.get(compute.operation.0)
            && let Some(configuration) = &compute.configuration
        {
            let problem = workload.problem(*layer, Operation::Forward)?;
            let nothing = || Candidates { candidates: Vec::new(), cost: DivisionCost::default() };
            let candidates = &mut found.entry(problem).or_insert_with(nothing).candidates;
            candidates.extend(configuration.parts().iter().cloned());
        }
    }
    Ok(Fronts::of(&found)?)
}
