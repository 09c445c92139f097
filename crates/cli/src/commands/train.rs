//! `tightfit train NETWORK`

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::json;
use tightfit_core::network::{Network, Rule, Sgd};
use tightfit_core::plan::{Mode, Plan, Workload};
use tightfit_core::report::{Align, Grid, count};
use tightfit_core::{Bytes, Device, Nanos};
use tightfit_train::data::{self, Dataset, Loader, Source};
use tightfit_train::machine::cpu::{self, CpuMachine};
use tightfit_train::machine::cuda::{CudaMachine, Modes};
use tightfit_train::{Engine, Learned, Machine, Outcome, Poison, Score, Solver, Trace, evaluate};

use super::model::{self, must_run};
use super::networked::{Ends, ends, median, must_compute, peak, read_plan};
use super::print_grid;
use super::saving::Position;
use super::solver;
use super::start::Start;
use crate::failure::{Failure, check_writable, first, print, write_file};
use crate::message;
use crate::options::{Common, Format, TrainOptions};
use crate::planning::{Goal, plan_of};
use crate::progress::Bar;
use crate::session::{Session, cuda_options, device_numbers};

/// How to measure less.
const CHOICES: &str = "use a smaller --batch to measure less; `tightfit plan --assume` measures nothing";

pub fn run(options: &TrainOptions, common: &Common) -> Result<(), Failure> {
    // Check all options before measuring anything.
    for path in options.trace.iter().chain(&options.save) {
        check_writable(path)?;
    }
    let opened = model::open(&options.network)?;
    let network = opened.network.clone();
    must_run(&network, "train")?;
    let Ends { sample, classes, has_loss: true } = ends(&network)? else {
        return Err(Failure::Usage(format!("{} has no loss layer, so it cannot be trained", network.name())));
    };
    let start = Start::read(options.load.as_deref(), options.resume.as_deref(), &opened, options.random_weights)?;
    let seed = start.progress().map_or(common.seed, |progress| progress.seed);
    let dataset = data::open(&options.data, sample, classes, seed)?;
    start.check_data(&dataset)?;
    let mut session = Session::open(common)?;
    must_compute(session.device(), options.graph, "train")?;
    let (network, plan) = match &options.plan {
        Some(path) => read_plan(path, &network, Mode::Training)?,
        None => {
            let momentum = options.momentum.unwrap_or(Sgd::default().momentum);
            let goal = Goal::training(options.solver.unwrap_or_default(), momentum);
            let plan = plan_of(&options.planning, &network, goal, &mut session, common, CHOICES)?;
            (network, plan)
        }
    };
    let rule = solver::rule(options, &plan)?;
    let device = session.device().clone();
    let job = Job {
        options,
        rule,
        common,
        network: &network,
        plan: &plan,
        start,
        seed,
        dataset,
        device,
        stop: Arc::clone(&session.stop),
    };
    // Free the measuring buffers before reserving the arenas.
    drop(session);
    if job.device.backend == "cpu" {
        return job.carry_out(|| Ok(CpuMachine::new(job.cpu_options())));
    }
    let opened = cuda_options(common, device_numbers(common)?[0]);
    job.carry_out(|| Ok(CudaMachine::open(&opened, job.cuda_modes())?))
}

/// A training run with everything it needs.
pub struct Job<'a> {
    pub options: &'a TrainOptions,
    pub rule: Rule,
    common: &'a Common,
    pub network: &'a Network,
    pub plan: &'a Plan,
    pub start: Start,
    /// Seed of the initial weights, of dropout and of the order of the data: that of a resumed run, if there is one.
    pub seed: u64,
    pub dataset: Dataset,
    device: Device,
    stop: Arc<AtomicBool>,
}

impl Job<'_> {
    /// The solver's settings.
    pub fn solver(&self) -> Solver {
        Solver { rule: self.rule, loss_scale: self.options.loss_scale, seed: self.seed }
    }

    fn cpu_options(&self) -> cpu::Options {
        cpu::Options {
            threads: self.common.threads,
            checksums: self.options.check,
            spans: self.options.trace.is_some(),
            ..cpu::Options::default()
        }
    }

    fn cuda_modes(&self) -> Modes {
        let TrainOptions { graph, check, ref trace, .. } = *self.options;
        Modes { graph, trace: trace.is_some(), watch: check }
    }

    /// Number of steps: as requested, or those of the epochs.
    pub fn steps(&self) -> u64 {
        let epoch = (self.dataset.train.len() as u64).div_ceil(self.plan.batch as u64);
        self.options.epochs.map_or(self.options.steps, |epochs| epochs.saturating_mul(epoch))
    }

    /// Trains, prints the results, tests, and writes the trace. Creates the test machine after dropping the training
    /// machine. Does each of these even if another one failed.
    ///
    /// # Errors
    /// The first failure.
    fn carry_out<M: Machine>(&self, machine: impl Fn() -> Result<M, Failure>) -> Result<(), Failure> {
        let workload = self.plan.workload(self.network)?;
        let schedule = &self.plan.schedule;
        let poison = if self.options.check { Poison::Freed } else { Poison::Nothing };
        let mut engine = Engine::new(&workload, schedule, machine()?, self.solver(), poison)?;
        self.start.apply(&mut engine, &workload)?;
        self.note_changes();
        let mut trace = self.options.trace.as_ref().map(|_| Trace::new(schedule));
        let mut outcomes = Vec::new();
        let ended = self.learn(&mut engine, &workload, &mut trace, &mut outcomes);
        if outcomes.is_empty() {
            return ended;
        }
        let (ended, saved) = self.conclude(&mut engine, &workload, ended, outcomes.len() as u64);
        let (peak, counted) = peak(&mut engine, &ended);
        let printed = if self.common.format == Format::Json { Ok(()) } else { self.print(&outcomes, peak) };
        let (score, tested) = match (&ended, &self.dataset.test) {
            (Ok(()), Some(test)) => {
                let learned = engine.learned();
                drop(engine);
                match self.test(&machine, &workload, learned, Arc::clone(test)) {
                    Ok(score) => (Some(score), Ok(())),
                    Err(failure) => (None, Err(failure)),
                }
            }
            _ => (None, Ok(())),
        };
        let concluded = match self.common.format {
            Format::Json => self.print_json(&outcomes, score, peak),
            Format::Table => print_test(score),
            Format::Csv => Ok(()),
        };
        // After the results, so that a full disk costs only the trace.
        let traced = match (trace, &self.options.trace) {
            (Some(trace), Some(path)) => write_file(path, trace.json(&self.plan.simulation)),
            _ => Ok(()),
        };
        first([ended, saved, counted, printed, tested, concluded, traced])
    }

    /// Takes steps until all are done, something fails, or the user stops it.
    fn learn<M: Machine>(
        &self,
        engine: &mut Engine<M>,
        workload: &Workload<'_>,
        trace: &mut Option<Trace>,
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), Failure> {
        let Position { step: before, samples } = self.position(0);
        let batches = Loader::shuffled_after(Arc::clone(&self.dataset.train), self.plan.batch, self.seed, samples)?;
        let (steps, begin) = (self.steps(), Instant::now());
        let rate = solver::learning_rate(self.options, &self.rule, steps);
        if before >= steps {
            message::note(format_args!("all {steps} steps were taken before; raise --steps or --epochs to train on"));
        }
        let bar = Bar::new(format!("step {before} of {steps}"), None);
        // The range first: a batch that no step takes must not be waited for.
        for (step, batch) in (before + 1..=steps).zip(batches) {
            let batch = batch?;
            let start = Nanos::from(begin.elapsed());
            engine.set_learning_rate(rate.at(step - 1));
            let outcome = engine.step(&batch.samples, &batch.labels)?;
            if let Some(trace) = trace {
                trace.ran(start, &engine.spans());
            }
            bar.set(format!("step {step} of {steps}, loss {:.4}", outcome.loss), step as f64 / steps as f64);
            tracing::info!("step {step}: loss {:.4}, {}", outcome.loss, outcome.time);
            outcomes.push(outcome);
            if !outcome.loss.is_finite() {
                let loss = outcome.loss;
                return Err(Failure::Wrong(format!(
                    "the loss is {loss} at step {step}; try a smaller --learning-rate"
                )));
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(Failure::Stopped(format!("interrupted after {step} of {steps} steps")));
            }
            let is_due = self.options.save_every.is_some_and(|every| step % every == 0) && step < steps;
            if is_due && let Err(failure) = self.save(engine, workload, outcomes.len() as u64) {
                // The run is worth more than this file: the next save may succeed, and the last one must.
                message::warn(failure.text());
            }
        }
        Ok(())
    }

    /// Scores the trained network on the test data.
    fn test<M: Machine>(
        &self,
        machine: impl Fn() -> Result<M, Failure>,
        workload: &Workload<'_>,
        learned: Result<Learned, tightfit_train::Error>,
        test: Arc<dyn Source>,
    ) -> Result<Score, Failure> {
        let _bar = Bar::new("testing", None);
        Ok(evaluate(machine()?, workload, &self.plan.schedule, &learned?, test)?)
    }

    /// Prints the results of training, as a table or as CSV.
    fn print(&self, outcomes: &[Outcome], peak: Bytes) -> Result<(), Failure> {
        let Plan { network, batch, types, options, host, baseline, offloaded, .. } = self.plan;
        let before = self.position(0).step as usize;
        if self.common.format == Format::Csv {
            return print_grid(&rows(outcomes, batch, 1, before), Format::Csv);
        }
        let every = outcomes.len().div_ceil(ROWS).max(1);
        let head = format!(
            "{network} on {}, mini-batch {batch}, {types}, {}\npolicy {}: peak {peak} of {} (everything resident: \
             {baseline}), host {host}, {offloaded} offloaded per step\n",
            self.dataset.name, self.device, options.policy, options.budget,
        );
        let tail = format!(
            "{}, {} per step (median)\n",
            count(outcomes.len(), "step"),
            median(outcomes.iter().map(|outcome| outcome.time))
        );
        print(&format!("{head}\n{}\n{tail}", rows(outcomes, batch, every, before).table(super::terminal())))
    }

    /// Prints everything as one JSON object, in which a loss that is not finite is null.
    fn print_json(&self, outcomes: &[Outcome], score: Option<Score>, peak: Bytes) -> Result<(), Failure> {
        let samples = outcomes.len() * self.plan.batch;
        let Plan { network, batch, types, options, host, min_feasible, baseline, offloaded, .. } = self.plan;
        let losses: Vec<f64> = outcomes.iter().map(|outcome| outcome.loss).collect();
        let object = json!({
            "network": network, "batch": batch, "backend": self.device.backend, "device": self.device.to_string(),
            "types": types.to_string(), "policy": options.policy.name(), "budget_bytes": options.budget.0,
            "peak_bytes": peak.0, "planned_peak_bytes": self.plan.peak.0, "host_bytes": host.0,
            "min_feasible_bytes": min_feasible.0,
            "baseline_bytes": baseline.0, "offloaded_bytes": offloaded.0, "data": self.dataset.name,
            "steps": outcomes.len(), "steps_before": self.position(0).step, "samples": samples, "step_time_us": median(outcomes.iter().map(|outcome| outcome.time)).as_micros(),
            "planned_step_time_us": self.plan.step_time.as_micros(),
            "loss": losses.last(), "losses": losses,
            "test_accuracy": score.map(|score| score.accuracy()), "test_loss": score.map(|score| score.loss),
            "test_samples": score.map(|score| score.samples),
        });
        print(&format!("{object:#}\n"))
    }
}

/// Prints the test accuracy, if there was a test.
fn print_test(score: Option<Score>) -> Result<(), Failure> {
    score.map_or(Ok(()), |score| {
        let (right, of) = (score.correct, score.samples);
        print(&format!("test accuracy {:.2}% ({right} of {of})\n", 100.0 * score.accuracy()))
    })
}

/// Maximum rows of the table; if there are more steps, each row covers several.
const ROWS: usize = 10;

/// One row per `every` steps, with their means; `before` steps were taken before this run.
fn rows(outcomes: &[Outcome], batch: &usize, every: usize, before: usize) -> Grid {
    let right = Align::Right;
    let mut grid = Grid::new([("steps", right), ("loss", right), ("correct [%]", right), ("step time [µs]", right)]);
    for (part, outcomes) in outcomes.chunks(every).enumerate() {
        let mean = |of: fn(&Outcome) -> f64| outcomes.iter().map(of).sum::<f64>() / outcomes.len() as f64;
        grid.push([
            (before + part * every + outcomes.len()).to_string(),
            format!("{:.4}", mean(|outcome| outcome.loss)),
            format!("{:.1}", 100.0 * mean(|outcome| outcome.correct as f64) / *batch as f64),
            format!("{:.0}", mean(|outcome| outcome.time.as_micros())),
        ]);
    }
    grid
}
