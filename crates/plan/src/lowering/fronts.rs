//! The configurations a plan may choose from for each convolution.

use std::collections::HashMap;
use std::sync::Arc;

use tightfit_conv::candidate::Candidates;
use tightfit_conv::{Algorithm, Candidate, Configuration, DivisionCost, Problem};
use tightfit_units::{Bytes, Error};

use crate::lowering::workload::Workload;
use crate::step::{CostModel, Front, part_sizes};

/// Fronts of a workload's distinct convolutions: configurations by rising workspace and falling time.
#[derive(Clone, Debug, Default)]
pub struct Fronts {
    known: HashMap<Problem, Front>,
}

impl Fronts {
    /// Computes the fronts of measured candidates.
    ///
    /// - Cost: one front per problem; see [`Front::of`].
    ///
    /// # Errors
    /// [`Error::NotProfiled`] for a problem whose measured sizes do not add up to its mini-batch.
    pub fn of(candidates: &HashMap<Problem, Candidates>) -> Result<Fronts, Error> {
        let mut fronts = Fronts::default();
        for (problem, Candidates { candidates, cost }) in candidates {
            fronts.known.insert(*problem, Front::of(*problem, candidates.as_slice().into(), *cost)?);
        }
        Ok(fronts)
    }

    /// The fronts of `workload` with every convolution assumed; see [`Fronts::assume`].
    ///
    /// # Errors
    /// As [`Workload::problems`].
    pub fn assumed(workload: &Workload<'_>, costs: &CostModel) -> Result<Fronts, Error> {
        let mut fronts = Fronts::default();
        fronts.assume(workload, costs)?;
        Ok(fronts)
    }

    /// Adds a front to every convolution of `workload` without one: a configuration without workspace, with the time that `costs` estimates, and one
    /// candidate for each possible number of samples in a part of the mini-batch. Useful for networks without measurements.
    pub fn assume(&mut self, workload: &Workload<'_>, costs: &CostModel) -> Result<(), Error> {
        for problem in workload.problems()? {
            if self.known.contains_key(&problem) {
                continue;
            }
            let candidate = |problem: &Problem| Candidate {
                micro_batch: problem.batch(),
                algorithm: Algorithm::new("assumed"),
                time: costs.convolution(problem),
                workspace: Bytes::ZERO,
            };
            let parts = part_sizes(problem.batch()).into_iter().filter_map(|size| problem.with_batch(size).ok());
            let whole = Configuration::new(vec![candidate(&problem)], DivisionCost::default());
            let only: Arc<[Configuration]> = Arc::new([whole]);
            let front = Front {
                divided: Arc::clone(&only),
                whole: only,
                candidates: parts.map(|part| candidate(&part)).collect(),
                ..Front::empty(problem)
            };
            self.known.insert(problem, front);
        }
        Ok(())
    }

    /// The front of a problem; empty if the problem is unknown.
    pub fn front(&self, problem: &Problem) -> Front {
        self.known.get(problem).cloned().unwrap_or_else(|| Front::empty(*problem))
    }
}

#[cfg(test)]
mod tests {
    use tightfit_conv::{Operation, Types};
    use tightfit_network::{Builder, Filters, Shape};

    use super::*;
    use crate::Mode;

    #[test]
    fn only_needed_problems_are_listed_and_each_once() {
        let mut net = Builder::new("repeated");
        net.input(Shape::image(4, 8, 8));
        for name in ["first", "second", "third"] {
            net.conv(name, Filters::new(4, 3).pad(1)).relu();
        }
        net.flatten().fully_connected("fc", 2).softmax_loss();
        let network = net.finish().unwrap();
        let problems = |mode| {
            let workload = Workload::new(&network, 2, Types::F32, mode).unwrap();
            let problems = workload.problems().unwrap();
            problems.iter().map(Problem::operation).collect::<Vec<Operation>>()
        };
        assert_eq!(problems(Mode::Training), [Operation::Forward, Operation::BackwardFilter, Operation::BackwardData]);
        assert_eq!(problems(Mode::Inference), [Operation::Forward]);

        let mut net = Builder::new("one");
        net.input(Shape::image(4, 8, 8)).conv("first", Filters::new(4, 3)).flatten();
        net.fully_connected("fc", 2).softmax_loss();
        let network = net.finish().unwrap();
        let workload = Workload::new(&network, 2, Types::F32, Mode::Training).unwrap();
        let problems = workload.problems().unwrap();
        assert!(problems.iter().all(|problem| problem.operation() != Operation::BackwardData), "{problems:?}");
    }
}
