//! A configuration set up to run: its steps in their order, and the memory that each of them gets.
//!
//! ```text
//! data        | micro-batch a | micro-batch b | c |     each at its offset
//! workspace   | sum |  of a, of b, of c, in turn  |     the f32 sum only where halves add up
//! ```

use std::ops::Range;
use std::sync::Arc;

use tightfit_core::profile::Scale;
use tightfit_core::{Bytes, Candidate, Configuration, Error, Operation, Problem};

use super::CudaBackend;
use super::steps::{Places, Step, sum_bytes, sums_in_scratch};
use crate::CudaError;
use crate::convolution::{Elementwise, Launch};
use crate::safe::Slice;

/// The steps of a configuration in the order in which they run.
pub(super) struct Program {
    problem: Problem,
    steps: Vec<(Step, usize)>,
    elementwise: Option<Arc<Elementwise>>,
    workspace: usize,
}

impl CudaBackend {
    /// Sets every micro-batch up, so that nothing is left to build once they run.
    ///
    /// # Errors
    /// [`Error::Refused`] if an algorithm does not serve or needs more workspace with these factors than measured;
    /// [`Error::Backend`].
    pub(super) fn program(
        &mut self,
        problem: &Problem,
        configuration: &Configuration,
        scale: Scale,
    ) -> Result<Program, Error> {
        let failed = |error: CudaError| error.while_doing(format_args!("{configuration} on {problem}"));
        let summing = sums_in_scratch(problem) && configuration.is_divided();
        let elementwise = if summing { Some(self.elementwise(problem).map_err(failed)?) } else { None };
        // By falling alignment, so that each micro-batch starts at a multiple of its own.
        let mut parts: Vec<&Candidate> = configuration.parts().iter().collect();
        parts.sort_by_key(|part| std::cmp::Reverse(part.micro_batch.trailing_zeros()));
        let mut steps = Vec::with_capacity(parts.len());
        for (place, part) in parts.into_iter().enumerate() {
            let (typed, family) = self.resolve(&problem.with_batch(part.micro_batch)?, &part.algorithm)?;
            let adds_up = problem.operation() == Operation::BackwardFilter;
            let step = if summing {
                self.summing_step(&typed, &family, scale, place == 0)
            } else {
                let beta = if adds_up && place > 0 { 1.0 } else { scale.beta };
                self.plain_step(&typed, &family, Scale { beta, ..scale })
            };
            let step = step.map_err(|error| self.failed(&typed, &part.algorithm, error))?;
            steps.push((step, part.micro_batch));
        }
        let workspace = usize::try_from(configuration.workspace().0).unwrap_or(usize::MAX);
        let needed = steps.iter().map(|(step, _)| step.workspace()).max().unwrap_or(0)
            + if summing { sum_bytes(problem) } else { 0 };
        if needed > workspace {
            let (needed, workspace) = (Bytes(needed as u64), Bytes(workspace as u64));
            let reason = format!("needs {needed} with alpha {} and beta {}, over {workspace}", scale.alpha, scale.beta);
            return Err(Error::Refused { algorithm: configuration.to_string(), problem: Box::new(*problem), reason });
        }
        Ok(Program { problem: *problem, steps, elementwise, workspace })
    }
}

impl Program {
    /// Bytes of workspace that it runs in.
    pub fn workspace(&self) -> usize {
        self.workspace
    }

    /// The calls on this memory: data, other and output as in [`super::Tensors`], then the workspace.
    ///
    /// # Errors
    /// Those of [`crate::convolution::Prepared::bind`].
    pub fn launches<'a>(
        &'a self,
        [data, other, output, workspace]: [Slice<'a>; 4],
    ) -> Result<Vec<Launch<'a>>, CudaError> {
        let split = if self.elementwise.is_some() { sum_bytes(&self.problem) } else { 0 };
        let (sum, rest) = (workspace.part(0..split)?, workspace.part(split..workspace.len())?);
        let mut launches = Vec::with_capacity(self.steps.len() + 2);
        let mut done = 0;
        for (step, samples) in &self.steps {
            let per_sample = Samples::of(&self.problem, done, *samples);
            let places = Places {
                data: data.part(per_sample.data)?,
                other: other.part(per_sample.other)?,
                output: output.part(per_sample.output)?,
                sum: self.elementwise.is_some().then_some(sum),
                workspace: rest,
            };
            step.bind(places, self.elementwise.as_deref(), &mut launches)?;
            done += samples;
        }
        if let Some(steps) = &self.elementwise {
            launches.push(Launch::Plan(steps.narrow.bind(&[sum], output, rest)?));
        }
        Ok(launches)
    }
}

/// Bytes that a micro-batch reads and writes.
struct Samples {
    data: Range<usize>,
    other: Range<usize>,
    output: Range<usize>,
}

impl Samples {
    /// Those of `samples` samples after the first `done`. Filters are whole in every micro-batch.
    fn of(problem: &Problem, done: usize, samples: usize) -> Samples {
        let convolution = problem.convolution();
        let size = problem.types().storage().size();
        let batch = |sample: usize| done * sample * size..(done + samples) * sample * size;
        let (x, y) = (batch(convolution.input_len()), batch(convolution.output_len()));
        let w = 0..problem.filter_len() * size;
        let (data, other, output) = match problem.operation() {
            Operation::Forward => (x, w, y),
            Operation::BackwardData => (y, w, x),
            Operation::BackwardFilter => (x, y, w),
        };
        Samples { data, other, output }
    }
}
