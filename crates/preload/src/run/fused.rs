//! `cudnnConvolutionBiasActivationForward`: runs undivided with the program's own algorithm, and is counted.
//!
//! It has no separate workspace query. If the plain convolution's query was answered with less than the algorithm
//! needs, the rest is lent (see `loan`). Without memory to lend, an algorithm that fits the program's workspace
//! runs instead: of the two that need least, cuDNN allows only the precomputed one without an activation.

use std::ffi::{c_int, c_void};

use tightfit_cuda::sys::cudnn::CudnnStatus;

use super::number::lend;
use crate::decide::Request;
use crate::process::Process;
use crate::reason::{Function, Reason};
use crate::report;

const FUNCTION: Function = Function::cudnnConvolutionBiasActivationForward;

/// `CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM` and `.._IMPLICIT_GEMM`.
const SMALL: [c_int; 2] = [1, 0];

/// The parts of a call that may change.
#[derive(Clone, Copy)]
pub struct Resources {
    /// The algorithm's number.
    pub algorithm: c_int,
    /// The workspace.
    pub workspace: *mut c_void,
    /// Its size.
    pub bytes: usize,
}

/// Runs a call with more workspace than it has, or with a smaller algorithm, or `None` if it should run unchanged.
///
/// # Safety
/// The handle is alive and used on this thread; `enqueue` is the call, `own` returns the workspace that an algorithm needs.
pub unsafe fn run_fused(
    process: &Process,
    request: Request,
    given: Resources,
    own: impl Fn(c_int) -> Option<usize>,
    mut enqueue: impl FnMut(Resources) -> CudnnStatus,
) -> Option<CudnnStatus> {
    report::on_call(process);
    let count = |reason| process.counts.count(reason, FUNCTION);
    count(Reason::FusedCall);
    let most = process.loans.at_most(given.bytes)?;
    // SAFETY: forwarded to the caller.
    let known = unsafe { request.known_workspace(process) };
    let needed = known.or_else(|| own(given.algorithm)).filter(|needed| (given.bytes + 1..=most).contains(needed))?;
    let in_loan = |workspace| enqueue(Resources { workspace, bytes: needed, ..given });
    // SAFETY: forwarded to the caller.
    match unsafe { lend(process, request.handle, needed, in_loan) } {
        Ok(status) => {
            count(Reason::Lent);
            Some(status)
        }
        Err(reason) => {
            count(reason);
            let fitting = SMALL.into_iter().filter(|small| own(*small).is_some_and(|bytes| bytes <= given.bytes));
            fitting
                .map(|algorithm| enqueue(Resources { algorithm, ..given }))
                .find(|status| *status == CudnnStatus::SUCCESS)
        }
    }
}
