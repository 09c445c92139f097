//! The legacy interface's algorithms: eight forward, six backward-data, seven backward-filter.

use std::sync::Arc;

use tightfit_conv::{Notes, Operation, Problem};

use super::{Geometry, PreparedAlgorithm};
use crate::CudaError;
use crate::safe::{Convolution, Filter, Handle, Legacy, Tensor};
use crate::sys::cudnn::LegacyAlgorithm;

/// An algorithm's place in the list is cuDNN's number for it.
type Table = &'static [(&'static str, Notes)];

const FORWARD: Table = &[
    ("implicit-gemm", Notes::NONE),
    ("implicit-precomp-gemm", Notes::NONE),
    ("gemm", Notes::NONE),
    ("direct", Notes::NONE),
    ("fft", Notes::FFT),
    ("fft-tiling", Notes::FFT),
    ("winograd", Notes::WINOGRAD),
    ("winograd-nonfused", Notes::WINOGRAD),
];
const BACKWARD_DATA: Table = &[
    ("algo-0", Notes::NONDETERMINISTIC),
    ("algo-1", Notes::NONE),
    ("fft", Notes::FFT),
    ("fft-tiling", Notes::FFT),
    ("winograd", Notes::WINOGRAD),
    ("winograd-nonfused", Notes::WINOGRAD),
];
const BACKWARD_FILTER: Table = &[
    ("algo-0", Notes::NONDETERMINISTIC),
    ("algo-1", Notes::NONE),
    ("fft", Notes::FFT),
    ("algo-3", Notes::NONDETERMINISTIC),
    ("winograd", Notes::WINOGRAD),
    ("winograd-nonfused", Notes::WINOGRAD),
    ("fft-tiling", Notes::FFT),
];

fn table(operation: Operation) -> Table {
    match operation {
        Operation::Forward => FORWARD,
        Operation::BackwardData => BACKWARD_DATA,
        Operation::BackwardFilter => BACKWARD_FILTER,
    }
}

/// The algorithms of an operation, by cuDNN's numbers.
pub(crate) fn legacy_names(operation: Operation) -> impl Iterator<Item = &'static str> {
    table(operation).iter().map(|(name, _)| *name)
}

/// The notes on an algorithm's arithmetic. The interface does not report them; its header lists the nondeterministic
/// ones.
pub(crate) fn legacy_notes(operation: Operation, name: &str) -> Notes {
    table(operation).iter().find(|(known, _)| *known == name).map_or(Notes::NONE, |(_, notes)| *notes)
}

/// The call of one algorithm on a problem in the problem's own types; `None` if the operation has no algorithm with
/// that name.
///
/// # Errors
/// [`CudaError::Uneven`] if the padding differs before and after, which the interface cannot express;
/// [`CudaError::Cudnn`], also if the algorithm is not supported.
pub(crate) fn prepare(
    handle: &Arc<Handle>,
    problem: &Problem,
    name: &str,
) -> Result<Option<PreparedAlgorithm>, CudaError> {
    let Some(number) = table(problem.operation()).iter().position(|(known, _)| *known == name) else { return Ok(None) };
    let geometry = Geometry::of(problem);
    if geometry.before != geometry.after {
        return Err(CudaError::Uneven);
    }
    let Geometry { data, arithmetic, math, format, .. } = geometry;
    let window = [geometry.before.as_slice(), &geometry.strides, &geometry.dilations];
    let legacy = Legacy::new(
        problem.operation(),
        Tensor::new(handle, data, &geometry.x.extents, &geometry.x.strides)?,
        Filter::new(handle, data, format, &geometry.w.extents)?,
        Tensor::new(handle, data, &geometry.y.extents, &geometry.y.strides)?,
        Convolution::new(handle, window, problem.convolution().groups(), arithmetic, math)?,
    );
    // At most 7, so it fits.
    let algorithm = LegacyAlgorithm(number as i32);
    let workspace = legacy.workspace(algorithm)?;
    Ok(Some(PreparedAlgorithm::legacy(legacy, algorithm, workspace, problem)))
}
