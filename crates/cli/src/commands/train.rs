//! `tightfit train NETWORK`

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use serde_json::{Value, json};
use tightfit_network::Shape;
use tightfit_plan::{Mode, Plan, Workload};
use tightfit_report::{Align, Grid, count, lines};
use tightfit_train::data::{Augmentation, Loader, Source};
use tightfit_train::machine::cpu::{self, CpuMachine};
use tightfit_train::machine::cuda::{CudaMachine, Modes};
use tightfit_train::{Engine, Learned, Machine, Poison, Score, StepResult, Trace, evaluate};
use tightfit_units::{Bytes, Nanos};

use super::dataset::{self, Labeled};
use super::job::Job;
use super::networked::{Ends, ends, median, must_compute, peak, read_plan};
use super::print_grid;
use super::saving::Position;
use super::solver;
use super::start::{self, Start};
use crate::failure::{Failure, check_outputs, first, print, write_file};
use crate::message;
use crate::model::{self, must_run, must_run_on};
use crate::options::{Common, Format, TrainOptions};
use crate::planning::{Goal, Request};
use crate::progress::Bar;
use crate::session::{Session, cuda_options, device_numbers};

/// How to measure less.
const CHOICES: &str = "use a smaller --batch to measure less; `tightfit plan --assume` measures nothing";

pub fn run(options: &TrainOptions, common: &Common) -> Result<(), Failure> {
    // Check all options before measuring anything.
    check_outputs([("--trace", &options.trace), ("--save", &options.save)])?;
    solver::check_schedule(options)?;
    let opened = model::open(&options.model.network)?;
    let network = opened.network.clone();
    must_run(&opened, "train")?;
    let Ends { sample, classes, has_loss: true } = ends(&network)? else {
        return Err(Failure::Usage(format!("{} has no loss layer, so it cannot be trained", network.name())));
    };
    let start = Start::read(options.load.as_deref(), options.resume.as_deref(), &opened, options.model.random_weights)?;
    let seed = start.progress().map_or(common.seed, |progress| progress.seed);
    let (test, pixels) = (options.test_data.as_deref(), &options.model.pixels);
    let mut dataset = Labeled { name: &options.data, test, pixels, sample, classes, seed }.open()?;
    if let Some(share) = options.test_share {
        dataset = dataset.with_test_share(share, seed);
    }
    start.check_data(&dataset)?;
    must_change(options.flip, options.shift, dataset.train.shape())?;
    message::say(dataset::summary(&dataset));
    let names = start::names(&opened);
    let shared = model::shared(&opened)?;
    let mut session = Session::open(common)?;
    must_compute(session.device(), options.graph, "train")?;
    must_run_on(&session.device().backend, &network, "train")?;
    let mut planning = None;
    let (network, plan) = match &options.plan {
        Some(path) => read_plan(path, &network, Mode::Training, session.device())?,
        None => {
            let goal = Goal::training(options.solver.unwrap_or_default(), options.momentum)?;
            let request =
                Request { planning: &options.model.planning, network: &network, goal, common, choices: CHOICES };
            let prepared = request.prepare(&mut session)?;
            let begin = Instant::now();
            let mut plan = prepared.plan()?;
            plan.frozen.clone_from(&options.model.planning.freeze);
            planning = Some(Nanos::from(begin.elapsed()));
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
        planning,
        start,
        names,
        shared,
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

/// Refuses `--shift` and `--flip` on samples that have no room for them.
///
/// # Errors
/// [`Failure::Usage`] with the samples' extents, and the largest shift if there is one.
fn must_change(flip: bool, shift: usize, sample: Shape) -> Result<(), Failure> {
    let [_, height, width] = sample.extents3();
    let most = height.max(width) - 1;
    let (option, why) = if flip && width == 1 {
        ("--flip".to_owned(), "which mirroring does not change; leave the option out".to_owned())
    } else if shift > most && most == 0 {
        (format!("--shift {shift}"), "which leaves no room to move them; leave the option out".to_owned())
    } else if shift > most {
        (format!("--shift {shift}"), format!("so they can move by at most {most}; use --shift {most} or less"))
    } else {
        return Ok(());
    };
    Err(Failure::Usage(format!("{option}: the samples are {height} x {width} pixels, {why}")))
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

    /// The step to stop for a test at, after this number of steps: the end of the epoch, or of the run if it has no test after
    /// each epoch.
    fn next_stop(&self, step: u64) -> u64 {
        let end = (step / self.epoch() + 1) * self.epoch();
        let tests = self.options.epochs.is_some() && self.dataset.test.is_some();
        if tests { end.min(self.steps()) } else { self.steps() }
    }

    /// Trains, prints the results, tests, and writes the trace. Creates the test machine after dropping the training
    /// machine. Does each of these even if another one failed.
    ///
    /// # Errors
    /// The first failure.
    fn carry_out<M: Machine>(&self, machine: impl Fn() -> Result<M, Failure>) -> Result<(), Failure> {
        let workload = self.plan.workload(self.network)?;
        self.check_room(&workload)?;
        let schedule = &self.plan.schedule;
        let mut engine = self.engine(&machine, &workload)?;
        self.start.apply(&mut engine, &workload, &self.names)?;
        self.note_changes();
        let mut run = Run { trace: self.options.trace.as_ref().map(|_| Trace::new(schedule)), ..Run::default() };
        let mut batches = self.batches()?;
        let steps = self.steps();
        let mut highest = Bytes::ZERO;
        let ended = loop {
            let stop = self.next_stop(self.position(run.outcomes.len() as u64).step);
            let ended = self.learn(&mut engine, &workload, &mut batches, &mut run, stop);
            if ended.is_err() || stop >= steps {
                break ended;
            }
            // During the test, the trained state stays on the host, so that the test can use the whole device.
            highest = highest.max(peak(&mut engine, &ended).0);
            let kept = engine.kept()?;
            drop(engine);
            let tested: Result<(), Failure> = self.dataset.test.iter().try_for_each(|test| {
                let score = self.test(&machine, &workload, &kept, Arc::clone(test))?;
                run.tested(stop, stop / self.epoch(), score);
                Ok(())
            });
            if let Err(failure) = tested {
                // The run is worth more than this test; the last one must succeed.
                message::warn(Failure::text(&failure));
            }
            let rebuilt = self.engine(&machine, &workload).and_then(|mut engine| {
                engine.take_over(&kept)?;
                engine.continue_after(stop);
                Ok(engine)
            });
            engine = match rebuilt {
                Ok(engine) => engine,
                Err(failure) => {
                    let saved = self.save_last(&kept, &workload, run.outcomes.len() as u64);
                    return first([Err(failure), saved]);
                }
            };
        };
        drop(batches);
        if run.outcomes.is_empty() {
            return ended;
        }
        let (ended, saved) = self.conclude(&mut engine, &workload, ended, run.outcomes.len() as u64);
        let (peak, counted) = peak(&mut engine, &ended);
        let peak = peak.max(highest);
        let outcomes = &run.outcomes;
        let printed = if self.common.format == Format::Json { Ok(()) } else { self.print(outcomes, peak) };
        let (score, tested) = match (&ended, &self.dataset.test) {
            (Ok(()), Some(test)) => {
                let learned = engine.learned();
                drop(engine);
                match learned
                    .map_err(Failure::from)
                    .and_then(|learned| self.test(&machine, &workload, &learned, Arc::clone(test)))
                {
                    Ok(score) => (Some(score), Ok(())),
                    Err(failure) => (None, Err(failure)),
                }
            }
            _ => (None, Ok(())),
        };
        if let (Some(score), Some(_)) = (score, self.options.epochs) {
            run.tested(steps, steps / self.epoch(), score);
        }
        let concluded = match self.common.format {
            Format::Json => self.print_json(&run, score, peak),
            Format::Table => print_test(score),
            Format::Csv => Ok(()),
        };
        // After the results, so that a full disk costs only the trace.
        let traced = match (run.trace, &self.options.trace) {
            (Some(trace), Some(path)) => write_file(path, trace.json(self.plan)),
            _ => Ok(()),
        };
        first([ended, saved, counted, printed, tested, concluded, traced])
    }

    /// A new engine with initial weights.
    fn engine<'w, M: Machine>(
        &self,
        machine: &impl Fn() -> Result<M, Failure>,
        workload: &Workload<'w>,
    ) -> Result<Engine<M>, Failure> {
        let poison = if self.options.check { Poison::Freed } else { Poison::Nothing };
        let (schedule, solver) = (&self.plan.schedule, self.solver());
        Ok(Engine::with_shared(workload, schedule, machine()?, solver, poison, &self.shared)?)
    }

    /// The mini-batches that follow the position of the run.
    fn batches(&self) -> Result<Loader, Failure> {
        let Position { samples, step } = self.position(0);
        let steps = self.steps();
        if step >= steps {
            message::note(format_args!("all {steps} steps were taken before; raise --steps or --epochs to train on"));
        }
        let TrainOptions { flip, shift, crop, .. } = *self.options;
        let changes = Augmentation { flip, shift, crop, seed: self.seed };
        let (source, batch) = (Arc::clone(&self.dataset.train), self.plan.batch);
        Ok(Loader::shuffled_after(source, batch, self.seed, samples, changes)?)
    }

    /// Takes steps until this one is done, something fails, or the user stops it.
    fn learn<M: Machine>(
        &self,
        engine: &mut Engine<M>,
        workload: &Workload<'_>,
        batches: &mut Loader,
        Run { outcomes, trace, begin, .. }: &mut Run,
        until: u64,
    ) -> Result<(), Failure> {
        let (steps, before) = (self.steps(), self.position(outcomes.len() as u64).step);
        let rate = solver::learning_rate(self.options, &self.rule, steps);
        let bar = Bar::new(format!("step {before} of {steps}"), None);
        // Do not wait for a batch that no step will take.
        if before < until
            && let Some(batch) = batches.next().transpose()?
        {
            engine.feed(&batch.samples, &batch.labels)?;
        }
        for step in before + 1..=until {
            let start = Nanos::from(begin.elapsed());
            engine.set_learning_rate(rate.at(step - 1));
            let outcome = engine.run(|| if step < until { batches.next() } else { None })?;
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
        learned: &Learned,
        test: Arc<dyn Source>,
    ) -> Result<Score, Failure> {
        let _bar = Bar::new("testing", None);
        Ok(evaluate(machine()?, workload, &self.plan.schedule, learned, test)?)
    }

    /// Prints the results of training, as a table or as CSV.
    fn print(&self, outcomes: &[StepResult], peak: Bytes) -> Result<(), Failure> {
        let Plan { network, batch, types, options, host, baseline, offloaded, .. } = self.plan;
        let before = self.position(0).step as usize;
        if self.common.format == Format::Csv {
            return print_grid(&values(outcomes, before), Format::Csv);
        }
        let every = outcomes.len().div_ceil(ROWS).max(1);
        let what = [
            format!("{network} on {}", self.dataset.name),
            format!("mini-batch {batch}"),
            types.to_string(),
            self.device.to_string(),
        ];
        let memory = [
            format!("policy {}: peak {peak} of {} (plain: {baseline})", options.policy, options.budget),
            format!("host {host}"),
            format!("{offloaded} offloaded per step"),
        ];
        let head = lines(what) + &lines(memory);
        let tail = format!(
            "{}, {} per step (median)\n",
            count(outcomes.len(), "step"),
            median(outcomes.iter().map(|outcome| outcome.time))
        );
        print(&format!("{head}\n{}\n{tail}", rows(outcomes, batch, every, before).table(super::terminal())))
    }

    /// Prints everything as one JSON object, in which a loss that is not finite is null.
    fn print_json(&self, run: &Run, score: Option<Score>, peak: Bytes) -> Result<(), Failure> {
        let outcomes = &run.outcomes;
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
            "planned_step_time_us": self.plan.step_time.as_micros(), "recomputed_us": self.plan.recomputed.as_micros(),
            "bound_us": self.plan.bound.map(Nanos::as_micros), "gap": self.plan.gap,
            "planning_us": self.planning.map(Nanos::as_micros),
            "loss": losses.last(), "losses": losses,
            "correct": outcomes.iter().map(|outcome| outcome.correct).collect::<Vec<_>>(),
            "step_times_us": outcomes.iter().map(|outcome| outcome.time.as_micros()).collect::<Vec<_>>(),
            "test_accuracy": score.map(|score| score.accuracy()), "test_loss": score.map(|score| score.loss),
            "epochs": run.epochs, "train_samples": self.dataset.train.len(), "classes": self.dataset.train.classes(),
            "test_samples": score.map(|score| score.samples),
        });
        print(&format!("{object:#}\n"))
    }
}

/// The progress of a run.
struct Run {
    begin: Instant,
    outcomes: Vec<StepResult>,
    trace: Option<Trace>,
    /// The test after each epoch, as the JSON output has it.
    epochs: Vec<Value>,
}

impl Default for Run {
    fn default() -> Run {
        Run { begin: Instant::now(), outcomes: Vec::new(), trace: None, epochs: Vec::new() }
    }
}

impl Run {
    /// Reports a test after an epoch at once, and keeps it.
    fn tested(&mut self, step: u64, epoch: u64, score: Score) {
        let (percent, loss) = (100.0 * score.accuracy(), score.loss);
        message::say(format_args!("epoch {epoch}, step {step}: test accuracy {percent:.2}%, test loss {loss:.4}"));
        let accuracy = score.accuracy();
        self.epochs.push(json!({"epoch": epoch, "step": step, "test_accuracy": accuracy, "test_loss": loss}));
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

/// One row per step for programs; `before` steps were taken before this run.
fn values(outcomes: &[StepResult], before: usize) -> Grid {
    let mut grid = Grid::new(["step", "loss", "correct", "step_time_us"].map(|column| (column, Align::Right)));
    for (step, outcome) in (before + 1..).zip(outcomes) {
        let time = outcome.time.as_micros().to_string();
        grid.push([step.to_string(), outcome.loss.to_string(), outcome.correct.to_string(), time]);
    }
    grid
}

/// One row per `every` steps for people, with their means; `before` steps were taken before this run.
fn rows(outcomes: &[StepResult], batch: &usize, every: usize, before: usize) -> Grid {
    let right = Align::Right;
    let mut grid = Grid::new([("steps", right), ("loss", right), ("correct [%]", right), ("step time [µs]", right)]);
    for (part, outcomes) in outcomes.chunks(every).enumerate() {
        let mean = |of: fn(&StepResult) -> f64| outcomes.iter().map(of).sum::<f64>() / outcomes.len() as f64;
        grid.push([
            (before + part * every + outcomes.len()).to_string(),
            format!("{:.4}", mean(|outcome| outcome.loss)),
            format!("{:.1}", 100.0 * mean(|outcome| outcome.correct as f64) / *batch as f64),
            format!("{:.0}", mean(|outcome| outcome.time.as_micros())),
        ]);
    }
    grid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_room_for_their_changes() {
        let changed = |flip, shift, height, width| must_change(flip, shift, Shape::image(3, height, width));
        assert!(changed(true, 7, 8, 8).is_ok() && changed(false, 7, 1, 8).is_ok() && changed(false, 0, 1, 1).is_ok());
        for (result, words) in [
            (
                changed(false, 8, 8, 4),
                "the samples are 8 x 4 pixels, so they can move by at most 7; use --shift 7 or less",
            ),
            (changed(false, 1, 1, 1), "leaves no room to move them; leave the option out"),
            (changed(true, 0, 8, 1), "--flip: the samples are 8 x 1 pixels, which mirroring does not change"),
        ] {
            let failure = result.unwrap_err().text();
            assert!(failure.contains(words), "{failure}");
        }
    }
}
