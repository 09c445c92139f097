//! The model of a profile: a network whose layers are known, or a program whose convolutions alone are known.

use std::collections::HashSet;

use tightfit_conv::{Layout, Operation, Problem, Types};
use tightfit_network::{Kernel, Network};
use tightfit_units::Error;

use super::{Owner, RecordedNetwork, Recording, step_name};

/// A network, or a program that was recorded while it ran.
#[derive(Clone, Debug, PartialEq)]
pub enum Model {
    /// A network with known layers.
    Network(Network),
    /// A program under `tightfit run`, or training steps that were measured whole: its kernels and times are known, its
    /// layers are not.
    Program(RecordedNetwork),
}

impl Model {
    /// The built-in network or network file of this name or path ([`tightfit_onnx::open`]); otherwise the recording under this name: a program's
    /// convolutions, a list of layers, or training steps.
    ///
    /// # Errors
    /// The errors of [`tightfit_onnx::open`]. For an unknown name, the error also lists the recorded names.
    pub fn find(name: &str, recordings: &[Recording]) -> Result<Model, Error> {
        // A program's own file may have the program's name without being a network.
        let error = match tightfit_onnx::open(name) {
            Ok(network) => return Ok(Model::Network(network)),
            Err(error) => error,
        };
        let networks = || recordings.iter().flat_map(|recording| &recording.networks);
        let mut named: Vec<&RecordedNetwork> = networks().filter(|network| network.name == name).collect();
        // A program takes precedence over a network that was profiled under its name.
        named.sort_by_key(|network| network.owner != Owner::Program);
        let owner = named.first().map(|network| network.owner);
        if let Some(owner) = owner {
            // Each device has run some of its layers.
            let mut seen = HashSet::new();
            let layers = named.iter().filter(|network| network.owner == owner).flat_map(|network| &network.layers);
            let layers = layers.filter(|layer| seen.insert(*layer)).cloned().collect();
            return Ok(Model::Program(RecordedNetwork { name: name.to_owned(), owner, layers }));
        }
        let has_steps =
            |recording: &Recording| Types::ALL.iter().any(|types| !recording.of(&step_name(name, *types)).is_empty());
        if recordings.iter().any(has_steps) {
            let (name, owner) = (name.to_owned(), Owner::Program);
            return Ok(Model::Program(RecordedNetwork { name, owner, layers: Vec::new() }));
        }
        let Error::UnknownWord { mut known, .. } = error else { return Err(error) };
        known.extend(networks().map(|network| network.name.clone()));
        known.dedup();
        Err(Error::unknown_word("built-in networks and recorded programs", name, known))
    }

    /// The network's or program's name.
    pub fn name(&self) -> &str {
        match self {
            Model::Network(network) => network.name(),
            Model::Program(program) => &program.name,
        }
    }

    /// Its convolutions, one kernel for each of `operations`.
    ///
    /// A program's kernels have the operations, types and layouts in which they ran, and without `batch` the mini-batches
    /// as well; with it, each is listed once on that mini-batch. Unnamed layers are called `conv1`, `conv2`, .. by shape.
    ///
    /// # Errors
    /// As [`Network::kernels`]; [`Error::BadProblem`] for a recorded shape that is invalid.
    pub fn kernels(
        &self,
        batch: Option<usize>,
        operations: &[Operation],
        types: Types,
        layout: Layout,
    ) -> Result<Vec<Kernel>, Error> {
        let program = match self {
            Model::Network(network) => return network.kernels(batch, operations, types, layout),
            Model::Program(program) => program,
        };
        let (mut kernels, mut seen, mut unnamed) = (Vec::new(), HashSet::new(), Vec::new());
        for (layer, shape, mini_batch) in &program.layers {
            let problem: Problem = format!("{shape} n{}", batch.unwrap_or(*mini_batch)).parse()?;
            if !operations.contains(&problem.operation()) || !seen.insert((layer, problem)) {
                continue;
            }
            let layer = if layer.is_empty() {
                let known = unnamed.iter().position(|known| known == problem.convolution());
                let number = known.unwrap_or_else(|| {
                    unnamed.push(*problem.convolution());
                    unnamed.len() - 1
                });
                format!("conv{}", number + 1)
            } else {
                layer.clone()
            };
            kernels.push(Kernel { layer, problem });
        }
        Ok(kernels)
    }

    /// Groups of `kernels` that may run side by side ([`Network::concurrent`]); none are known of a program.
    pub fn concurrent(&self, kernels: &[Kernel]) -> Vec<Vec<usize>> {
        match self {
            Model::Network(network) => network.concurrent(kernels),
            Model::Program(_) => Vec::new(),
        }
    }
}
