//! Forward passes over the samples of a source: predicts, and evaluates on samples that were not trained on.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use tightfit_conv::candidate::Candidates;
use tightfit_conv::{DivisionCost, Operation, Problem};
use tightfit_cpu::layers::softmax_loss;
use tightfit_plan::{
    Action, Algorithms, Checked, CostModel, Fronts, LayerPass, Mode, Options, Pass, Policy, Schedule, Workload, plan,
};
use tightfit_units::{Bytes, Nanos};

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

    /// The score of the samples of all these.
    pub fn of(parts: &[Score]) -> Score {
        let samples = parts.iter().map(|part| part.samples).sum();
        let correct = parts.iter().map(|part| part.correct).sum();
        let loss: f64 = parts.iter().map(|part| part.loss * part.samples as f64).sum();
        Score { loss: loss / (samples as f64).max(1.0), correct, samples }
    }
}

/// The result of one mini-batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction<'a> {
    /// How well it did on those samples that count; without the ones that only fill the last mini-batch of a source.
    pub score: Score,
    /// The labels of those samples.
    pub labels: &'a [u32],
    /// The probabilities of those samples, samples by classes; none for a network without a loss.
    pub probabilities: &'a [f32],
    /// From the first command to the end of all streams.
    pub time: Nanos,
}

/// Runs every sample of a source through an engine once, in order, until `each` breaks off.
///
/// Without a loss in the network there is nothing to score: only samples are counted.
///
/// # Errors
/// The errors of the source, and of [`Engine::step`].
pub fn predict<M: Machine>(
    engine: &mut Engine<M>,
    source: Arc<dyn Source>,
    mut each: impl FnMut(&Prediction<'_>) -> ControlFlow<()>,
) -> Result<(), Error> {
    let classes = engine.classes();
    for batch in Loader::in_order(source, engine.batch())? {
        let batch = batch?;
        let time = engine.step(&batch.samples, &batch.labels)?.time;
        let probabilities = engine.probabilities()?;
        let counted = &probabilities[..batch.counted * classes];
        let labels = &batch.labels[..batch.counted];
        let (loss, correct) = match classes {
            0 => (0.0, 0),
            classes => softmax_loss::loss(classes, counted, labels),
        };
        let score = Score { loss, correct, samples: batch.counted };
        if each(&Prediction { score, labels, probabilities: counted, time }).is_break() {
            break;
        }
    }
    Ok(())
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
    let inference = Workload::new(training.network, training.batch, training.types, Mode::Inference)?
        .with_layout(training.layout)?;
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
    let mut scores = Vec::new();
    predict(&mut engine, source, |prediction| {
        scores.push(prediction.score);
        ControlFlow::Continue(())
    })?;
    Ok(Score::of(&scores))
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
