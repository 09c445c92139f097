//! Forward passes over data with one plan: what `predict` and `test` share.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use tightfit_conv::Device;
use tightfit_network::Network;
use tightfit_plan::{Mode, Plan};
use tightfit_report::{count, lines};
use tightfit_train::checkpoint::Names;
use tightfit_train::data::{Dataset, Source};
use tightfit_train::machine::cpu::{self, CpuMachine};
use tightfit_train::machine::cuda::{CudaMachine, Modes};
use tightfit_train::{Engine, Machine, Poison, Prediction, Score, Solver, predict};
use tightfit_units::{Bytes, Nanos};

use super::networked::{Ends, ends, median, must_compute, peak, read_plan};
use super::start::{self, Start};
use crate::failure::{Failure, first};
use crate::model::{Opened, must_run, must_run_on};
use crate::options::{Common, ForwardOptions};
use crate::planning::{Goal, Request};
use crate::progress::Bar;
use crate::session::{Session, cuda_options, device_numbers};

/// How to measure less.
const CHOICES: &str = "use a smaller --batch to measure less; `tightfit plan --inference --assume` measures nothing";

/// The number of mini-batches of synthetic data, which never end, if the options state none.
const SYNTHETIC: u64 = 100;

/// The use of the mini-batches.
pub trait Report {
    /// Takes one mini-batch, whose first sample has this number.
    fn take(&mut self, job: &Job<'_>, first: usize, prediction: &Prediction<'_>);

    /// Prints the results; `peak` is the most device memory in use.
    ///
    /// # Errors
    /// The errors of standard output.
    fn print(&self, job: &Job<'_>, peak: Bytes) -> Result<(), Failure>;
}

/// A run over the data with everything it needs.
pub struct Job<'a> {
    pub common: &'a Common,
    pub plan: &'a Plan,
    pub start: Start,
    pub dataset: Dataset,
    options: &'a ForwardOptions,
    network: &'a Network,
    names: Names,
    has_loss: bool,
    device: Device,
    stop: Arc<AtomicBool>,
    done: Vec<Done>,
}

/// One mini-batch.
#[derive(Clone, Copy)]
pub struct Done {
    pub score: Score,
    pub time: Nanos,
}

/// Plans the network's forward passes, runs them over the data that `open` returns, and prints the report that `report`
/// makes; `what` is the command's verb.
///
/// # Errors
/// The errors of the options, the files, planning and running.
pub fn run<R: Report>(
    what: &str,
    options: &ForwardOptions,
    common: &Common,
    opened: &Opened,
    open: impl FnOnce(&Ends) -> Result<Dataset, Failure>,
    report: impl FnOnce(&Job<'_>) -> R,
) -> Result<(), Failure> {
    // Check all options before measuring anything.
    let network = opened.network.clone();
    must_run(opened, what)?;
    let ends = ends(&network)?;
    let dataset = open(&ends)?;
    let start = Start::read(options.load.as_deref(), None, opened, options.model.random_weights)?;
    let names = start::names(opened);
    let mut session = Session::open(common)?;
    must_compute(session.device(), options.graph, what)?;
    must_run_on(&session.device().backend, &network, what)?;
    let (network, plan) = match &options.plan {
        Some(path) => read_plan(path, &network, Mode::Inference, session.device())?,
        None => {
            let (planning, goal) = (&options.model.planning, Goal::Inference);
            let request = Request { planning, network: &network, goal, common, choices: CHOICES };
            let plan = request.prepare(&mut session)?.plan()?;
            (network, plan)
        }
    };
    let (device, stop, has_loss) = (session.device().clone(), Arc::clone(&session.stop), ends.has_loss);
    let (network, plan, done) = (&network, &plan, Vec::new());
    let job = Job { common, plan, start, dataset, options, network, names, has_loss, device, stop, done };
    // Free the measuring buffers before reserving the arenas.
    drop(session);
    let report = report(&job);
    if job.device.backend == "cpu" {
        let (threads, checksums) = (common.threads, options.check);
        let machine = CpuMachine::new(cpu::Options { threads, checksums, ..cpu::Options::default() });
        return job.carry_out(machine, report);
    }
    let modes = Modes { graph: options.graph, watch: options.check, ..Modes::default() };
    job.carry_out(CudaMachine::open(&cuda_options(common, device_numbers(common)?[0]), modes)?, report)
}

impl Job<'_> {
    /// Runs the mini-batches and prints the results, even of those before a failure.
    ///
    /// # Errors
    /// The first failure.
    fn carry_out<M: Machine>(mut self, machine: M, mut report: impl Report) -> Result<(), Failure> {
        let workload = self.plan.workload(self.network)?;
        let poison = if self.options.check { Poison::Freed } else { Poison::Nothing };
        let solver = Solver { seed: self.common.seed, ..Solver::default() };
        let mut engine = Engine::new(&workload, &self.plan.schedule, machine, solver, poison)?;
        self.start.apply(&mut engine, &workload, &self.names)?;
        let ended = self.predict(&mut engine, &mut report);
        if self.done.is_empty() {
            return ended;
        }
        let (peak, counted) = peak(&mut engine, &ended);
        let printed = report.print(&self, peak);
        first([ended, counted, printed])
    }

    /// Where the weights come from.
    fn origin(&self) -> String {
        self.start.name(&self.options.model.network)
    }

    /// The samples to run: the ones held back from training, if any.
    pub fn source(&self) -> &Arc<dyn Source> {
        self.dataset.test.as_ref().unwrap_or(&self.dataset.train)
    }

    /// Number of mini-batches: as requested, or all of the data.
    fn batches(&self) -> u64 {
        let all = (self.source().len() as u64).div_ceil(self.plan.batch as u64);
        let default = if self.is_synthetic() { SYNTHETIC } else { all };
        self.options.batches.unwrap_or(default).min(all)
    }

    fn is_synthetic(&self) -> bool {
        self.dataset.name == "synthetic"
    }

    /// Whether the samples have meaningful labels.
    pub fn is_labeled(&self) -> bool {
        !self.is_synthetic() && self.source().is_labeled()
    }

    /// The mini-batches that ran.
    pub fn done(&self) -> &[Done] {
        &self.done
    }

    /// How well the network did, if there are labels to compare with.
    pub fn score(&self) -> Option<Score> {
        let scores: Vec<Score> = self.done.iter().map(|batch| batch.score).collect();
        (self.has_loss && self.is_labeled()).then(|| Score::of(&scores))
    }

    /// Runs mini-batches until all are done, something fails, or the user stops it.
    fn predict<M: Machine>(&mut self, engine: &mut Engine<M>, report: &mut impl Report) -> Result<(), Failure> {
        let batches = self.batches();
        let bar = Bar::new(format!("mini-batch 0 of {batches}"), None);
        let (source, mut first) = (Arc::clone(self.source()), 0);
        predict(engine, source, |prediction| {
            report.take(self, first, prediction);
            first += prediction.score.samples;
            self.done.push(Done { score: prediction.score, time: prediction.time });
            let batch = self.done.len() as u64;
            bar.set(format!("mini-batch {batch} of {batches}"), batch as f64 / batches as f64);
            tracing::info!("mini-batch {batch}: {}", prediction.time);
            let is_over = batch >= batches || self.stop.load(Ordering::Relaxed);
            if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        match self.done.len() as u64 {
            batch if batch < batches => {
                Err(Failure::Stopped(format!("interrupted after {batch} of {batches} mini-batches")))
            }
            _ => Ok(()),
        }
    }

    /// The network, the device and the plan, for people.
    pub fn head(&self, peak: Bytes) -> String {
        let Plan { network, batch, types, options, baseline, .. } = self.plan;
        let what = [
            format!("{network} on {}", self.dataset.name),
            format!("mini-batch {batch}"),
            types.to_string(),
            format!("{} weights", self.origin()),
            self.device.to_string(),
        ];
        let memory = [
            format!("policy {}: peak {peak} of {}", options.policy, options.budget),
            format!("{} planned (plain: {baseline})", self.plan.peak),
        ];
        lines(what) + &lines(memory)
    }

    /// How many ran, how fast and how well, for people.
    pub fn tail(&self) -> String {
        let samples: usize = self.done.iter().map(|batch| batch.score.samples).sum();
        let tail = format!(
            "{} {}, {}, {} per mini-batch (median)\n",
            self.done.len(),
            if self.done.len() == 1 { "mini-batch" } else { "mini-batches" },
            count(samples, "sample"),
            median(self.done.iter().map(|batch| batch.time))
        );
        let score = self.score().map_or_else(String::new, |score| {
            format!("accuracy {:.2}% ({} of {})\n", 100.0 * score.accuracy(), score.correct, score.samples)
        });
        tail + &score
    }

    /// Everything but the samples as a JSON object; accuracy and loss are null without labels.
    pub fn json(&self, peak: Bytes) -> Value {
        let Plan { network, batch, types, options, min_feasible, baseline, .. } = self.plan;
        let (done, score) = (&self.done, self.score());
        let times: Vec<f64> = done.iter().map(|batch| batch.time.as_micros()).collect();
        json!({
            "network": network, "batch": batch, "backend": self.device.backend, "device": self.device.to_string(),
            "types": types.to_string(), "policy": options.policy.name(), "budget_bytes": options.budget.0,
            "peak_bytes": peak.0, "planned_peak_bytes": self.plan.peak.0, "min_feasible_bytes": min_feasible.0,
            "baseline_bytes": baseline.0, "data": self.dataset.name, "weights": self.origin(), "seed": self.common.seed,
            "batches": done.len(), "samples": done.iter().map(|batch| batch.score.samples).sum::<usize>(),
            "batch_time_us": median(done.iter().map(|batch| batch.time)).as_micros(),
            "planned_batch_time_us": self.plan.step_time.as_micros(), "batch_times_us": times,
            "correct": score.map(|score| score.correct), "accuracy": score.map(|score| score.accuracy()),
            "loss": score.map(|score| score.loss),
        })
    }
}
