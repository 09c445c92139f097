//! The configurations that a plan may give to each convolution.

use std::collections::HashMap;

use super::program::Program;
use super::{Costs, Workload};
use crate::candidate::Candidates;
use crate::network::LayerId;
use crate::optimize::front;
use crate::{Algorithm, Bytes, Candidate, Configuration, DivisionCost, Error, Layout, Operation, Problem};

/// Fronts of a workload's convolutions: configurations by rising workspace, hence falling time, each problem once.
#[derive(Clone, Debug, Default)]
pub struct Kernels {
    divided: HashMap<Problem, Vec<Configuration>>,
    undivided: HashMap<Problem, Vec<Configuration>>,
}

impl Kernels {
    /// The fronts of what was measured.
    ///
    /// - Cost: one front for each problem; see [`front`].
    ///
    /// # Errors
    /// [`Error::NotProfiled`] for a problem that nothing adds up to.
    pub fn of(candidates: &HashMap<Problem, Candidates>) -> Result<Kernels, Error> {
        let mut kernels = Kernels::default();
        for (problem, Candidates { candidates, cost }) in candidates {
            kernels.divided.insert(*problem, front(problem, candidates, Bytes::UNLIMITED, *cost)?);
            let whole: Vec<Candidate> =
                candidates.iter().filter(|candidate| candidate.micro_batch == problem.batch()).cloned().collect();
            // A problem that only runs divided has no undivided front: plans without division then say so.
            if let Ok(front) = front(problem, &whole, Bytes::UNLIMITED, DivisionCost::default()) {
                kernels.undivided.insert(*problem, front);
            }
        }
        Ok(kernels)
    }

    /// Every convolution of `workload` as [`Kernels::assume`] gives it, with nothing measured.
    ///
    /// # Errors
    /// As [`Kernels::problems`].
    pub fn assumed(workload: &Workload<'_>, costs: &Costs) -> Result<Kernels, Error> {
        let mut kernels = Kernels::default();
        kernels.assume(workload, costs)?;
        Ok(kernels)
    }

    /// Gives every convolution of `workload` that has no front one configuration without workspace, as fast as `costs`
    /// expect: for looking at networks that nothing was measured of.
    pub fn assume(&mut self, workload: &Workload<'_>, costs: &Costs) -> Result<(), Error> {
        for problem in Kernels::problems(workload)? {
            if self.divided.contains_key(&problem) {
                continue;
            }
            let candidate = Candidate {
                micro_batch: problem.batch(),
                algorithm: Algorithm::new("assumed"),
                time: costs.convolution(&problem),
                workspace: Bytes::ZERO,
            };
            let front = vec![Configuration::new(vec![candidate], DivisionCost::default())];
            self.divided.insert(problem, front.clone());
            self.undivided.insert(problem, front);
        }
        Ok(())
    }

    /// The problems of all convolutions that the workload runs, each once, in the order of computation.
    ///
    /// # Errors
    /// [`Error::BadProblem`] for too large a mini-batch.
    pub fn problems(workload: &Workload<'_>) -> Result<Vec<Problem>, Error> {
        let mut problems = Vec::new();
        for operation in &Program::of(workload).operations {
            problems.extend(operation.problem(workload)?.filter(|problem| !problems.contains(problem)));
        }
        Ok(problems)
    }

    /// The problem of one operation of a workload's convolution.
    ///
    /// # Errors
    /// [`Error::BadProblem`] for too large a mini-batch; [`Error::BadNetwork`] for a layer that is no convolution.
    pub fn problem(workload: &Workload<'_>, layer: LayerId, operation: Operation) -> Result<Problem, Error> {
        match &workload.network.layer(layer).kind {
            crate::network::LayerKind::Convolution { convolution, .. } => {
                Problem::new(*convolution, operation, workload.batch, workload.types, Layout::Nchw)
            }
            kind => Err(Error::BadNetwork {
                network: workload.network.name().to_owned(),
                layer: workload.network.layer(layer).name.clone(),
                what: format!("a {} layer is no convolution", kind.name()),
            }),
        }
    }

    /// The front of a problem, divided configurations among them if `divide` is set; never empty.
    ///
    /// # Errors
    /// [`Error::NotProfiled`] if there is none.
    pub fn front(&self, problem: &Problem, divide: bool) -> Result<&[Configuration], Error> {
        let fronts = if divide { &self.divided } else { &self.undivided };
        match fronts.get(problem) {
            Some(front) if !front.is_empty() => Ok(front),
            _ => Err(Error::NotProfiled { problem: Box::new(*problem), reasons: Vec::new() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Types;
    use crate::network::{Builder, Filters, Shape};

    #[test]
    fn only_what_runs_is_a_problem_and_repeated_layers_are_one() {
        let mut net = Builder::new("repeated");
        net.input(Shape::image(4, 8, 8));
        for name in ["first", "second", "third"] {
            net.conv(name, Filters::new(4, 3).pad(1)).relu();
        }
        net.flatten().fully_connected("fc", 2).softmax_loss();
        let network = net.finish().unwrap();
        let problems = |inference| {
            let workload = Workload::new(&network, 2, Types::F32, inference).unwrap();
            let problems = Kernels::problems(&workload).unwrap();
            problems.iter().map(Problem::operation).collect::<Vec<Operation>>()
        };
        assert_eq!(problems(false), [Operation::Forward, Operation::BackwardFilter, Operation::BackwardData]);
        assert_eq!(problems(true), [Operation::Forward]);

        let mut net = Builder::new("one");
        net.input(Shape::image(4, 8, 8)).conv("first", Filters::new(4, 3)).flatten();
        net.fully_connected("fc", 2).softmax_loss();
        let network = net.finish().unwrap();
        let workload = Workload::new(&network, 2, Types::F32, false).unwrap();
        let problems = Kernels::problems(&workload).unwrap();
        assert!(problems.iter().all(|problem| problem.operation() != Operation::BackwardData), "{problems:?}");
    }
}
