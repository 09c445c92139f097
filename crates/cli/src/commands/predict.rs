//! `tightfit predict NETWORK`

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use tightfit_core::network::Network;
use tightfit_core::plan::{Mode, Plan};
use tightfit_core::report::{Align, Grid, count};
use tightfit_core::{Bytes, Device, Nanos};
use tightfit_train::checkpoint::Names;
use tightfit_train::data::{Dataset, Source};
use tightfit_train::machine::cpu::{self, CpuMachine};
use tightfit_train::machine::cuda::{CudaMachine, Modes};
use tightfit_train::{Engine, Machine, Poison, Score, Solver, predict};

use super::dataset;
use super::networked::{Ends, ends, median, must_compute, peak, read_plan};
use super::print_grid;
use super::start::{self, Start};
use crate::failure::{Failure, first, print};
use crate::model::{self, must_run, must_run_on};
use crate::options::{Common, Format, PredictOptions};
use crate::planning::{Goal, Request};
use crate::progress::Bar;
use crate::session::{Session, cuda_options, device_numbers};

/// How to measure less.
const CHOICES: &str = "use a smaller --batch to measure less; `tightfit plan --inference --assume` measures nothing";

/// Mini-batches of synthetic data if the options do not say: they never end.
const SYNTHETIC: u64 = 100;

/// Maximum rows of the table; if there are more mini-batches, each row covers several.
const ROWS: usize = 10;

pub fn run(options: &PredictOptions, common: &Common) -> Result<(), Failure> {
    // Check all options before measuring anything.
    let opened = model::open(&options.model.network)?;
    let network = opened.network.clone();
    must_run(&network, "predict")?;
    let Ends { sample, classes, has_loss } = ends(&network)?;
    let test_data = options.test_data.as_deref();
    let dataset = dataset::open(&options.data, test_data, &options.model.pixels, sample, classes, common.seed)?;
    let start = Start::read(options.load.as_deref(), None, &opened, options.model.random_weights)?;
    let names = start::names(&opened);
    let mut session = Session::open(common)?;
    must_compute(session.device(), options.graph, "predict")?;
    must_run_on(&session.device().backend, &network, "predict")?;
    let (network, plan) = match &options.plan {
        Some(path) => read_plan(path, &network, Mode::Inference)?,
        None => {
            let (planning, goal) = (&options.model.planning, Goal::Inference);
            let request = Request { planning, network: &network, goal, common, choices: CHOICES };
            let plan = request.prepare(&mut session)?.plan()?;
            (network, plan)
        }
    };
    let device = session.device().clone();
    let stop = Arc::clone(&session.stop);
    let job = Job { options, common, network: &network, plan: &plan, start, names, dataset, has_loss, device, stop };
    // Free the measuring buffers before reserving the arenas.
    drop(session);
    if job.device.backend == "cpu" {
        let (threads, checksums) = (common.threads, options.check);
        let machine = CpuMachine::new(cpu::Options { threads, checksums, ..cpu::Options::default() });
        return job.carry_out(machine);
    }
    let modes = Modes { graph: options.graph, watch: options.check, ..Modes::default() };
    job.carry_out(CudaMachine::open(&cuda_options(common, device_numbers(common)?[0]), modes)?)
}

/// Runs `predict` where its accuracy means something: trained weights, labels, and a loss to score them by.
pub fn test(options: &PredictOptions, common: &Common) -> Result<(), Failure> {
    let opened = model::open(&options.model.network)?;
    let usage = |what: String| Err(Failure::Usage(what));
    if options.load.is_none() && (opened.model.is_none() || options.model.random_weights) {
        return usage("there are no trained weights to test; name them with --load FILE".to_owned());
    }
    if options.data == "synthetic" {
        return usage("synthetic labels are no truth to test against; name a data set with --data".to_owned());
    }
    if !ends(&opened.network)?.has_loss {
        return usage(format!("{} has no loss layer, so its outputs cannot be scored", opened.network.name()));
    }
    run(options, common)
}

/// A run over the data with everything it needs.
struct Job<'a> {
    options: &'a PredictOptions,
    common: &'a Common,
    network: &'a Network,
    plan: &'a Plan,
    start: Start,
    names: Names,
    dataset: Dataset,
    has_loss: bool,
    device: Device,
    stop: Arc<AtomicBool>,
}

/// One mini-batch.
#[derive(Clone, Copy)]
struct Done {
    score: Score,
    time: Nanos,
}

impl Job<'_> {
    /// Runs the mini-batches and prints the results, even of those before a failure.
    ///
    /// # Errors
    /// The first failure.
    fn carry_out<M: Machine>(&self, machine: M) -> Result<(), Failure> {
        let workload = self.plan.workload(self.network)?;
        let poison = if self.options.check { Poison::Freed } else { Poison::Nothing };
        let solver = Solver { seed: self.common.seed, ..Solver::default() };
        let mut engine = Engine::new(&workload, &self.plan.schedule, machine, solver, poison)?;
        self.start.apply(&mut engine, &workload, &self.names)?;
        let mut done = Vec::new();
        let ended = self.predict(&mut engine, &mut done);
        if done.is_empty() {
            return ended;
        }
        let (peak, counted) = peak(&mut engine, &ended);
        let printed = match self.common.format {
            Format::Table => self.print(&done, peak),
            Format::Csv => print_grid(&self.values(&done), Format::Csv),
            Format::Json => self.print_json(&done, peak),
        };
        first([ended, counted, printed])
    }

    /// Where the weights come from.
    fn origin(&self) -> String {
        self.start.name(&self.options.model.network)
    }

    /// The samples to run: those held back from training, if there are such.
    fn source(&self) -> &Arc<dyn Source> {
        self.dataset.test.as_ref().unwrap_or(&self.dataset.train)
    }

    /// Number of mini-batches: as requested, or those of the data.
    fn batches(&self) -> u64 {
        let all = (self.source().len() as u64).div_ceil(self.plan.batch as u64);
        let default = if self.is_synthetic() { SYNTHETIC } else { all };
        self.options.batches.unwrap_or(default).min(all)
    }

    fn is_synthetic(&self) -> bool {
        self.dataset.name == "synthetic"
    }

    /// How well the network did, if there are labels to compare with.
    fn score(&self, done: &[Done]) -> Option<Score> {
        let scores: Vec<Score> = done.iter().map(|batch| batch.score).collect();
        (self.has_loss && !self.is_synthetic()).then(|| Score::of(&scores))
    }

    /// Runs mini-batches until all are done, something fails, or the user stops it.
    fn predict<M: Machine>(&self, engine: &mut Engine<M>, done: &mut Vec<Done>) -> Result<(), Failure> {
        let batches = self.batches();
        let bar = Bar::new(format!("mini-batch 0 of {batches}"), None);
        predict(engine, Arc::clone(self.source()), |prediction| {
            done.push(Done { score: prediction.score, time: prediction.time });
            let batch = done.len() as u64;
            bar.set(format!("mini-batch {batch} of {batches}"), batch as f64 / batches as f64);
            tracing::info!("mini-batch {batch}: {}", prediction.time);
            let is_over = batch >= batches || self.stop.load(Ordering::Relaxed);
            if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        match done.len() as u64 {
            batch if batch < batches => {
                Err(Failure::Stopped(format!("interrupted after {batch} of {batches} mini-batches")))
            }
            _ => Ok(()),
        }
    }

    /// Prints the results as a table.
    fn print(&self, done: &[Done], peak: Bytes) -> Result<(), Failure> {
        let Plan { network, batch, types, options, baseline, .. } = self.plan;
        let head = format!(
            "{network} on {}, mini-batch {batch}, {types}, {}, {} weights\npolicy {}: peak {peak} of {}, {} planned \
             (everything resident: {baseline})\n",
            self.dataset.name,
            self.device,
            self.origin(),
            options.policy,
            options.budget,
            self.plan.peak,
        );
        let table = self.rows(done, done.len().div_ceil(ROWS).max(1)).table(super::terminal());
        let samples: usize = done.iter().map(|batch| batch.score.samples).sum();
        let tail = format!(
            "{} {}, {}, {} per mini-batch (median)\n",
            done.len(),
            if done.len() == 1 { "mini-batch" } else { "mini-batches" },
            count(samples, "sample"),
            median(done.iter().map(|batch| batch.time))
        );
        let score = self.score(done).map_or_else(String::new, |score| {
            format!("accuracy {:.2}% ({} of {})\n", 100.0 * score.accuracy(), score.correct, score.samples)
        });
        print(&format!("{head}\n{table}\n{tail}{score}"))
    }

    /// One row per mini-batch for programs; without labels, none is correct or wrong.
    fn values(&self, done: &[Done]) -> Grid {
        let columns = ["mini_batch", "samples", "batch_time_us", "correct"];
        let mut grid = Grid::new(columns.map(|column| (column, Align::Right)));
        let scored = self.score(done).is_some();
        for (number, Done { score, time }) in (1..).zip(done) {
            let correct = if scored { score.correct.to_string() } else { String::new() };
            grid.push([number.to_string(), score.samples.to_string(), time.as_micros().to_string(), correct]);
        }
        grid
    }

    /// One row per `every` mini-batches for people, with their mean time.
    fn rows(&self, done: &[Done], every: usize) -> Grid {
        let right = Align::Right;
        let scored = self.score(done).is_some();
        let mut columns = vec![("mini-batches", right), ("samples", right), ("time [µs]", right)];
        columns.extend(scored.then_some(("correct [%]", right)));
        let mut grid = Grid::new(columns);
        let mut samples = 0;
        for (part, batches) in done.chunks(every).enumerate() {
            let score = Score::of(&batches.iter().map(|batch| batch.score).collect::<Vec<_>>());
            let time: f64 = batches.iter().map(|batch| batch.time.as_micros()).sum();
            samples += score.samples;
            let mut row = vec![
                (part * every + batches.len()).to_string(),
                samples.to_string(),
                format!("{:.0}", time / batches.len() as f64),
            ];
            row.extend(scored.then(|| format!("{:.1}", 100.0 * score.accuracy())));
            grid.push(row);
        }
        grid
    }

    /// Prints everything as one JSON object; accuracy and loss are null without labels.
    fn print_json(&self, done: &[Done], peak: Bytes) -> Result<(), Failure> {
        let Plan { network, batch, types, options, min_feasible, baseline, .. } = self.plan;
        let score = self.score(done);
        let times: Vec<f64> = done.iter().map(|batch| batch.time.as_micros()).collect();
        let object = json!({
            "network": network, "batch": batch, "backend": self.device.backend, "device": self.device.to_string(),
            "types": types.to_string(), "policy": options.policy.name(), "budget_bytes": options.budget.0,
            "peak_bytes": peak.0, "planned_peak_bytes": self.plan.peak.0, "min_feasible_bytes": min_feasible.0,
            "baseline_bytes": baseline.0, "data": self.dataset.name, "weights": self.origin(), "seed": self.common.seed,
            "batches": done.len(), "samples": done.iter().map(|batch| batch.score.samples).sum::<usize>(),
            "batch_time_us": median(done.iter().map(|batch| batch.time)).as_micros(),
            "planned_batch_time_us": self.plan.step_time.as_micros(), "batch_times_us": times,
            "correct": score.map(|score| score.correct), "accuracy": score.map(|score| score.accuracy()),
            "loss": score.map(|score| score.loss),
        });
        print(&format!("{object:#}\n"))
    }
}
