//! The steps of a micro-batch: one call of its algorithm and, if half-precision filter gradients add up in f32, the
//! elementwise steps around it.
//!
//! ```text
//! output in f32, or no sum      call(beta)    call(1)       call(1)
//! half, engine writes f32       [widen] call(beta) -> sum     call(1) -> sum          narrow
//! half, engine writes half      call(beta) -> dw, widen       call(0) -> dw, add      narrow
//! ```
//!
//! Beta is the caller's, and applies only to the first micro-batch, so that the old output counts once. `dw` can hold
//! single results because its old content is in the sum by then, so the sum is the only scratch.

use std::sync::Arc;

use tightfit_conv::backend::Scale;
use tightfit_conv::problem::Storage;
use tightfit_conv::{Operation, Problem};

use super::{CudaBackend, is_refusal};
use crate::CudaError;
use crate::convolution::{Elementwise, Family, Launch, Memory, Output, PreparedAlgorithm};
use crate::safe::Slice;

/// One prepared micro-batch.
pub(super) struct Step {
    call: Arc<PreparedAlgorithm>,
    scale: Scale,
    before: Option<Elementary>,
    after: Option<Elementary>,
    into_sum: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Elementary {
    Widen,
    Add,
}

/// The memory of a step.
#[derive(Clone, Copy)]
pub(super) struct Places<'a> {
    /// x; for backward-data dy.
    pub data: Slice<'a>,
    /// w; for backward-filter dy.
    pub other: Slice<'a>,
    /// y, dx or dw.
    pub output: Slice<'a>,
    /// The f32 sum, if there is one.
    pub sum: Option<Slice<'a>>,
    /// The workspace of the calls.
    pub workspace: Slice<'a>,
}

/// Whether a problem's micro-batches add up in separate f32 scratch memory.
pub(super) fn sums_in_scratch(problem: &Problem) -> bool {
    problem.operation() == Operation::BackwardFilter && problem.types().storage() != Storage::F32
}

/// Bytes of that scratch.
pub(super) fn sum_bytes(problem: &Problem) -> usize {
    if sums_in_scratch(problem) { (problem.filter_len() * 4).next_multiple_of(256) } else { 0 }
}

impl Step {
    /// A call whose factors are its plan's own.
    pub fn of_plan(call: PreparedAlgorithm) -> Step {
        Step { call: Arc::new(call), scale: Scale::OVERWRITE, before: None, after: None, into_sum: false }
    }

    /// Exact workspace of the call.
    pub fn workspace(&self) -> usize {
        self.call.workspace()
    }

    /// Whether it adds to the output that it is given.
    pub fn adds(&self) -> bool {
        self.scale.beta != 0.0
    }

    /// Adds the step's calls on this memory to `launches`.
    ///
    /// # Errors
    /// The errors of [`PreparedAlgorithm::bind`].
    pub fn bind<'a>(
        &'a self,
        places: Places<'a>,
        elementwise: Option<&'a Elementwise>,
        launches: &mut Vec<Launch<'a>>,
    ) -> Result<(), CudaError> {
        let Places { data, other, output, sum, workspace } = places;
        let target = if self.into_sum { sum.unwrap_or(output) } else { output };
        let elementary = |step: Elementary| match (elementwise, sum) {
            (Some(steps), Some(sum)) => Ok(Launch::Plan(match step {
                Elementary::Widen => steps.widen.bind(&[output], sum, workspace)?,
                Elementary::Add => steps.add.bind(&[sum, output], sum, workspace)?,
            })),
            _ => Err(CudaError::OutOfBounds { start: 0, end: 1, len: 0 }),
        };
        if let Some(step) = self.before {
            launches.push(elementary(step)?);
        }
        launches.push(self.call.bind(&Memory { data, other, output: target, workspace }, self.scale)?);
        if let Some(step) = self.after {
            launches.push(elementary(step)?);
        }
        Ok(())
    }
}

impl CudaBackend {
    /// A call that writes the output itself.
    ///
    /// # Errors
    /// [`CudaError`]; [`is_refusal`] says whether the algorithm is unsupported.
    pub(super) fn plain_step(&mut self, problem: &Problem, family: &Family, scale: Scale) -> Result<Step, CudaError> {
        let call = self.built(problem, family, Output::Own, scale)?;
        Ok(Step { call, scale, before: None, after: None, into_sum: false })
    }

    /// A call whose result goes to the f32 sum: with the caller's `beta` as the first, else added.
    ///
    /// # Errors
    /// [`CudaError`]; [`is_refusal`] says whether the algorithm is unsupported.
    pub(super) fn summing_step(
        &mut self,
        problem: &Problem,
        family: &Family,
        scale: Scale,
        is_first: bool,
    ) -> Result<Step, CudaError> {
        let mixed = Scale { beta: if is_first { scale.beta } else { 1.0 }, ..scale };
        match self.built(problem, family, Output::F32, mixed) {
            Ok(call) => {
                let before = (is_first && scale.beta != 0.0).then_some(Elementary::Widen);
                Ok(Step { call, scale: mixed, before, after: None, into_sum: true })
            }
            Err(error) if is_refusal(&error) => {
                let own = Scale { beta: if is_first { scale.beta } else { 0.0 }, ..scale };
                let after = Some(if is_first { Elementary::Widen } else { Elementary::Add });
                Ok(Step { after, ..self.plain_step(problem, family, own)? })
            }
            Err(error) => Err(error),
        }
    }
}
