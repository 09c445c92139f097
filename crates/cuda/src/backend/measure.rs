//! Times calls back to back, on random data, at the lowest alignment that a micro-batch's offset can have.

use std::sync::Arc;

use tightfit_conv::backend::{Effort, Sample, Scale};
use tightfit_conv::problem::Storage;
use tightfit_conv::{Algorithm, DivisionCost, Measurement, Operation, Problem};
use tightfit_units::{Bytes, Error, Nanos};

use super::steps::{Places, Step, sum_bytes, sums_in_scratch};
use super::timing::time;
use super::{ACCUMULATE, CudaBackend, excluded, is_refusal};
use crate::CudaError;
use crate::convolution::{Elementwise, Family, Launch, alignments, tensor_bytes};

/// A micro-batch as it is timed, and the steps that add it up.
pub(super) struct TimedStep {
    /// The micro-batch.
    pub step: Step,
    /// The steps around it, if half-precision filter gradients add up in f32.
    pub elementwise: Option<Arc<Elementwise>>,
}

impl CudaBackend {
    pub(super) fn measure_algorithm(
        &mut self,
        problem: &Problem,
        algorithm: &Algorithm,
        effort: &Effort,
    ) -> Result<Measurement, Error> {
        let (typed, family) = self.resolve(problem, algorithm)?;
        let (workspace, notes) =
            self.requirement(&typed, &family).map_err(|error| self.failed(problem, algorithm, error))?;
        if let Some(reason) = excluded(typed.types(), notes) {
            let (algorithm, reason) = (algorithm.name().to_owned(), reason.to_owned());
            return Err(Error::Refused { algorithm, problem: problem.to_string(), reason });
        }
        let timed = self.time_algorithm(&typed, &family, workspace, effort);
        let (Sample { median, spread, repeats }, single) =
            timed.map_err(|error| self.failed(problem, algorithm, error))?;
        Ok(Measurement {
            algorithm: algorithm.clone(),
            micro_batch: problem.batch(),
            time: median,
            single: Some(single),
            workspace,
            spread,
            repeats,
            notes,
        })
    }

    /// Times an algorithm as one micro-batch of a division, which for backward-filter adds to the output. An undivided call
    /// is no slower.
    fn time_algorithm(
        &mut self,
        problem: &Problem,
        family: &Family,
        workspace: Bytes,
        effort: &Effort,
    ) -> Result<(Sample, Nanos), CudaError> {
        self.prove_engine(problem, family)?;
        let TimedStep { step, elementwise } = self.timed_step(problem, family)?;
        self.time_step(problem, &step, elementwise.as_deref(), workspace, effort)
    }

    /// The timed part of an algorithm: one micro-batch of a division, which for backward-filter adds to the output.
    ///
    /// # Errors
    /// [`CudaError`]; [`is_refusal`] says whether the algorithm is unsupported.
    pub(super) fn timed_step(&mut self, problem: &Problem, family: &Family) -> Result<TimedStep, CudaError> {
        if !sums_in_scratch(problem) {
            let adds = problem.operation() == Operation::BackwardFilter;
            let scale = if adds { ACCUMULATE } else { Scale::OVERWRITE };
            return Ok(TimedStep { step: self.plain_step(problem, family, scale)?, elementwise: None });
        }
        match self.elementwise(problem) {
            Ok(steps) => {
                let step = self.summing_step(problem, family, Scale::OVERWRITE, false)?;
                Ok(TimedStep { step, elementwise: Some(steps) })
            }
            // Without these steps the mini-batch cannot be divided, but it can run as a whole.
            Err(error) if is_refusal(&error) => {
                Ok(TimedStep { step: self.plain_step(problem, family, Scale::OVERWRITE)?, elementwise: None })
            }
            Err(error) => Err(error),
        }
    }

    fn time_step(
        &mut self,
        problem: &Problem,
        step: &Step,
        elementwise: Option<&Elementwise>,
        workspace: Bytes,
        effort: &Effort,
    ) -> Result<(Sample, Nanos), CudaError> {
        let storage = problem.types().storage();
        let bytes = tensor_bytes(problem, storage);
        let starts = starts(problem, storage);
        let workspace = usize::try_from(workspace.0).unwrap_or(usize::MAX);
        let sum = sum_bytes(problem);
        let [data, other, output] = [0, 1, 2].map(|place| starts[place] + bytes[place]);
        let lengths = [data, other, output, workspace.saturating_add(sum)];
        let [in_data, in_other, in_output, in_scratch] = self.scratch.reserve(lengths, storage)?;
        in_scratch.slice_mut(0..sum)?.fill(0, self.handle.stream())?;
        let places = Places {
            data: in_data.slice(starts[0]..data)?,
            other: in_other.slice(starts[1]..other)?,
            output: *in_output.slice_mut(starts[2]..output)?,
            sum: if sum > 0 { Some(in_scratch.slice(0..sum)?) } else { None },
            workspace: in_scratch.slice(sum..sum + workspace)?,
        };
        let mut launches = Vec::new();
        step.bind(places, elementwise, &mut launches)?;
        time(self.handle.stream(), effort, &|| launches.iter().try_for_each(Launch::enqueue))
    }

    /// The cost of the f32 sum and its conversion; above any limit if cuDNN has no engine for them, so that the
    /// mini-batch stays undivided.
    pub(super) fn measure_division(&mut self, problem: &Problem) -> Result<DivisionCost, Error> {
        if !sums_in_scratch(problem) {
            return Ok(DivisionCost::default());
        }
        match self.time_narrowing(problem) {
            Ok(time) => Ok(DivisionCost { time, workspace: Bytes(sum_bytes(problem) as u64) }),
            Err(error) if is_refusal(&error) && self.handle.stream().synchronize().is_ok() => Ok(DivisionCost::NEVER),
            Err(error) => Err(error.while_doing(format_args!("converting the sum of {problem}"))),
        }
    }

    fn time_narrowing(&mut self, problem: &Problem) -> Result<Nanos, CudaError> {
        let steps = self.elementwise(problem)?;
        let storage = problem.types().storage();
        let (bytes, sum) = (problem.filter_len() * storage.size(), sum_bytes(problem));
        let [.., output, scratch] = self.scratch.reserve([0, 0, bytes, sum], storage)?;
        scratch.slice_mut(0..sum)?.fill(0, self.handle.stream())?;
        let none = scratch.slice(0..0)?;
        let narrow = steps.narrow.bind(&[scratch.slice(0..sum)?], *output.slice_mut(0..bytes)?, none)?;
        let (sample, _) = time(self.handle.stream(), &Effort::default(), &|| narrow.enqueue())?;
        Ok(sample.median)
    }
}

/// The offsets of data, other and output in their buffers: the lowest alignment that a micro-batch of this size, or a
/// slice, can have. Filters always begin a buffer.
pub(super) fn starts(problem: &Problem, storage: Storage) -> [usize; 3] {
    let [x, y] = alignments(problem, storage, storage);
    match problem.operation() {
        Operation::Forward => [x, 0, y],
        Operation::BackwardData => [y, 0, x],
        Operation::BackwardFilter => [x, y, 0],
    }
}
