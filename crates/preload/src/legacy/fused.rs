//! `cudnnConvolutionBiasActivationForward`: runs undivided with the program's own algorithm, and is counted.
//!
//! It has no workspace query of its own. If the plain convolution's query was answered with less than the algorithm
//! needs, the rest is lent (see `loan`). If there is no memory to lend, an algorithm that fits the program's workspace
//! runs instead: of the two that need least, cuDNN allows only the precomputed one without an activation.

use std::ffi::{c_int, c_void};

use tightfit_core::Operation;
use tightfit_cuda::sys::cudnn::{CudnnStatus, Handle};

use super::decide::Asked;
use super::descriptors::{Descriptor, Descriptors};
use super::loan;
use crate::reason::{Function, Reason, count};
use crate::report;
use crate::run::catch_panics;
use crate::settings::settings;
use crate::trampolines::forward;

const FUNCTION: Function = Function::cudnnConvolutionBiasActivationForward;

/// `CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM` and `.._IMPLICIT_GEMM`.
const SMALL: [c_int; 2] = [1, 0];

/// The parts of a call that may change.
#[derive(Clone, Copy)]
struct Given {
    algorithm: c_int,
    workspace: *mut c_void,
    bytes: usize,
}

/// Runs a call with more workspace than it has, or with a smaller algorithm; none if it should run unchanged.
///
/// # Safety
/// The handle is alive and used on this thread; `enqueue` is the call, `own` asks for what an algorithm needs.
unsafe fn enlarged(
    asked: Asked,
    given: Given,
    own: impl Fn(c_int) -> Option<usize>,
    mut enqueue: impl FnMut(Given) -> CudnnStatus,
) -> Option<CudnnStatus> {
    report::on_call();
    count(Reason::FusedCall, FUNCTION);
    let most = loan::at_most(given.bytes)?;
    // SAFETY: forwarded to the caller.
    let known = unsafe { asked.known_workspace() };
    let needed = known.or_else(|| own(given.algorithm)).filter(|needed| (given.bytes + 1..=most).contains(needed))?;
    let in_loan = |workspace| enqueue(Given { workspace, bytes: needed, ..given });
    // SAFETY: forwarded to the caller.
    match unsafe { loan::lend(asked.handle, needed, in_loan) } {
        Ok(status) => {
            count(Reason::Lent, FUNCTION);
            Some(status)
        }
        Err(reason) => {
            count(reason, FUNCTION);
            let fitting = SMALL.into_iter().filter(|small| own(*small).is_some_and(|bytes| bytes <= given.bytes));
            fitting
                .map(|algorithm| enqueue(Given { algorithm, ..given }))
                .find(|status| *status == CudnnStatus::SUCCESS)
        }
    }
}

/// cuDNN's function of this name; lends workspace if our answer made the program's too small.
///
/// # Safety
/// As cuDNN's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnConvolutionBiasActivationForward(
    handle: Handle,
    alpha1: *const c_void,
    x: Descriptor,
    at_x: *const c_void,
    w: Descriptor,
    at_w: *const c_void,
    convolution: Descriptor,
    algorithm: c_int,
    workspace: *mut c_void,
    bytes: usize,
    alpha2: *const c_void,
    z: Descriptor,
    at_z: *const c_void,
    bias: Descriptor,
    at_bias: *const c_void,
    activation: Descriptor,
    y: Descriptor,
    at_y: *mut c_void,
) -> CudnnStatus {
    let call = |Given { algorithm, workspace, bytes }: Given| {
        forward!(
            cudnnConvolutionBiasActivationForward(
                handle: Handle, alpha1: *const c_void, x: Descriptor, at_x: *const c_void, w: Descriptor,
                at_w: *const c_void, convolution: Descriptor, algorithm: c_int, workspace: *mut c_void, bytes: usize,
                alpha2: *const c_void, z: Descriptor, at_z: *const c_void, bias: Descriptor, at_bias: *const c_void,
                activation: Descriptor, y: Descriptor, at_y: *mut c_void,
            ) -> CudnnStatus
        )
    };
    let given = Given { algorithm, workspace, bytes };
    if settings().is_some() {
        let own = |algorithm: c_int| {
            let mut own = 0;
            let place = &raw mut own;
            let status = forward!(
                cudnnGetConvolutionForwardWorkspaceSize(
                    handle: Handle, x: Descriptor, w: Descriptor, convolution: Descriptor, y: Descriptor,
                    algorithm: c_int, place: *mut usize,
                ) -> CudnnStatus
            );
            (status == CudnnStatus::SUCCESS).then_some(own)
        };
        let descriptors = Descriptors { operation: Operation::Forward, first: x, second: w, convolution, output: y };
        let asked = Asked { handle, descriptors, algorithm, math: None };
        // Set even if our part panics afterwards.
        let mut answered = None;
        let enqueue = |given| *answered.insert(call(given));
        // SAFETY: forwarded to the caller.
        match catch_panics(|| unsafe { enlarged(asked, given, own, enqueue) }) {
            Some(Some(status)) => return status,
            Some(None) => {}
            None => {
                count(Reason::Panicked, FUNCTION);
                if let Some(status) = answered {
                    return status;
                }
            }
        }
    }
    call(given)
}
