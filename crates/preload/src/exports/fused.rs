//! `cudnnConvolutionBiasActivationForward`, which has no separate workspace query.

use std::ffi::{c_int, c_void};

use tightfit_conv::Operation;
use tightfit_cuda::sys::cudnn::{CudnnStatus, Handle};

use crate::decide::{Descriptor, Descriptors, Request};
use crate::forward::forward;
use crate::panics::catch_panics;
use crate::process::active;
use crate::reason::{Function, Reason};
use crate::run::{Resources, run_fused};

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
    let call = |Resources { algorithm, workspace, bytes }: Resources| {
        forward!(
            cudnnConvolutionBiasActivationForward(
                handle: Handle, alpha1: *const c_void, x: Descriptor, at_x: *const c_void, w: Descriptor,
                at_w: *const c_void, convolution: Descriptor, algorithm: c_int, workspace: *mut c_void, bytes: usize,
                alpha2: *const c_void, z: Descriptor, at_z: *const c_void, bias: Descriptor, at_bias: *const c_void,
                activation: Descriptor, y: Descriptor, at_y: *mut c_void,
            ) -> CudnnStatus
        )
    };
    let given = Resources { algorithm, workspace, bytes };
    if let Some(process) = active() {
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
        let request = Request { handle, descriptors, algorithm, math: None };
        // Set even if our part panics afterwards.
        let mut answered = None;
        let enqueue = |given| *answered.insert(call(given));
        // SAFETY: forwarded to the caller.
        match catch_panics(|| unsafe { run_fused(process, request, given, own, enqueue) }) {
            Some(Some(status)) => return status,
            Some(None) => {}
            None => {
                process.counts.count(Reason::Panicked, Function::cudnnConvolutionBiasActivationForward);
                if let Some(status) = answered {
                    return status;
                }
            }
        }
    }
    call(given)
}
