//! Where a run's weights come from: random numbers, an ONNX model, a file of weights, or an earlier run.

use std::path::{Path, PathBuf};

use tightfit_onnx::Numbers;
use tightfit_plan::Workload;
use tightfit_train::checkpoint::Names;
use tightfit_train::data::Dataset;
use tightfit_train::{Checkpoint, Engine, Machine, Progress, replace_weights};

use crate::failure::Failure;
use crate::message;
use crate::model::{Opened, listed};

/// The names of a network's layers in files of weights.
pub fn names(opened: &Opened) -> Names {
    opened.model.as_ref().map_or_else(|| Names::of(&opened.network), Names::of_model)
}

/// Where the weights come from.
pub enum Start {
    /// The seed.
    Random,
    /// The weights in an ONNX model.
    Model(Vec<Numbers>),
    /// A file of weights.
    File(PathBuf, Checkpoint),
    /// A run to continue.
    Run(PathBuf, Checkpoint, Progress),
}

impl Start {
    /// Reads the source that the options name: weights to load, a run to resume, or else the ONNX model unless
    /// `random`.
    ///
    /// # Errors
    /// The errors of reading the file or the model; [`Failure::Usage`] for a file to resume that has no position.
    pub fn read(load: Option<&Path>, resume: Option<&Path>, opened: &Opened, random: bool) -> Result<Start, Failure> {
        if let Some(path) = load {
            return Ok(Start::File(path.to_owned(), Checkpoint::read(path)?));
        }
        let Some(path) = resume else {
            return Ok(opened.weights(random)?.map_or(Start::Random, Start::Model));
        };
        let checkpoint = Checkpoint::read(path)?;
        match checkpoint.progress()? {
            Some(progress) => Ok(Start::Run(path.to_owned(), checkpoint, progress)),
            None => Err(Failure::Usage(format!(
                "--resume {}: it was not written by `tightfit train --save`; use --load to start from its weights",
                path.display()
            ))),
        }
    }

    /// The position to continue from, if there is one.
    pub fn progress(&self) -> Option<&Progress> {
        match self {
            Start::Run(_, _, progress) => Some(progress),
            _ => None,
        }
    }

    /// The names of the classes that the weights were trained on, if they are known.
    pub fn classes(&self) -> Vec<String> {
        match self {
            // Files of other programs have other metadata.
            Start::File(_, checkpoint) => {
                checkpoint.progress().ok().flatten().map_or_else(Vec::new, |found| found.classes)
            }
            Start::Run(_, _, progress) => progress.classes.clone(),
            Start::Random | Start::Model(_) => Vec::new(),
        }
    }

    /// Refuses to continue with other data, whose order the position does not fit.
    ///
    /// # Errors
    /// [`Failure::Usage`].
    pub fn check_data(&self, data: &Dataset) -> Result<(), Failure> {
        let Start::Run(path, _, progress) = self else { return Ok(()) };
        let (had, has) = ((&progress.data, progress.data_samples), (&data.name, data.train.len() as u64));
        if had == has {
            return Ok(());
        }
        let path = path.display();
        Err(Failure::Usage(format!(
            "--resume {path}: it was saved while training on {} ({} samples), not on {} ({} samples); use --load {path} \
             to start from its weights with other data",
            had.0, had.1, has.0, has.1
        )))
    }

    /// Puts the weights into an engine; for a run to continue, its solver state and position too. Notes the
    /// tensors of a file that the network does not have.
    ///
    /// # Errors
    /// The errors of the file: tensors that are missing or have another shape.
    pub fn apply<M: Machine>(
        &self,
        engine: &mut Engine<M>,
        workload: &Workload<'_>,
        names: &Names,
    ) -> Result<(), Failure> {
        match self {
            Start::Random => Ok(()),
            Start::Model(weights) => {
                let mut learned = engine.learned()?;
                replace_weights(workload, &mut learned, weights)?;
                Ok(engine.take_over(&learned)?)
            }
            Start::File(path, checkpoint) => {
                let mut learned = engine.learned()?;
                let unused = checkpoint.weights(workload, names, &mut learned)?;
                if !unused.is_empty() {
                    let (path, count) = (path.display(), unused.len());
                    message::note(format_args!("{path}: {count} of its tensors are not used: {}", listed(&unused)));
                }
                Ok(engine.take_over(&learned)?)
            }
            Start::Run(_, checkpoint, progress) => {
                let mut kept = engine.kept()?;
                checkpoint.weights(workload, names, &mut kept)?;
                checkpoint.solver_state(workload, names, &mut kept)?;
                engine.take_over(&kept)?;
                engine.continue_after(progress.step);
                Ok(())
            }
        }
    }

    /// The name of the weights in reports; `network` is the network's name or path.
    pub fn name(&self, network: &str) -> String {
        match self {
            Start::Random => "random".to_owned(),
            Start::Model(_) => network.to_owned(),
            Start::File(path, _) | Start::Run(path, _, _) => path.display().to_string(),
        }
    }
}
