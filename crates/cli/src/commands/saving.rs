//! Saves a training run, so that it can be continued or its weights used.

use std::path::Path;

use tightfit_network::{AdamW, Rule, Sgd};
use tightfit_plan::Workload;
use tightfit_train::{Decay, Engine, Learned, LearningRate, Machine, Progress, Solver, checkpoint};
use tightfit_units::output;

use super::job::Job;
use super::rescue;
use super::solver::learning_rate;
use super::start::Start;
use crate::failure::Failure;
use crate::message;
use crate::options::TrainOptions;

/// How far a run is.
pub struct Position {
    /// Steps taken.
    pub step: u64,
    /// Samples taken from the shuffled data.
    pub samples: u64,
}

impl Job<'_> {
    /// The position after this number of steps of this run, counted from the beginning of the run that it continues.
    pub fn position(&self, steps: u64) -> Position {
        let (step, samples) = self.start.progress().map_or((0, 0), |progress| (progress.step, progress.samples));
        Position { step: step + steps, samples: samples + steps * self.plan.batch as u64 }
    }

    fn settings(&self) -> String {
        let solver = described(&self.solver(), &learning_rate(self.options, &self.rule, self.steps()));
        let TrainOptions { flip, shift, crop, model, .. } = self.options;
        let pixels = &model.pixels;
        let pixels = match pixels.mean.is_empty() {
            true => "pixels from -1 to 1".to_owned(),
            false => format!("mean {:?}, std {:?}", pixels.mean, pixels.std),
        };
        // Without `crop` nothing is written of it, so the text equals the one in files from before that option.
        let crop = if *crop { ", crop" } else { "" };
        format!("{solver}, {pixels}, flip {flip}, shift {shift}{crop}")
    }

    fn progress(&self, steps: u64) -> Progress {
        let Position { step, samples } = self.position(steps);
        Progress {
            network: self.network.name().to_owned(),
            step,
            samples,
            seed: self.seed,
            data: self.dataset.name.clone(),
            data_samples: self.dataset.train.len() as u64,
            solver: self.settings(),
            classes: self.dataset.train.class_names(),
        }
    }

    /// Checks before the first step that the disk has room for the run, if the options name a file.
    ///
    /// # Errors
    /// The errors of [`output::check_room`].
    pub fn check_room(&self, workload: &Workload<'_>) -> Result<(), Failure> {
        let Some(path) = &self.options.save else { return Ok(()) };
        Ok(output::check_room(path, checkpoint::size(workload, &self.names))?)
    }

    /// Saves the run after this number of its steps, if the options name a file.
    ///
    /// # Errors
    /// The errors of reading the device and of writing the file; the previous file stays then.
    pub fn save<M: Machine>(&self, engine: &mut Engine<M>, workload: &Workload<'_>, steps: u64) -> Result<(), Failure> {
        let Some(path) = &self.options.save else { return Ok(()) };
        self.write(path, &engine.kept()?, workload, steps)
    }

    fn write(&self, path: &Path, kept: &Learned, workload: &Workload<'_>, steps: u64) -> Result<(), Failure> {
        Ok(checkpoint::save(path, workload, &self.names, kept, &self.progress(steps))?)
    }

    /// Saves the state of an engine when no later save will follow. If the file cannot be written, it is saved in the folder of the cache or in the
    /// folder for temporary files.
    ///
    /// # Errors
    /// The errors of writing the file, even if the run was saved elsewhere. The message names that place.
    pub fn save_last(&self, kept: &Learned, workload: &Workload<'_>, steps: u64) -> Result<(), Failure> {
        let Some(path) = &self.options.save else { return Ok(()) };
        let Err(failure) = self.write(path, kept, workload, steps) else { return Ok(()) };
        let needed = checkpoint::size(workload, &self.names);
        let saved = rescue::elsewhere(path, needed, self.common, |other| self.write(other, kept, workload, steps));
        Err(Failure::Wrong(format!("{}\n{saved}", failure.text())))
    }

    /// Saves a run that `ended` after this number of steps, and names the file if it was interrupted. Does not save weights
    /// that a failure may have spoiled. A run that was interrupted and could not be saved has failed.
    pub fn conclude<M: Machine>(
        &self,
        engine: &mut Engine<M>,
        workload: &Workload<'_>,
        ended: Result<(), Failure>,
        steps: u64,
    ) -> (Result<(), Failure>, Result<(), Failure>) {
        let Some(path) = self.options.save.as_ref().map(|path| path.display()) else { return (ended, Ok(())) };
        let mut save = || self.save_last(&engine.kept()?, workload, steps);
        match ended {
            Ok(()) => (Ok(()), save()),
            Err(Failure::Stopped(text)) => match save() {
                Ok(()) => {
                    let text = format!("{text}; saved in {path}: add --resume {path} to the command to continue");
                    (Err(Failure::Stopped(text)), Ok(()))
                }
                Err(failure) => (Err(Failure::Wrong(format!("{text}; {}", failure.text()))), Ok(())),
            },
            Err(failure) => {
                message::note(format_args!("these weights are not saved; {path} stays as it was last saved"));
                (Err(failure), Ok(()))
            }
        }
    }

    /// Notes a continued run whose solver has other settings than before.
    pub fn note_changes(&self) {
        let Start::Run(path, _, progress) = &self.start else { return };
        let (before, now) = (&progress.solver, self.settings());
        if *before != now {
            message::note(format_args!("{}: trained with {before} before; continuing with {now}", path.display()));
        }
    }
}

/// The settings of a solver, for people.
fn described(solver: &Solver, rate: &LearningRate) -> String {
    let (warm_up, scale) = (rate.warm_up, solver.loss_scale);
    let falls = match rate.decay {
        Decay::Constant => "constant".to_owned(),
        Decay::Step { every, factor } => format!("times {factor} every {every} steps"),
        Decay::Cosine => format!("cosine over {} steps", rate.steps),
    };
    let rule = match solver.rule {
        Rule::Sgd(Sgd { momentum, weight_decay, .. }) => {
            format!("sgd, momentum {momentum}, weight decay {weight_decay}")
        }
        Rule::AdamW(AdamW { weight_decay, .. }) => format!("adamw, weight decay {weight_decay}"),
    };
    format!("{rule}, learning rate {} {falls}, warm-up {warm_up}, loss scale {scale}", rate.base)
}
