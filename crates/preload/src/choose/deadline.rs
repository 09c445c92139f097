//! A backend that measures nothing more once the time for it is over.

use std::time::Instant;

use tightfit_core::backend::{Backend, Effort, Offer, Run, Scale, Tensors};
use tightfit_core::{Algorithm, Bytes, Configuration, Device, DivisionCost, Error, Measurement, Problem};

/// A backend with the time at which measuring ends; none for no end.
pub(super) struct Deadline<'a> {
    pub backend: &'a mut dyn Backend,
    pub end: Option<Instant>,
}

impl Deadline<'_> {
    /// # Errors
    /// [`Error::Interrupted`] if the time is over.
    fn check(&self) -> Result<(), Error> {
        if self.end.is_some_and(|end| Instant::now() >= end) { Err(Error::Interrupted) } else { Ok(()) }
    }
}

impl Backend for Deadline<'_> {
    fn device(&self) -> &Device {
        self.backend.device()
    }

    fn offers(&mut self, problem: &Problem) -> Result<Vec<Offer>, Error> {
        self.backend.offers(problem)
    }

    fn workspace(&mut self, problem: &Problem, algorithm: &Algorithm) -> Result<Bytes, Error> {
        self.backend.workspace(problem, algorithm)
    }

    fn measure(&mut self, problem: &Problem, algorithm: &Algorithm, effort: &Effort) -> Result<Measurement, Error> {
        self.check()?;
        self.backend.measure(problem, algorithm, effort)
    }

    fn division_cost(&mut self, problem: &Problem) -> Result<DivisionCost, Error> {
        self.check()?;
        self.backend.division_cost(problem)
    }

    fn run(
        &mut self,
        problem: &Problem,
        configuration: &Configuration,
        tensors: Tensors<'_>,
        scale: Scale,
    ) -> Result<Run, Error> {
        self.backend.run(problem, configuration, tensors, scale)
    }
}
