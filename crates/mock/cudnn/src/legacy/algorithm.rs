//! Which method each algorithm number of the legacy interface means.

use crate::method::{Choice, Method};
use crate::number::DataType;
use crate::problem::{Operation, Problem};
use crate::status::Status;

/// The method of an algorithm, if it computes the problem.
///
/// # Errors
/// [`Status::BAD_PARAM`] for an unknown number; [`Status::NOT_SUPPORTED`] if the algorithm refuses the problem.
pub fn choose(problem: &Problem, algorithm: i32) -> Result<Choice, Status> {
    let plain = Choice::plain;
    let split = |knob| Choice { method: Method::SplitK, knob };
    let choice = match (problem.operation, algorithm) {
        (Operation::Forward, 0) => plain(Method::Implicit),
        (Operation::Forward, 1) | (Operation::BackwardData, 1) | (Operation::BackwardFilter, 1) => plain(gemm(problem)),
        (Operation::Forward, 2) => plain(Method::Gemm),
        (Operation::Forward, 4) | (Operation::BackwardData, 2) | (Operation::BackwardFilter, 2) => plain(Method::Fft),
        (Operation::Forward, 5) | (Operation::BackwardData, 3) | (Operation::BackwardFilter, 6) => {
            plain(Method::FftTiling)
        }
        (Operation::Forward, 6) | (Operation::BackwardData, 4) => plain(Method::Winograd),
        (Operation::Forward, 7) | (Operation::BackwardData, 5) | (Operation::BackwardFilter, 5) => {
            plain(Method::WinogradNonfused)
        }
        (Operation::BackwardData | Operation::BackwardFilter, 0) => split(0),
        (Operation::BackwardFilter, 3) => split(2),
        // Direct forward and fused Winograd backward-filter have numbers only.
        (Operation::Forward, 3) | (Operation::BackwardFilter, 4) => return Err(Status::NOT_SUPPORTED),
        _ => return Err(Status::BAD_PARAM),
    };
    // In three dimensions the real library knows few algorithms.
    if problem.spatial == 3 && matches!(choice.method, Method::Gemm | Method::Fft) {
        return Err(Status::NOT_SUPPORTED);
    }
    // The legacy interface keeps one type for all tensors.
    if problem.inputs()[0].data_type != problem.output().data_type {
        return Err(Status::NOT_SUPPORTED);
    }
    choice.check(problem).map_err(|_| Status::NOT_SUPPORTED)?;
    Ok(choice)
}

/// Algorithm 1 uses tensor cores where math type and shape let it.
fn gemm(problem: &Problem) -> Method {
    let wanted = problem.tensor_cores || problem.inputs()[0].data_type != DataType::F32;
    let able = Choice::plain(Method::TensorCore).check(problem).is_ok();
    if wanted && able { Method::TensorCore } else { Method::Precomputed }
}
