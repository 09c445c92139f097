//! The configurations that a plan may give to each convolution.

use std::collections::HashMap;
use std::sync::Arc;

use super::step::Front;
use super::{CostModel, Workload};
use crate::candidate::Candidates;
use crate::optimize::front;
use crate::{Algorithm, Bytes, Candidate, Configuration, DivisionCost, Error, Problem};

/// Fronts of a workload's convolutions: configurations by rising workspace, hence falling time, each problem once.
#[derive(Clone, Debug, Default)]
pub struct Fronts {
    known: HashMap<Problem, Front>,
}

impl Fronts {
    /// The fronts of what was measured.
    ///
    /// - Cost: one front for each problem; see [`front`].
    ///
    /// # Errors
    /// [`Error::NotProfiled`] for a problem that nothing adds up to.
    pub fn of(candidates: &HashMap<Problem, Candidates>) -> Result<Fronts, Error> {
        let mut fronts = Fronts::default();
        for (problem, Candidates { candidates, cost }) in candidates {
            let divided = front(problem, candidates, Bytes::UNLIMITED, *cost)?;
            let whole: Vec<Candidate> =
                candidates.iter().filter(|candidate| candidate.micro_batch == problem.batch()).cloned().collect();
            // A problem that only runs divided has no undivided front: plans without division then say so.
            let whole = front(problem, &whole, Bytes::UNLIMITED, DivisionCost::default()).unwrap_or_default();
            fronts.known.insert(*problem, Front { problem: *problem, divided: divided.into(), whole: whole.into() });
        }
        Ok(fronts)
    }

    /// Every convolution of `workload` as [`Fronts::assume`] gives it, with nothing measured.
    ///
    /// # Errors
    /// As [`Workload::problems`].
    pub fn assumed(workload: &Workload<'_>, costs: &CostModel) -> Result<Fronts, Error> {
        let mut fronts = Fronts::default();
        fronts.assume(workload, costs)?;
        Ok(fronts)
    }

    /// Gives every convolution of `workload` that has no front one configuration without workspace, as fast as `costs`
    /// expect: for looking at networks that nothing was measured of.
    pub fn assume(&mut self, workload: &Workload<'_>, costs: &CostModel) -> Result<(), Error> {
        for problem in workload.problems()? {
            if self.known.contains_key(&problem) {
                continue;
            }
            let candidate = Candidate {
                micro_batch: problem.batch(),
                algorithm: Algorithm::new("assumed"),
                time: costs.convolution(&problem),
                workspace: Bytes::ZERO,
            };
            let only: Arc<[Configuration]> = Arc::new([Configuration::new(vec![candidate], DivisionCost::default())]);
            self.known.insert(problem, Front { problem, divided: Arc::clone(&only), whole: only });
        }
        Ok(())
    }

    /// The front of a problem; an empty one where nothing is known of it.
    pub fn front(&self, problem: &Problem) -> Front {
        self.known.get(problem).cloned().unwrap_or_else(|| Front::empty(*problem))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{Builder, Filters, Shape};
    use crate::plan::Mode;
    use crate::{Operation, Types};

    #[test]
    fn only_what_runs_is_a_problem_and_repeated_layers_are_one() {
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
