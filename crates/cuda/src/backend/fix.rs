//! Sets a configuration up on fixed memory, for training: it can be enqueued any number of times without allocating.
//!
//! Filter gradients are sums in f32 in every type. An engine that writes f32 adds to the sum itself; the result of any
//! other goes to half-precision scratch and is widened into the sum. The order of the micro-batches is the order of
//! [`super::run`].

use std::sync::Arc;

use tightfit_conv::backend::Scale;
use tightfit_conv::candidate::Call;
use tightfit_conv::problem::Part;
use tightfit_conv::{Algorithm, Configuration, Notes, Operation, Problem};
use tightfit_units::Error;

use super::launches::place;
use super::trust::must_be_proven;
use super::{CudaBackend, is_refusal, sums_in_scratch};
use crate::CudaError;
use crate::convolution::{Family, Fixed, Output, PreparedAlgorithm};
use crate::layers::{Convolution, Libraries, Piece, Widen, Write, half_scratch};
use crate::safe::Region;

impl CudaBackend {
    /// The calls of a configuration on this memory. Engines that need proof are proven first, in memory that is freed afterwards.
    pub(crate) fn fix(
        &mut self,
        libraries: &Arc<Libraries>,
        problem: &Problem,
        configuration: &Configuration,
        memory: &Convolution,
    ) -> Result<Vec<Piece>, Error> {
        let calls = configuration.calls(problem)?;
        for Call { part, algorithm, .. } in &calls {
            let (typed, family) = self.resolve(&part.problem, algorithm)?;
            if !self.is_proven(&typed, &family) {
                let proven = self.prove_engine(&typed, &family).and_then(|()| self.release());
                proven.map_err(|error| self.failed(&part.problem, algorithm, error))?;
            }
        }
        let mut pieces = Vec::with_capacity(calls.len());
        for Call { part, algorithm, adds } in &calls {
            let beta = if *adds { 1.0 } else { memory.beta() };
            let place = regions(part, memory).map_err(|error| self.failed(&part.problem, algorithm, error))?;
            pieces.push(self.piece(libraries, &part.problem, algorithm, place, beta)?);
        }
        Ok(pieces)
    }

    /// Sets one micro-batch up with its algorithm, or with another if that cannot add to its output.
    fn piece(
        &mut self,
        libraries: &Arc<Libraries>,
        problem: &Problem,
        algorithm: &Algorithm,
        memory: [Region; 4],
        beta: f32,
    ) -> Result<Piece, Error> {
        let (typed, family) = self.resolve(problem, algorithm)?;
        let refused = match self.piece_of(libraries, &typed, &family, &memory, beta) {
            Ok(piece) => return Ok(piece),
            // An engine that was not measured is not known to compute a slice right.
            Err(error) if beta != 0.0 && is_refusal(&error) && !must_be_proven(problem) => error,
            Err(error) => return Err(self.failed(problem, algorithm, error)),
        };
        for offer in tightfit_conv::Backend::offers(self, problem)? {
            if offer.workspace.is_err() || offer.notes.contains(Notes::NONDETERMINISTIC) {
                continue;
            }
            let (typed, family) = self.resolve(problem, &offer.algorithm)?;
            if let Ok(piece) = self.piece_of(libraries, &typed, &family, &memory, beta) {
                return Ok(piece);
            }
        }
        Err(self.failed(problem, algorithm, refused))
    }

    fn piece_of(
        &mut self,
        libraries: &Arc<Libraries>,
        problem: &Problem,
        family: &Family,
        [data, other, output, workspace]: &[Region; 4],
        beta: f32,
    ) -> Result<Piece, CudaError> {
        let fits = |call: Arc<PreparedAlgorithm>| -> Result<Arc<PreparedAlgorithm>, CudaError> {
            workspace.must_hold(call.workspace())?;
            call.build().map(|()| call)
        };
        let scale = Scale { alpha: 1.0, beta };
        let target = if sums_in_scratch(problem) { Output::F32 } else { Output::Own };
        match self.prepare(problem, family, target, scale).and_then(fits) {
            Ok(call) => {
                let memory = [data.clone(), other.clone(), output.clone(), workspace.clone()];
                Ok(Piece { call: Fixed::new(&call, memory, scale)?, widened: None })
            }
            Err(error) if target == Output::F32 && is_refusal(&error) => {
                let (storage, len) = (problem.types().storage(), problem.filter_len());
                let call = self.prepare(problem, family, Output::Own, Scale::OVERWRITE).and_then(fits)?;
                let scratch = half_scratch(libraries, storage, len)?;
                let write = if beta == 0.0 { Write::Overwrite } else { Write::Add };
                let widened = Some(Widen::new(libraries, storage, (&scratch, output), len, write)?);
                let memory = [data.clone(), other.clone(), scratch, workspace.clone()];
                Ok(Piece { call: Fixed::new(&call, memory, Scale::OVERWRITE)?, widened })
            }
            Err(error) => Err(error),
        }
    }
}

/// The memory of a part: data, other, output and workspace.
fn regions(part: &Part, memory: &Convolution) -> Result<[Region; 4], CudaError> {
    let bytes = place(part);
    // A filter gradient is not divided, and has another type than the maps.
    let output = match part.problem.operation() {
        Operation::BackwardFilter => memory.output.part(0..part.problem.filter_len() * 4)?,
        Operation::Forward | Operation::BackwardData => memory.output.part(bytes.output)?,
    };
    Ok([memory.data.part(bytes.data)?, memory.other.part(bytes.other)?, output, memory.workspace.clone()])
}
