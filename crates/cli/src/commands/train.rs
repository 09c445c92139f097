//! `tightfit train NETWORK`

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::json;
use tightfit_core::network::{LayerKind, Network, Shape};
use tightfit_core::plan::{Plan, Workload};
use tightfit_core::report::{Align, Grid};
use tightfit_core::{Bytes, Device, Nanos};
use tightfit_train::data::{self, Dataset, Loader};
use tightfit_train::machine::cpu::{self, CpuMachine};
use tightfit_train::machine::cuda::{CudaMachine, Modes};
use tightfit_train::{Engine, Machine, Outcome, Score, Solver, Trace, evaluate};

use super::print_grid;
use crate::failure::{Failure, print, write_file};
use crate::options::{Common, Format, TrainOptions};
use crate::planning::plan_of;
use crate::progress::Steps;
use crate::session::{Session, cuda_options, device_numbers};

pub fn run(options: &TrainOptions, common: &Common) -> Result<(), Failure> {
    let mut session = Session::open(common)?;
    let network = Network::open(&options.network)?;
    let (network, plan) = match &options.plan {
        Some(path) => read_plan(path, &network)?,
        None => {
            let plan = plan_of(&options.planning, &network, false, &mut session, common)?;
            (network, plan)
        }
    };
    let (sample, classes) = ends(&network)?;
    let dataset = data::open(&options.data, sample, classes, common.seed)?;
    let device = session.device().clone();
    let job = Job { options, common, network: &network, plan: &plan, dataset, device, stop: Arc::clone(&session.stop) };
    // What the measuring took is given back before the arenas are taken.
    drop(session);
    match job.device.backend.as_str() {
        "cpu" if options.graph => Err(Failure::Usage("--graph: the CPU has no CUDA graphs; leave it out".to_owned())),
        "cpu" => job.carry_out(|| Ok(CpuMachine::new(job.cpu_options()))),
        "cuda" => {
            let opened = cuda_options(common, device_numbers(common)?[0]);
            job.carry_out(|| Ok(CudaMachine::open(&opened, job.cuda_modes())?))
        }
        other => {
            let why = format!("--backend {other} cannot train; --backend cpu and cuda can");
            Err(Failure::Usage(why))
        }
    }
}

/// The plan of a file, if it is one of the network.
fn read_plan(path: &std::path::Path, network: &Network) -> Result<(Network, Plan), Failure> {
    let (planned, plan) = Plan::read(path)?;
    if planned.layers() != network.layers() {
        let (planned, given) = (planned.name(), network.name());
        return Err(Failure::Usage(format!("{} plans {planned}, which is not {given}", path.display())));
    }
    if plan.inference {
        return Err(Failure::Usage(format!("{} plans inference; plan without --inference", path.display())));
    }
    Ok((planned, plan))
}

/// The shape of a sample, and the classes that are told apart.
fn ends(network: &Network) -> Result<(Shape, usize), Failure> {
    let find = |wanted: fn(&LayerKind) -> bool| network.layers().iter().find(|layer| wanted(&layer.kind));
    let input = find(|kind| matches!(kind, LayerKind::Input { .. }));
    let loss = find(|kind| *kind == LayerKind::SoftmaxLoss);
    match (input, loss) {
        (Some(input), Some(loss)) => Ok((input.shape, loss.shape.len())),
        _ => Err(Failure::Usage(format!("{} has no loss, so there is nothing to learn", network.name()))),
    }
}

/// A training with all that it needs.
struct Job<'a> {
    options: &'a TrainOptions,
    common: &'a Common,
    network: &'a Network,
    plan: &'a Plan,
    dataset: Dataset,
    device: Device,
    stop: Arc<AtomicBool>,
}

impl Job<'_> {
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

    /// Steps to take: as many as asked for, or those of the epochs.
    fn steps(&self) -> u64 {
        let epoch = (self.dataset.train.len() as u64).div_ceil(self.plan.batch as u64);
        self.options.epochs.map_or(self.options.steps, |epochs| epochs.saturating_mul(epoch))
    }

    /// Trains, tests, and prints what came of it. The machine of the test is made after that of the training has gone.
    fn carry_out<M: Machine>(&self, machine: impl Fn() -> Result<M, Failure>) -> Result<(), Failure> {
        let workload = Workload::new(self.network, self.plan.batch, self.plan.types, false)?;
        let schedule = &self.plan.schedule;
        let solver = Solver {
            learning_rate: self.options.learning_rate,
            momentum: self.options.momentum,
            weight_decay: self.options.weight_decay,
            loss_scale: self.options.loss_scale,
            seed: self.common.seed,
            ..Solver::default()
        };
        let mut engine = Engine::new(&workload, schedule, machine()?, solver, self.options.check)?;
        let mut trace = self.options.trace.as_ref().map(|_| Trace::new(&workload, schedule));
        let mut batches = Loader::shuffled(Arc::clone(&self.dataset.train), self.plan.batch, self.common.seed)?;
        let (steps, begin) = (self.steps(), Instant::now());
        let bar = Steps::new(steps);
        let mut outcomes = Vec::new();
        while (outcomes.len() as u64) < steps && !self.stop.load(Ordering::Relaxed) {
            let Some(batch) = batches.next() else { break };
            let batch = batch?;
            let start = Nanos::from(begin.elapsed());
            let outcome = engine.step(&batch.samples, &batch.labels)?;
            if let Some(trace) = &mut trace {
                trace.ran(start, &engine.spans());
            }
            bar.done(outcome.loss);
            tracing::info!("step {}: loss {:.4}, {}", outcomes.len() + 1, outcome.loss, outcome.time);
            outcomes.push(outcome);
            if !outcome.loss.is_finite() {
                let (step, loss) = (outcomes.len(), outcome.loss);
                return Err(Failure::Wrong(format!(
                    "the loss is {loss} at step {step}; try a smaller --learning-rate"
                )));
            }
        }
        drop(bar);
        if let (Some(mut trace), Some(path)) = (trace, &self.options.trace) {
            trace.planned(&self.plan.simulation);
            write_file(path, trace.json())?;
        }
        let stopped = self.stop.load(Ordering::Relaxed);
        let peak = engine.machine().high_water()?.unwrap_or(engine.peak());
        let learned = engine.learned()?;
        drop(engine);
        let score = match &self.dataset.test {
            Some(test) if !stopped => Some(evaluate(machine()?, &workload, schedule, &learned, Arc::clone(test))?),
            _ => None,
        };
        self.print(&outcomes, score, peak)?;
        match outcomes.len() {
            done if stopped => Err(Failure::Stopped(format!("interrupted after {done} of {steps} steps"))),
            _ => Ok(()),
        }
    }

    fn print(&self, outcomes: &[Outcome], score: Option<Score>, peak: Bytes) -> Result<(), Failure> {
        let step_time = median(outcomes);
        let samples = outcomes.len() * self.plan.batch;
        let Plan { network, batch, types, options, host, min_feasible, baseline, offloaded, .. } = self.plan;
        match self.common.format {
            Format::Json => {
                let losses: Vec<f64> = outcomes.iter().map(|outcome| outcome.loss).collect();
                let object = json!({
                    "network": network, "batch": batch, "backend": self.device.backend, "device": self.device.to_string(),
                    "types": types.to_string(), "policy": options.policy.name(), "budget_bytes": options.budget.0,
                    "peak_bytes": peak.0, "host_bytes": host.0, "min_feasible_bytes": min_feasible.0,
                    "baseline_bytes": baseline.0, "offloaded_bytes": offloaded.0, "data": self.dataset.name,
                    "steps": outcomes.len(), "samples": samples, "step_time_us": step_time.as_micros(),
                    "planned_step_time_us": self.plan.step_time.as_micros(),
                    "loss": losses.last(), "losses": losses,
                    "test_accuracy": score.map(|score| score.accuracy()), "test_loss": score.map(|score| score.loss),
                    "test_samples": score.map(|score| score.samples),
                });
                print(&format!("{object:#}\n"))
            }
            Format::Csv => print_grid(&rows(outcomes, batch, 1), Format::Csv),
            Format::Table => {
                let every = outcomes.len().div_ceil(ROWS).max(1);
                let head = format!(
                    "{network} on {}, mini-batch {batch}, {types}, {}\npolicy {}: peak {peak} of {} (everything resident: \
                     {baseline}), host {host}, {offloaded} offloaded in a step\n",
                    self.dataset.name, self.device, options.policy, options.budget,
                );
                let test = score.map_or(String::new(), |score| {
                    let (right, of) = (score.correct, score.samples);
                    format!(", test accuracy {:.2} % ({right} of {of})", 100.0 * score.accuracy())
                });
                let tail = format!("{} steps, {step_time} a step (median){test}\n", outcomes.len());
                print(&format!("{head}\n{}\n{tail}", rows(outcomes, batch, every).table(super::terminal())))
            }
        }
    }
}

/// Rows of the table: each sums up several steps if there are more.
const ROWS: usize = 10;

/// A row for every so many steps: the means over them.
fn rows(outcomes: &[Outcome], batch: &usize, every: usize) -> Grid {
    let right = Align::Right;
    let mut grid = Grid::new([("steps", right), ("loss", right), ("correct [%]", right), ("step time [µs]", right)]);
    for (part, outcomes) in outcomes.chunks(every).enumerate() {
        let mean = |of: fn(&Outcome) -> f64| outcomes.iter().map(of).sum::<f64>() / outcomes.len() as f64;
        grid.push([
            (part * every + outcomes.len()).to_string(),
            format!("{:.4}", mean(|outcome| outcome.loss)),
            format!("{:.1}", 100.0 * mean(|outcome| outcome.correct as f64) / *batch as f64),
            format!("{:.0}", mean(|outcome| outcome.time.as_micros())),
        ]);
    }
    grid
}

/// The time of a step in the middle; the first pays for what is touched for the first time.
fn median(outcomes: &[Outcome]) -> Nanos {
    let mut times: Vec<Nanos> = outcomes.iter().skip(usize::from(outcomes.len() > 1)).map(|o| o.time).collect();
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
